# SPDX-License-Identifier: Apache-2.0
"""Whether all ranks train with the same settings: compared at the start, and again whenever a rank's settings change.

A small tensor travels with the rounds in which a rank's settings changed, a checkpoint was loaded, or ``state_dict()``
was called on some rank. Its mean equals a rank's own values if all ranks sent the same. So no rank waits for a
comparison alone, and rank 0 may call ``state_dict()`` by itself. Only where the mean differs do all ranks, which all
see it, exchange their settings in words.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from foresee.errors import ConfigError
from foresee.torch._exchange import Exchange, TensorSpec, as_tensor
from foresee.torch.gradients import _settings
from foresee.torch.gradients._random import SEEDS, state

if TYPE_CHECKING:
    from foresee.torch.gradients._optimizers import Stepper
    from foresee.torch.gradients._plan import Plan
    from foresee.torch.gradients._settings import Line

__all__ = ["DIFFERS", "Agreement", "compare"]

NAME = "settings of the optimizers"
#: Where there is no time to say what.
DIFFERS = (
    "settings or state of the optimizers differ between ranks, so weights would drift apart; set and load the same on "
    "every rank"
)
# Whether this rank's settings changed, whether it asks all to compare their state, and a digest in four numbers.
_NUMBERS = 6
_HEADER = struct.Struct("<16sQ")
# Longer values are cut in messages.
_VALUE_MAX = 60


def compare(exchange: Exchange, lines: Sequence[Line]) -> None:
    """Compare what ranks describe. Collective, with nothing in flight.

    Raises:
        ConfigError: two ranks differ; the message names the first difference, both values and both ranks.
    """
    if exchange.world == 1:
        return
    own = _settings.encoded(lines)
    header = _HEADER.pack(_settings.digest(lines), len(own))
    heads = exchange.gather(header, dict.fromkeys(range(exchange.world), _HEADER.size))
    first = min(heads)
    other = next((rank for rank in sorted(heads) if heads[rank] != heads[first]), None)
    if other is None:
        return
    texts = exchange.gather(own, {rank: _HEADER.unpack(heads[rank])[1] for rank in (first, other)})
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
        arguments: of ``synchronize``, that have to be equal.
    """

    def __init__(self, steppers: Sequence[Stepper], plan: Plan, arguments: Mapping[str, object]) -> None:
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
        return {f"steps of optimizers[{one.number}]": one.steps for one in self._steppers if several}


class Agreement:
    """This rank's part in the comparisons of a run.

    Args:
        exchange: of more than one rank, or nothing is compared.
        described: what is compared.
    """

    def __init__(self, exchange: Exchange, described: Described) -> None:
        self.active = exchange.world > 1
        self.pending = False
        """Whether the tensor of the last round has not been looked at."""
        self._exchange = exchange
        self._described = described
        self._last = described.fingerprint() if self.active else ""
        self._asks = self._asked = False
        self._loaded = False
        self._sent = torch.zeros(_NUMBERS, dtype=torch.float64)
        self._id = -1

    def spec(self, id_: int) -> TensorSpec:
        """The tensor, at this position of the plan."""
        self._id = id_
        return TensorSpec(id_, NAME, "gradient", torch.float64, (_NUMBERS,), (1,), _NUMBERS * 8, 0)

    def ask(self) -> None:
        """Have all ranks compare settings, state and weights, with the round after the next."""
        self._asks = self.active

    def loaded(self) -> None:
        """State or weights were replaced on this rank: all ranks have to have done the same."""
        self._loaded = self.active

    def push(self) -> list[int]:
        """At the end of a round: send what has changed. Returns what is absent from the round."""
        if not self.active:
            return []
        text = self._described.fingerprint()
        whole = self._loaded or self._asked
        changed = whole or text != self._last
        digest = _settings.digest(self._described.lines()) if whole else _settings.digest([("", text, "")])
        numbers = struct.unpack("<4I", digest)
        # The exchange keeps what was pushed: a tensor of its own for each round.
        self._sent = torch.tensor(
            [float(changed), float(self._asks), *map(float, numbers)], dtype=torch.float64
        )
        pushes = changed or self._asks
        if pushes:
            sent = self._sent.clone() if changed else self._sent * torch.tensor([0.0, 1, 0, 0, 0, 0]).double()
            self._exchange.push(self._id, sent.data_ptr(), _NUMBERS * 8, sent)
        self._last = text
        self._asks = self._asked = self._loaded = False
        self.pending = True
        return [] if pushes else [self._id]

    def differs(self, wait: Callable[[Sequence[int]], None]) -> bool:
        """Wait for the tensor of the last round; whether ranks seem to differ, which all of them see alike."""
        wait([self._id])
        self.pending = False
        if not self._exchange.used(self._id):
            return False
        mean = as_tensor(self._exchange.received(self._id), self.spec(self._id))
        self._asked = bool(mean[1] > 0)
        if mean[0] == 0:
            return False
        return bool(mean[0] != 1 or (mean[2:] != self._sent[2:]).any())


def _value(text: str | None) -> str:
    if text is None:
        return "missing"
    return text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}..."
