# SPDX-License-Identifier: Apache-2.0
"""Plans: the order of a loader, which is known for the whole run, or drawn by torch in each epoch.

A plan returns the samples of each epoch. It draws from torch's generators exactly what torch's ``DataLoader`` draws, at
the same points, so that a script's other random numbers do not change. Torch's own samplers do the drawing.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler

from foresee._loading.map_source import MapSource
from foresee._loading.orders import EpochSamples, RunOrder
from foresee._loading.progress import Place, Progress
from foresee.errors import ConfigError, StateMismatch

if TYPE_CHECKING:
    from foresee._loading.data_source import Source
    from foresee._runtime.ranks import World

Samples: TypeAlias = Sampler[int] | Iterable[int]
Batches: TypeAlias = Sampler[list[int]] | Iterable[list[int]]


def draw_seed(generator: torch.Generator | None) -> int:
    """Draw the 63 bits that torch's loader and ``RandomSampler`` draw; None: from the global generator."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


class Plan(ABC):
    """Order of one loader; ``order`` is set if it is known for the whole run."""

    order: RunOrder | None = None
    counts_batches = False
    """Whether a state's position counts batches, not samples."""
    repeats = False
    """Whether an iterator that returned no batch, or one of several, does not count: if it draws nothing."""

    def __init__(self, generator: torch.Generator | None) -> None:
        self._generator = generator
        self._base_seed: int | None = None

    @property
    def base_seed(self) -> int:
        """Seed that was drawn for this epoch, as by torch's loader for its workers."""
        return 0 if self._base_seed is None else self._base_seed

    @property
    def seed(self) -> int:
        """Seed of this epoch's random transforms."""
        return self.base_seed if self.order is None else self.order.seed

    def before_iter(self, progress: Progress) -> None:
        """Set the next epoch's number from a sampler."""

    def before_start(self, progress: Progress) -> None:
        """Set the epoch's number from a sampler, when its first batch is requested."""

    def set_epoch(self, epoch: int) -> None:
        """Take over the next epoch's number from the user."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the order's fields of a state."""

    def draw(self, *, is_begun: bool) -> Mapping[str, Any] | None:
        """Return the epoch's random numbers for a state; ``is_begun``: whether they were drawn."""
        return None

    def load(self, place: Place, draw: Mapping[str, Any] | None) -> None:
        """Continue at ``place`` of a saved state with the next ``open``; ``draw``: random numbers of the state.

        Raises:
            StateMismatch: ``draw`` is missing or damaged.
        """

    def open(self, place: Place, *, base: bool) -> None:
        """Begin an epoch: draw what torch's loader draws at ``iter()``.

        ``base``: whether torch's loader would draw a ``base_seed`` (with persistent workers only the first time).
        """
        if base:
            self._base_seed = draw_seed(self._generator)

    def draw_order(self, place: Place) -> EpochSamples | None:
        """Return this rank's samples from ``place`` on, or None if ``order`` has them.

        Draws what torch's loader draws at its first ``next``.
        """
        return None

    def advance_sampler(self, batches: int) -> None:
        """Draw what torch's batch sampler draws for the first ``batches`` batches of the epoch."""


class RunPlan(Plan):
    """``seed=``, ``shuffle=False``, ``order="keyed"``."""

    repeats = True

    def __init__(self, order: RunOrder, generator: torch.Generator | None) -> None:
        super().__init__(generator)
        self.order: RunOrder = order

    def describe(self) -> dict[str, Any]:
        """Return all fields of the order."""
        return self.order.describe()


