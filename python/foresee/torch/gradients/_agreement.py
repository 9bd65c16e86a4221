# SPDX-License-Identifier: Apache-2.0
"""Agreement of all ranks on the plan, the initial values, and the settings that they train with.

Settings are compared at the start, and in rounds in which some rank's settings changed, a checkpoint was loaded, or
``state_dict()`` was called: a small tensor travels with the round, whose mean equals a rank's own values only if all
ranks sent the same. So no rank waits for a comparison alone, and rank 0 may call ``state_dict()`` by itself. Only where
the mean differs, which all ranks see, do they exchange descriptions of their settings.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from foresee.errors import ConfigError
from foresee.torch._exchange import GradientExchange, TensorSpec, as_tensor
from foresee.torch.gradients import _settings
from foresee.torch.gradients._initial import share
from foresee.torch.gradients._random import SEEDS, digest_state

if TYPE_CHECKING:
    from foresee.torch._rank_group import RankGroup
    from foresee.torch.gradients._buffers import Buffers
    from foresee.torch.gradients._plan import Entry, Plan
    from foresee.torch.gradients._round_state import RoundState
    from foresee.torch.gradients._settings import Line
    from foresee.torch.gradients._steps import Stepper
    from foresee.torch.gradients._timeline import Timeline
    from foresee.torch.gradients._transfer import Transfer

__all__ = ["SETTINGS_DIFFER", "PlanAgreement", "SettingsCheck", "SettingsDescription", "compare_lines"]

NAME = "settings of the optimizers"
#: The error where descriptions cannot be exchanged.
SETTINGS_DIFFER = (
    "settings or state of the optimizers differ between ranks, so weights would drift apart; set and load the same on "
    "every rank"
)
# Whether this rank's settings changed, whether it requests a comparison of states, and a digest in four numbers.
_NUMBERS = 6
_HEADER = struct.Struct("<16sQ")
# Longer values are cut in messages.
_MAX_VALUE_CHARS = 60


def compare_lines(group: RankGroup, lines: Sequence[Line]) -> None:
    """Compare the descriptions of all ranks. Collective, with nothing in flight.

    Raises:
        ConfigError: two ranks differ; the message names the first difference, both values and both ranks.
    """
    world = group.exchange.world
    if world == 1:
        return
    own = _settings.encode(lines)
    header = _HEADER.pack(_settings.digest(lines), len(own))
    heads = group.gather(header, dict.fromkeys(range(world), _HEADER.size))
    first = min(heads)
    other = next((rank for rank in sorted(heads) if heads[rank] != heads[first]), None)
    if other is None:
        return
    texts = group.gather(own, {rank: _HEADER.unpack(heads[rank])[1] for rank in (first, other)})
    found = _settings.find_difference(texts[first], texts[other])
    if found is None:
        return
    what, mine, theirs, remedy = found
    raise ConfigError(
        f"{what} is {_value(mine)} on rank {first} and {_value(theirs)} on rank {other}, {remedy}"
    )


@dataclass(eq=False)
class SettingsDescription:
    """Describes the settings of this rank."""

    steppers: Sequence[Stepper]
    plan: Plan
    rounds: RoundState[Entry]
    arguments: Mapping[str, object]
    """Arguments of ``synchronize`` that must be equal."""

    def fingerprint(self) -> str:
        """Return a text that changes with the settings; cheap."""
        counts, states = list(self._counts().values()), [line[1] for line in self._generators()]
        return f"{_settings.fingerprint(self._optimizers)} {counts} {states}"

    def lines(self, *, weights: bool = True) -> list[Line]:
        """Return settings, state and weights; reads all of them."""
        some = [entry.tensor for entry in self.plan.gradients] if weights else []
        state = _settings.describe_state(self._optimizers, self.plan.names, some)
        settings = _settings.describe_settings(self._optimizers, self.arguments, self._counts())
        # Not at the start: a script may seed after ``synchronize``.
        return (self._generators() if weights else []) + settings + state

    @property
    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [one.optimizer for one in self.steppers]

    def _generators(self) -> list[Line]:
        """Return the states of the random generators from which the optimizers' next steps draw."""
        lines = []
        for stepper in self.steppers:
            devices = sorted({entry.tensor.device for entry in stepper.entries}, key=str)
            for name in stepper.generators:
                remedy = (
                    f"so {stepper.base.__name__}, which draws from it in step(), would update weights differently; "
                    f"seed it alike on every rank with {SEEDS[name]}, and draw what differs between ranks from "
                    "another generator"
                )
                what = f"the state of the random generator of {name}"
                lines.append((what, digest_state(name, devices), remedy))
        return lines

    def _counts(self) -> dict[str, int]:
        if len(self.steppers) == 1:
            return {}
        return {f"steps of optimizers[{number}]": steps for number, steps in enumerate(self.rounds.steps)}


