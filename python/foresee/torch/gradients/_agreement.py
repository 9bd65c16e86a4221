# SPDX-License-Identifier: Apache-2.0
"""What all ranks have to have alike: the plan, the values at the start, and the settings that they train with.

Settings are compared at the start, and again whenever a rank's settings change: a small tensor travels with the rounds
in which they changed, a checkpoint was loaded, or ``state_dict()`` was called on some rank. Its mean equals a rank's
own values if all ranks sent the same, so no rank waits for a comparison alone, and rank 0 may call ``state_dict()`` by
itself. Only where the mean differs, which all ranks see, do they exchange their settings in words.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from foresee.errors import ConfigError
from foresee.torch._exchange import GradientExchange, TensorSpec, as_tensor
from foresee.torch.gradients import _settings
from foresee.torch.gradients._initial import share
from foresee.torch.gradients._random import SEEDS, state

if TYPE_CHECKING:
    from foresee.torch._rank_group import RankGroup
    from foresee.torch.gradients._buffers import Buffers
    from foresee.torch.gradients._optimizers import Stepper
    from foresee.torch.gradients._plan import Entry, Plan
    from foresee.torch.gradients._round_state import RoundState
    from foresee.torch.gradients._settings import Line
    from foresee.torch.gradients._timeline import Timeline
    from foresee.torch.gradients._transfer import Transfer

__all__ = ["DIFFERS", "Described", "PlanAgreement", "SettingsCheck", "compare"]

NAME = "settings of the optimizers"
#: Where the settings cannot be exchanged in words.
DIFFERS = (
    "settings or state of the optimizers differ between ranks, so weights would drift apart; set and load the same on "
    "every rank"
)
# Whether this rank's settings changed, whether it asks all to compare their state, and a digest in four numbers.
_NUMBERS = 6
_HEADER = struct.Struct("<16sQ")
# Longer values are cut in messages.
_VALUE_MAX = 60


def compare(group: RankGroup, lines: Sequence[Line]) -> None:
    """Compare what ranks describe. Collective, with nothing in flight.

    Raises:
        ConfigError: two ranks differ; the message names the first difference, both values and both ranks.
    """
    world = group.exchange.world
    if world == 1:
        return
    own = _settings.encoded(lines)
    header = _HEADER.pack(_settings.digest(lines), len(own))
    heads = group.gather(header, dict.fromkeys(range(world), _HEADER.size))
    first = min(heads)
    other = next((rank for rank in sorted(heads) if heads[rank] != heads[first]), None)
    if other is None:
        return
    texts = group.gather(own, {rank: _HEADER.unpack(heads[rank])[1] for rank in (first, other)})
    found = _settings.first_difference(texts[first], texts[other])
    if found is None:
        return
    what, mine, theirs, remedy = found
    raise ConfigError(
        f"{what} is {_value(mine)} on rank {first} and {_value(theirs)} on rank {other}, {remedy}"
    )


class Described:
    """What this rank trains with, in words.

    Args:
        steppers: the optimizers.
        plan: names of parameters.
        rounds: how often each optimizer was stepped.
        arguments: of ``synchronize``, that have to be equal.
    """

    def __init__(
        self,
        steppers: Sequence[Stepper],
        plan: Plan,
        rounds: RoundState[Entry],
        arguments: Mapping[str, object],
    ) -> None:
        self._rounds = rounds
        self._steppers = steppers
        self._optimizers = [one.optimizer for one in steppers]
        self._plan = plan
        self._arguments = arguments

    def fingerprint(self) -> str:
        """A text that changes with the settings; cheap."""
        counts, drawn = list(self._counts().values()), [line[1] for line in self._generators()]
        return f"{_settings.fingerprint(self._optimizers)} {counts} {drawn}"

    def lines(self, *, weights: bool = True) -> list[Line]:
        """Settings, state and weights; reads all of them."""
        some = [entry.tensor for entry in self._plan.gradients] if weights else []
        state = _settings.state_lines(self._optimizers, self._plan.names, some)
        settings = _settings.described(self._optimizers, self._arguments, self._counts())
        # A script may seed later than it synchronizes.
        return (self._generators() if weights else []) + settings + state

    def _generators(self) -> list[Line]:
        """States of the random generators that optimizers draw from. Their next step draws from these."""
        lines = []
        for stepper in self._steppers:
            devices = sorted({entry.tensor.device for entry in stepper.entries}, key=str)
            for name in stepper.drawn:
                remedy = (
                    f"so {stepper.base.__name__}, which draws from it in step(), would update weights differently; "
                    f"seed it alike on every rank with {SEEDS[name]}, and draw what differs between ranks from "
                    "another generator"
                )
                what = f"the state of the random generator of {name}"
                lines.append((what, state(name, devices), remedy))
        return lines

    def _counts(self) -> dict[str, int]:
        several = len(self._steppers) > 1
        return {
            f"steps of optimizers[{number}]": steps
            for number, steps in enumerate(self._rounds.steps)
            if several
        }


class SettingsCheck:
    """This rank's part in the comparisons of a run.

    Args:
        exchange: of more than one rank, or nothing is compared.
        described: what is compared.
    """

    def __init__(self, exchange: GradientExchange, described: Described) -> None:
        self.active = exchange.world > 1
        self.pending = False
        """Whether the tensor of the last round has not been compared."""
        self._exchange = exchange
        self._described = described
        self._last = described.fingerprint() if self.active else ""
        self._is_requesting = self._is_requested = False
        self._is_loaded = False
        self._sent = torch.zeros(_NUMBERS, dtype=torch.float64)
        self._id = -1

    def spec(self, id_: int) -> TensorSpec:
        """The tensor, at this position of the plan."""
        self._id = id_
        return TensorSpec(id_, NAME, "gradient", torch.float64, (_NUMBERS,), (1,), _NUMBERS * 8, 0)

    def request(self) -> None:
        """Have all ranks compare settings, state and weights, with the round after the next."""
        self._is_requesting = self.active

    def record_load(self) -> None:
        """State or weights were replaced on this rank: all ranks have to have done the same."""
        self._is_loaded = self.active

    def push(self) -> None:
        """At the end of a round: push what has changed."""
        if not self.active:
            return
        text = self._described.fingerprint()
        whole = self._is_loaded or self._is_requested
        changed = whole or text != self._last
        digest = _settings.digest(self._described.lines()) if whole else _settings.digest([("", text, "")])
        numbers = struct.unpack("<4I", digest)
        # The exchange retains what was pushed: a tensor of its own for each round.
        self._sent = torch.tensor(
            [float(changed), float(self._is_requesting), *map(float, numbers)], dtype=torch.float64
        )
        if changed or self._is_requesting:
            sent = self._sent.clone() if changed else self._sent * torch.tensor([0.0, 1, 0, 0, 0, 0]).double()
            self._exchange.push(self._id, sent.data_ptr(), _NUMBERS * 8, sent)
        self._last = text
        self._is_requesting = self._is_requested = self._is_loaded = False
        self.pending = True

    def differs(self, wait: Callable[[Sequence[int]], None]) -> bool:
        """Wait for the tensor of the last round; whether ranks seem to differ, which all of them see alike."""
        wait([self._id])
        self.pending = False
        if not self._exchange.used(self._id):
            return False
        mean = as_tensor(self._exchange.received(self._id), self.spec(self._id))
        self._is_requested = bool(mean[1] > 0)
        if mean[0] == 0:
            return False
        return bool(mean[0] != 1 or (mean[2:] != self._sent[2:]).any())


class PlanAgreement:
    """The agreements of a group on plan, values and settings. Collective, with nothing in flight.

    Args:
        group: all ranks.
        plan: this rank's.
        transfer: of the tensors in the plan.
        buffers: the same in every rank after an agreement.
        described: the settings.
        timeline: has to know of new plans; None: there is none.
    """

    def __init__(
        self,
        group: RankGroup,
        plan: Plan,
        transfer: Transfer,
        buffers: Buffers,
        described: Described,
        timeline: Timeline | None,
    ) -> None:
        self.check = SettingsCheck(group.exchange, described)
        self._group = group
        self._plan = plan
        self._transfer = transfer
        self._buffers = buffers
        self._described = described
        self._timeline = timeline

    def adopt(self, entries: Sequence[Entry], round_: int) -> None:
        """Agree on the plan, which begins with ``round_``, and copy rank 0's values of ``entries``."""
        with self._new_plan(round_):
            self._group.agree(self._specs())
            with self._transfer.on_host([(entry.spec, entry.tensor) for entry in entries]) as tensors:
                self._group.broadcast(tensors)
        for entry in entries:
            # The exchange wrote behind torch's back; autograd must not trust what it saved of the old values.
            torch.autograd.graph.increment_version(entry.tensor)
            if entry.is_buffer:
                self._buffers.adopt(entry)

    def share(self, model: torch.nn.Module, round_: int) -> None:
        """Copy rank 0's values of what no round carries, and compare settings and state."""
        with self._new_plan(round_):
            share(self._group, self._plan.constant(model), self._specs())
            compare(self._group, self._described.lines(weights=False))

    def update_classes(self, round_: int) -> None:
        """Agree on the plan with its present classes."""
        with self._new_plan(round_):
            self._group.agree(self._specs())

    def compare(self, round_: int) -> None:
        """Compare settings, state and weights in words."""
        with self._new_plan(round_):
            compare(self._group, self._described.lines())

    @contextlib.contextmanager
    def _new_plan(self, round_: int) -> Iterator[None]:
        if self._timeline is not None:
            self._timeline.finish()
        yield
        if self._timeline is not None:
            self._timeline.begin_plan(round_)

    def _specs(self) -> list[TensorSpec]:
        specs = self._plan.specs
        return [*specs, self.check.spec(len(specs))] if self.check.active else specs


def _value(text: str | None) -> str:
    if text is None:
        return "missing"
    return text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}..."
