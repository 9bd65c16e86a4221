# SPDX-License-Identifier: Apache-2.0
"""The samples of any step, computed from a saved state; and states that avoid samples.

An order is a function of its seed and epoch, or the state has the random numbers that were drawn, so neither a log nor
a loader is needed. A step is one batch of every rank, at the batch size and world size of the state.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from foresee import _native
from foresee._loading import avoided_samples, orders, saved_state
from foresee._loading.orders import RunOrder
from foresee._runtime.ranks import World
from foresee.errors import ConfigError, StateMismatch

if TYPE_CHECKING:
    from foresee._loading.batch import Ints


@dataclass(frozen=True, eq=False)
class RankStep:
    """The batch of one rank."""

    rank: int
    ids: Ints
    positions: Ints
    """Global positions; those at or past the data set's length are padding."""


@dataclass(frozen=True)
class Step:
    """One step of all ranks."""

    epoch: int
    step: int | None
    """From 0; None where the epoch was resumed between two global batches."""
    position: int
    """Samples of all ranks before it in its epoch."""
    ranks: tuple[RankStep, ...]


class StateSteps:
    """Steps of the run that saved ``state``.

    Raises:
        StateMismatch: ``state`` is no state, of a newer version, or damaged.
        ConfigError: the order cannot be computed from ``state``; the message has the reason.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        saved_state.check_shape(state)
        self._avoided = saved_state.avoided(state)
        self.epoch: int = state["epoch"]
        self.position: int = state["position"]
        self.finished: bool = state["finished"]
        self.world_size: int = max(1, state["world_size"])
        self.batch_size: int = state["batch_size"] or 1
        self.drop_last: bool = state["drop_last"]
        self.fingerprint: str = state["fingerprint"]
        self._order, self._drawn = _order_of(state)

    @property
    def name(self) -> str:
        return self._order.name if self._drawn is None else "torch.random"

    @property
    def samples(self) -> int:
        return self._order.n

    @property
    def _global_batch(self) -> int:
        return self.batch_size * self.world_size

    def at_step(self, step: int, epoch: int | None = None) -> Step:
        """Return step ``step`` of ``epoch`` (None: the state's), both from 0.

        Raises:
            ConfigError: the epoch has fewer steps, or was resumed between two global batches.
        """
        chosen = self.epoch if epoch is None else epoch
        if chosen < 0:
            raise ConfigError(f"epoch {chosen}; epochs go from 0")
        is_even = self.position % self._global_batch == 0 or self.position >= self.samples or self.finished
        if chosen == self.epoch and not is_even:
            raise ConfigError(
                f"the state stands at position {self.position} of epoch {self.epoch}, which is no multiple of its "
                f"global batch ({self.batch_size} x {self.world_size} ranks): the epoch was begun at another batch or "
                "world size, so its steps cannot be counted from its start; count from the state with --ahead K"
            )
        steps = self._steps(0)
        if not 0 <= step < steps:
            raise ConfigError(
                f"step {step}; epoch {chosen} has {steps} steps of {self.batch_size} x {self.world_size} samples, "
                "from 0"
            )
        return self._step(chosen, 0, step)

    def ahead(self, count: int) -> Step:
        """Return the step that follows ``count`` steps after the state; 0 is the next one of a resumed loader.

        Negative: steps before the state in its epoch, -1 being the last one that was returned.

        Raises:
            ConfigError: the step is before the epoch's start, or in an unknown epoch.
        """
        if count < 0:
            return self._behind(count)
        epoch, start = (self.epoch + 1, 0) if self.finished else (self.epoch, self.position)
        left = self._steps(start)
        if count < left:
            return self._step(epoch, start, count)
        whole = self._steps(0)
        if whole == 0:
            raise ConfigError("an epoch of this order has no step: the batch is larger than the data set")
        epochs, step = divmod(count - left, whole)
        return self._step(epoch + 1 + epochs, 0, step)

    def _behind(self, count: int) -> Step:
        rest = self.position % self._global_batch
        ended = self.finished or self.position >= self.samples
        # The last batches of an ended epoch may be short, or padded; all other steps are whole.
        last = self.position - (rest if ended and rest else self._global_batch)
        position = last + (count + 1) * self._global_batch
        if position < 0:
            before = -(-self.position // self._global_batch) if ended else self.position // self._global_batch
            raise ConfigError(
                f"--ahead {count}: epoch {self.epoch} has {before} whole steps before the state; for earlier epochs "
                "use --step with --epoch"
            )
        return self._step(self.epoch, position, 0)

    def _steps(self, start: int) -> int:
        return self._order.steps(start, self.world_size, self.batch_size, drop_last=self.drop_last)

    def _step(self, epoch: int, start: int, step: int) -> Step:
        """Return step ``step`` of ``epoch``, counted from position ``start``."""
        first = step * self.batch_size
        count = min(self.batch_size, self._order.samples_per_rank(start, self.world_size) - first)
        position = start + first * self.world_size
        ranks = []
        whole = self._ids(epoch, position + np.arange(count * self.world_size, dtype=np.int64))
        for rank in range(self.world_size):
            world = World(rank, self.world_size)
            where = orders.positions(start, first, count, world)
            ranks.append(RankStep(rank, whole[rank :: self.world_size], where))
        number = None if position % self._global_batch else position // self._global_batch
        return Step(epoch, number, position, tuple(ranks))

    def _ids(self, epoch: int, positions: Ints) -> Ints:
        """Return the samples at ``positions``, with the substitutes in effect there."""
        if self._drawn is None:
            ids = self._order.at(epoch, positions)
        elif epoch == self.epoch:
            ids = self._drawn[positions]
        else:
            raise ConfigError(
                f"epoch {epoch}: an order of torch.random is drawn when its epoch begins, so this state knows epoch "
                f"{self.epoch} alone; give the loader seed= and every epoch is known"
            )
        result: Ints = ids.copy()
        seed = 0 if self._drawn is not None else self._order.native["seed"]
        entries = [
            sum((entry.epoch, entry.position) <= (epoch, position) for entry in self._avoided)
            for position in positions.tolist()
        ]
        for in_effect in set(entries):
            mask = np.array(entries) == in_effect
            avoid = avoided_samples.before(self._avoided, epoch, int(positions[mask][0]))
            result[mask] = avoided_samples.substituted(
                ids[mask], avoid, samples=self.samples, seed=seed, epoch=epoch
            )
        return result


def avoiding(state: Mapping[str, Any], ids: Iterable[int]) -> dict[str, Any]:
    """Return ``state`` with ``ids`` avoided from its position on.

    Raises:
        StateMismatch: ``state`` is no state, of a newer version, or damaged.
        ConfigError: an id is unknown, repeated or avoided before, or no sample is left; all faults.
    """
    saved_state.check_shape(state)
    avoided, chosen = saved_state.avoided(state), list(ids)
    samples = state["order"].get("n")
    if not isinstance(samples, int):
        raise ConfigError(f"the state's order {state['order']!r} has no number of samples")
    if not chosen:
        raise ConfigError("no samples to avoid; give ids such as --avoid 17,23")
    avoided_before, faults = set(avoided_samples.union(avoided)), []
    for sample, times in sorted(Counter(chosen).items()):
        if not 0 <= sample < samples:
            faults.append(f"sample {sample} is not in the data set; ids go from 0 to {samples - 1}")
        elif times > 1:
            faults.append(f"sample {sample} is given twice")
        elif sample in avoided_before:
            faults.append(f"sample {sample} is avoided by this state already; leave it out")
    if not faults and len(avoided_before) + len(chosen) >= samples:
        faults.append(f"all {samples} samples are to be avoided; avoid fewer")
    if faults:
        raise ConfigError(faults)
    epoch, position = (state["epoch"] + 1, 0) if state["finished"] else (state["epoch"], state["position"])
    entries = (*avoided, avoided_samples.Avoided(epoch, position, tuple(sorted(chosen))))
    return {**state, "foresee": saved_state.VERSION, "avoid": [entry.to_state() for entry in entries]}


def _order_of(state: Mapping[str, Any]) -> tuple[RunOrder, Ints | None]:
    """Return the order of ``state``; with the permutation of its epoch if no other one is known."""
    fields = state["order"]
    name, samples = fields.get("name"), fields.get("n")
    if not isinstance(samples, int) or samples < 1:
        raise StateMismatch(f"damaged state: order={dict(fields)!r}")
    if name in ("torch.distributed", "keyed-1"):
        seed = fields.get("seed")
        if not isinstance(seed, int):
            raise StateMismatch(f"damaged state: order={dict(fields)!r}")
        shuffle, drop_last = bool(fields.get("shuffle", True)), bool(fields.get("drop_last", False))
        return RunOrder(name, samples, seed=seed % 2**64, shuffle=shuffle, drop_last=drop_last), None
    if name == "torch.random":
        return orders.sequential(samples), _permutation(samples, state.get("draw"))
    if name in ("sampler", "batch_sampler"):
        raise ConfigError(
            f"the order of this state is a {name}= of the training script, whose samples only the script knows; "
            "use seed= (or sampler=DistributedSampler) in the loader, whose steps follow from the state"
        )
    raise ConfigError(f"the order {name!r} of this state is unknown to this Foresee; install a newer one")


def _permutation(samples: int, draw: object) -> Ints:
    """Return the permutation whose random numbers are in ``draw``, as ``foresee.torch`` writes it."""
    if not isinstance(draw, Mapping) or (draw.get("base_seed") is None and draw.get("sampler_seed") is None):
        raise ConfigError(
            "this state of a torch.random order was saved before its epoch drew its numbers, or without 'draw'; use a "
            "state saved after the epoch's first batch"
        )
    try:
        if draw["generator"] is None:
            if draw["sampler_seed"] is None:
                raise ConfigError(
                    "this state of a torch.random order was saved before its epoch's first batch, which draws the "
                    "order; use a later state"
                )
            return _native.order_randperm(samples, draw["sampler_seed"]).astype(np.int64)
        generator = base64.b64decode(draw["generator"], validate=True)
        if draw["base"]:
            # The loader draws a seed before its sampler does, from the same generator or from another one.
            [(seed, ids)], _ = _native.order_loader(samples, generator, [1], batch_size=samples)
            if seed == draw["base_seed"]:
                return ids.astype(np.int64)
        return _native.order_random(samples, generator, count=samples)[0].astype(np.int64)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise StateMismatch(f"damaged state: draw={draw!r}") from error