class SettingsCheck:
    """Compares settings of all ranks with the rounds.

    Args:
        exchange: of more than one rank, or nothing is compared.
        description: of this rank's settings.
    """

    def __init__(self, exchange: GradientExchange, description: SettingsDescription) -> None:
        self.is_active = exchange.world > 1
        self.is_pending = False
        """Whether the tensor of the last round has not been compared."""
        self._exchange = exchange
        self._description = description
        self._last = description.fingerprint() if self.is_active else ""
        self._is_requesting = self._is_requested = False
        self._is_loaded = False
        self._sent = torch.zeros(_NUMBERS, dtype=torch.float64)
        self._id = -1

    def spec(self, id_: int) -> TensorSpec:
        """Return the tensor, at this position of the plan."""
        self._id = id_
        return TensorSpec(id_, NAME, "gradient", torch.float64, (_NUMBERS,), (1,), _NUMBERS * 8, 0)

    def request(self) -> None:
        """Compare settings, state and weights of all ranks, with the round after the next."""
        self._is_requesting = self.is_active

    def record_load(self) -> None:
        """Note that state or weights were replaced, which all ranks must do alike."""
        self._is_loaded = self.is_active

    def push(self) -> None:
        """Push the tensor at the end of a round, if something changed."""
        if not self.is_active:
            return
        text = self._description.fingerprint()
        is_whole = self._is_loaded or self._is_requested
        has_changed = is_whole or text != self._last
        digest = _settings.digest(self._description.lines() if is_whole else [("", text, "")])
        numbers = map(float, struct.unpack("<4I", digest))
        flags = float(has_changed), float(self._is_requesting)
        self._sent = torch.tensor([*flags, *numbers], dtype=torch.float64)
        if any(flags):
            # A copy for each round, since the exchange retains it.
            sent = self._sent.clone()
            if not has_changed:
                sent[2:] = 0
            self._exchange.push(self._id, sent.data_ptr(), _NUMBERS * 8, sent)
        self._last = text
        self._is_requesting = self._is_requested = self._is_loaded = False
        self.is_pending = True

    def differs(self, wait: Callable[[Sequence[int]], None]) -> bool:
        """Wait for the tensor of the last round; returns whether ranks seem to differ, equally on all ranks."""
        wait([self._id])
        self.is_pending = False
        if not self._exchange.used(self._id):
            return False
        mean = as_tensor(self._exchange.received(self._id), self.spec(self._id))
        self._is_requested = bool(mean[1] > 0)
        if mean[0] == 0:
            return False
        return bool(mean[0] != 1 or (mean[2:] != self._sent[2:]).any())


@dataclass(eq=False)
class PlanAgreement:
    """The agreements of a group on plan, values and settings. Collective, with nothing in flight."""

    group: RankGroup
    plan: Plan
    transfer: Transfer
    buffers: Buffers
    description: SettingsDescription
    timeline: Timeline | None

    def __post_init__(self) -> None:
        self.check = SettingsCheck(self.group.exchange, self.description)

    def adopt(self, entries: Sequence[Entry], round_: int) -> None:
        """Agree on the plan from ``round_`` on, and copy rank 0's values of ``entries``."""
        with self._new_plan(round_):
            self.group.agree(self._specs())
            with self.transfer.on_host([(entry.spec, entry.tensor) for entry in entries]) as tensors:
                self.group.broadcast(tensors)
        for entry in entries:
            # The exchange wrote without torch's knowledge; autograd must not use saved old values.
            torch.autograd.graph.increment_version(entry.tensor)
            if entry.is_buffer:
                self.buffers.adopt(entry)

    def share(self, model: torch.nn.Module, round_: int) -> None:
        """Copy rank 0's values of tensors that no round sends, and compare settings and state."""
        with self._new_plan(round_):
            share(self.group, self.plan.list_constants(model), self._specs())
            compare_lines(self.group, self.description.lines(weights=False))

    def update_classes(self, round_: int) -> None:
        """Agree on the plan's present classes."""
        with self._new_plan(round_):
            self.group.agree(self._specs())

    def compare(self, round_: int) -> None:
        """Compare descriptions of settings, state and weights."""
        with self._new_plan(round_):
            compare_lines(self.group, self.description.lines())

    @contextlib.contextmanager
    def _new_plan(self, round_: int) -> Iterator[None]:
        if self.timeline is not None:
            self.timeline.finish()
        yield
        if self.timeline is not None:
            self.timeline.begin_plan(round_)

    def _specs(self) -> list[TensorSpec]:
        specs = [entry.spec for entry in self.plan.entries]
        return [*specs, self.check.spec(len(specs))] if self.check.is_active else specs


def _value(text: str | None) -> str:
    if text is None:
        return "missing"
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}..."