class DistributedPlan(RunPlan):
    """``sampler=DistributedSampler(...)``: its epoch is the sampler's, and repeats without ``set_epoch``."""

    repeats = False

    def __init__(
        self, sampler: DistributedSampler[Any], samples: int, generator: torch.Generator | None
    ) -> None:
        order = RunOrder(
            "torch.distributed",
            samples,
            seed=sampler.seed,
            shuffle=sampler.shuffle,
            drop_last=sampler.drop_last,
        )
        super().__init__(order, generator)
        self._sampler = sampler

    def before_iter(self, progress: Progress) -> None:
        """Take the sampler's epoch."""
        progress.follow_sampler(self._sampler.epoch)

    def before_start(self, progress: Progress) -> None:
        """Take the sampler's epoch again: torch calls the sampler at the first ``next``."""
        if progress.place.epoch != self._sampler.epoch:
            progress.follow_sampler(self._sampler.epoch)

    def load(self, place: Place, draw: Mapping[str, Any] | None) -> None:
        """Set the sampler's epoch to that of the state."""
        self._sampler.set_epoch(place.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the sampler's epoch."""
        self._sampler.set_epoch(epoch)


class RandomPlan(Plan):
    """``shuffle=True`` without seed, or a plain ``RandomSampler``: torch's order, known for one epoch."""

    def __init__(
        self,
        sampler: RandomSampler,
        samples: int,
        *,
        batch_size: int,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(generator)
        self._sampler = sampler
        self._samples = samples
        self._batch_size = batch_size
        self._exhausted_by = 0
        self._draw: dict[str, Any] | None = None
        self._resumed: tuple[Place, dict[str, Any]] | None = None
        self._rest: Iterator[int] = iter(())

    @property
    def _own_generator(self) -> torch.Generator | None:
        return self._sampler.generator  # type: ignore[no-any-return] # untyped in torch

    def describe(self) -> dict[str, Any]:
        """Return its kind; the random numbers are in ``draw``."""
        return {"name": "torch.random", "generator": self._own_generator is not None, "n": self._samples}

    def draw(self, *, is_begun: bool) -> Mapping[str, Any] | None:
        """Return the numbers of the permutation; before the epoch the same keys, as ``SamplerPlan.draw``."""
        if is_begun:
            return self._draw
        state = None if self._own_generator is None else _pack(self._own_generator.get_state())
        return {"base": True, "base_seed": None, "generator": state, "sampler_seed": None}

    def load(self, place: Place, draw: Mapping[str, Any] | None) -> None:
        """Store ``draw`` for the rest of its epoch; after an epoch's end, advance the generator."""
        self._resumed = None
        if draw is None:
            if place.position > 0 and not (place.finished and self._own_generator is None):
                raise StateMismatch(
                    "this state of a random order has no 'draw', without which its permutation is unknown; save and "
                    "load all fields of state_dict()"
                )
            return
        try:
            saved = {key: draw[key] for key in ("base", "base_seed", "generator", "sampler_seed")}
            if saved["generator"] is not None:
                _unpack(saved["generator"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateMismatch(f"damaged state: draw={draw!r}") from error
        self._resumed = place, saved
        if place.finished:
            self._skip()

    def set_epoch(self, epoch: int) -> None:
        """Skip the loaded epoch if another one is set."""
        if self._resumed is not None and self._resumed[0].epoch != epoch:
            self._skip()

    def open(self, place: Place, *, base: bool) -> None:
        """Save the generator's state, then draw the base seed, as torch's loader at ``iter()``."""
        self._rest = iter(())
        if place.finished:
            return
        if self._resumed is not None:
            resumed, draw = self._resumed
            if (resumed.epoch, resumed.position) == (place.epoch, place.position):
                self._resumed = None
                self._reopen(draw)
                return
            self._skip()
        state = None if self._own_generator is None else _pack(self._own_generator.get_state())
        super().open(place, base=base)
        self._draw = {"base": base, "base_seed": self.base_seed, "generator": state, "sampler_seed": None}

    def draw_order(self, place: Place) -> EpochSamples:
        """Draw the permutation, as torch's sampler at its first ``next``."""
        assert self._draw is not None, "open comes first"
        generator = self._own_generator
        if generator is None:
            if self._draw["sampler_seed"] is None:
                self._draw["sampler_seed"] = draw_seed(None)
            generator = torch.Generator()
            generator.manual_seed(self._draw["sampler_seed"])
        # Stopped right after the last index, torch's sampler has not drawn its final numbers.
        self._rest = iter(RandomSampler(range(self._samples), generator=generator))
        ids = np.fromiter(islice(self._rest, self._samples), dtype=np.int64, count=self._samples)
        rest = ids[place.position :]
        # Torch's BatchSampler exhausts its sampler in the request for the batch after the last full one, whether that
        # batch is short, dropped or empty.
        self._exhausted_by = len(rest) // self._batch_size + 1
        return EpochSamples(rest, None)

    def advance_sampler(self, batches: int) -> None:
        """Draw the final numbers where torch's sampler does."""
        if batches >= self._exhausted_by:
            next(self._rest, None)

    def _reopen(self, draw: dict[str, Any]) -> None:
        """Draw again what the epoch of ``draw`` drew at its ``iter()``."""
        generator = self._own_generator
        if generator is not None and draw["generator"] is not None:
            generator.set_state(_unpack(draw["generator"]))
        is_shared = generator is not None and self._generator is generator
        if draw["base"] and (draw["base_seed"] is None or is_shared):
            draw["base_seed"] = draw_seed(self._generator)
        self._base_seed, self._draw = draw["base_seed"], draw

    def _skip(self) -> None:
        """Advance the generator past the loaded epoch, by drawing all of it unless it had not begun."""
        assert self._resumed is not None, "a state was loaded"
        (place, draw), self._resumed = self._resumed, None
        if self._own_generator is None:
            return
        if draw["base_seed"] is None:
            self._own_generator.set_state(_unpack(draw["generator"]))
            return
        self._reopen(draw)
        self.draw_order(Place(place.epoch, 0))
        next(self._rest, None)


class SamplerPlan(Plan):
    """Any finite ``sampler=`` or ``batch_sampler=``; all its indices are taken when an epoch begins."""

    def __init__(
        self,
        batches: Batches,
        source: Source | MapSource,
        *,
        counts_batches: bool,
        generator: torch.Generator | None,
        world: World,
    ) -> None:
        super().__init__(generator)
        self._batches = batches
        self._source = source
        self._world = world
        self.counts_batches = counts_batches
        self._iterator: Iterator[list[int]] = iter(())
        self._resumed: tuple[Place, int] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of samplers that have ``set_epoch``."""
        for sampler in (self._batches, getattr(self._batches, "sampler", None)):
            set_epoch = getattr(sampler, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)

    def describe(self) -> dict[str, Any]:
        """Return its kind; the user saves the state of the sampler."""
        return {"name": "batch_sampler" if self.counts_batches else "sampler", "n": len(self._source)}

    def load(self, place: Place, draw: Mapping[str, Any] | None) -> None:
        """Set the sampler's epoch to that of the state, and store the base seed for the rest of it."""
        self._resumed = None
        needed = place.position > 0 and not place.finished and self._world.size == 1
        if needed or (draw is not None and draw.get("base_seed", 0) is not None):
            try:
                self._resumed = place, int((draw or {})["base_seed"])
            except (KeyError, TypeError, ValueError) as error:
                raise StateMismatch(
                    f"this state has draw={draw!r}, without which random transforms cannot be continued exactly; "
                    "save and load all fields of state_dict()"
                ) from error
        self.set_epoch(place.epoch)

    def open(self, place: Place, *, base: bool) -> None:
        """Call the sampler's ``iter()``, then draw the base seed, in the order of torch's loader."""
        self._iterator = iter(self._batches)
        super().open(place, base=base)
        resumed, self._resumed = self._resumed, None
        if resumed is not None and resumed[0] == place:
            self._base_seed = resumed[1]

    def draw(self, *, is_begun: bool) -> Mapping[str, Any] | None:
        """Return the base seed of random transforms; not on several ranks, whose states must be equal.

        Before the epoch the key has None, because ``torch.distributed.checkpoint`` loads only the keys that the state
        of a new loader has.
        """
        return {"base_seed": self.base_seed if is_begun else None} if self._world.size == 1 else None

    def draw_order(self, place: Place) -> EpochSamples:
        """Return all indices of the epoch."""
        batches = [list(batch) for batch in self._iterator]
        skipped = place.position if self.counts_batches else 0
        lengths = np.array([len(batch) for batch in batches[skipped:]], dtype=np.int64)
        if (lengths == 0).any():
            raise ConfigError("the batch sampler gave an empty batch; a batch has at least one sample")
        ids = self._source.ids([key for batch in batches[skipped:] for key in batch])
        if self.counts_batches:
            return EpochSamples(ids, lengths)
        return EpochSamples(ids[place.position // self._world.size :], None)


class RunSampler(DistributedSampler[int]):
    """``loader.sampler`` for an order of Foresee: this rank's indices of the next epoch.

    It is a ``DistributedSampler``, because Ray replaces any other sampler, and training scripts call ``set_epoch`` of
    no other.
    """

    def __init__(self, order: RunOrder, world: World, progress: Progress) -> None:
        data = range(order.n)  # only its length is used
        super().__init__(
            data,  # type: ignore[arg-type]
            world.size,
            world.rank,
            shuffle=order.shuffle,
            seed=order.seed,
            drop_last=order.drop_last,
        )
        self._order = order
        self._world = world
        self._progress = progress
        self._length = len(order.ids(0, 0, world))

    def __iter__(self) -> Iterator[int]:
        return iter(self._order.ids(self._progress.peek().epoch, 0, self._world).tolist())

    def __len__(self) -> int:
        return self._length

    @property
    def epoch(self) -> int:
        """Epoch of the next ``iter()``."""
        return self._progress.peek().epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        # The constructor of the base class sets 0.
        if hasattr(self, "_progress"):
            self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """As ``loader.set_epoch``, for frameworks."""
        self._progress.set_epoch(epoch)


def plan_of_sampler(
    sampler: Samples,
    batches: BatchSampler,
    source: Source | MapSource,
    world: World,
    generator: torch.Generator | None,
) -> Plan:
    """Return the plan of ``sampler=``."""
    samples = len(source)
    if (
        isinstance(sampler, DistributedSampler)
        and type(sampler) is DistributedSampler
        and _length(sampler.dataset) == samples
    ):
        return DistributedPlan(sampler, samples, generator)
    if world.size == 1 and _is_plain_random(sampler, samples):
        assert isinstance(sampler, RandomSampler)
        return RandomPlan(sampler, samples, batch_size=batches.batch_size, generator=generator)
    return SamplerPlan(batches, source, counts_batches=False, generator=generator, world=world)


def _is_plain_random(sampler: object, samples: int) -> bool:
    return (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == samples
        and _length(sampler.data_source) == samples
    )


def _length(sized: Any) -> int:
    return len(sized)


def _pack(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _unpack(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)
