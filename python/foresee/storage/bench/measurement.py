# SPDX-License-Identifier: Apache-2.0
"""The measurement itself: the process, the order, the place and the run folder of each file that is read.

With the global shuffle all files are shuffled in every epoch and sharded among the ranks, as torch's
``DistributedSampler`` does; with the local one each rank shuffles its own shard. The cache is filled before and never
changes, as the paper's (pinning), so its rate is its hit rate. Files that it holds at one rate it holds at every higher
one, and it holds the same share of each rank's shard.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from foresee import _native
from foresee.storage.bench.files import cold, made, path
from foresee.storage.bench.loop import Device, Group, attached
from foresee.storage.bench.plan import BenchRequest, Files, Origin
from foresee.storage.bench.rank import Task
from foresee.storage.bench.ranks import Ranks
from foresee.storage.bench.throttle import Throttle

__all__ = ["Case", "Measured", "cases", "measure", "order", "parts", "taken"]

#: Differs from every epoch's seed: the cached files do not depend on an order.
_PARTS_SEED = 1 << 40
_LOCAL_SEED = 1 << 41


@dataclass(frozen=True)
class Case:
    """One line of a figure: a data set on one origin at one speed, shuffled in one way."""

    name: str
    files: Files
    origin: Origin
    throttle: Throttle
    shuffle: str


@dataclass(frozen=True)
class Measured:
    """One cache rate of a case."""

    case: Case
    rate: float
    cached: int
    """Files that the cache has."""
    folder: str
    """The run folder."""
    seconds: tuple[float, ...]
    """By epoch: from the first process's begin to the last one's end."""
    in_memory: tuple[float | None, float | None]
    """Of the origin's and of the cache's bytes the largest share that was in memory before an epoch; None: unknown."""


def cases(wanted: BenchRequest) -> list[Case]:
    """All cases, in the order in which they are measured."""
    found = []
    for files in wanted.files:
        for origin in wanted.origins:
            for speed, throttle in wanted.throttles:
                place = [origin.name] if len(wanted.origins) > 1 or not speed else []
                for shuffle in wanted.shuffles:
                    name = "-".join([files.name, *place, *([speed] if speed else []), shuffle])
                    found.append(Case(name, files, origin, throttle, shuffle))
    return found


def taken(count: int, seed: int) -> NDArray[np.int64]:
    """All files, in the order in which a growing cache takes them."""
    return _native.order_randperm(count, _PARTS_SEED + seed).astype(np.int64)


def parts(count: int, ranks: int, seed: int) -> list[NDArray[np.int64]]:
    """Each rank's part under the local shuffle: dealt as the cache takes files, which so has its share of each."""
    whole = taken(count, seed)
    return [whole[rank::ranks] for rank in range(ranks)]


def order(shuffle: str, count: int, ranks: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """The files that each rank reads in an epoch: each file once, by one of them."""
    if shuffle == "global":
        dealt = _native.order_randperm(count, seed + epoch).astype(np.int64)
        return [dealt[rank::ranks] for rank in range(ranks)]
    return [
        part[_native.order_randperm(len(part), _LOCAL_SEED + ranks * (seed + epoch) + rank)]
        for rank, part in enumerate(parts(count, ranks, seed))
    ]


def measure(wanted: BenchRequest, folder: str, tell: Callable[[str], None]) -> Iterator[Measured]:
    """Measure rate after rate; run folders go below ``folder``, files are removed when this ends in whichever way.

    Args:
        wanted: what to measure.
        folder: of the results; must exist.
        tell: called with what is done next.

    Raises:
        ConfigError: a folder cannot be written to.
        OSError: a file cannot be written or read, ``OriginError`` and ``CacheError`` among them.
        WorkerDied: a process of the measurement is gone.
    """
    todo = cases(wanted)
    with ExitStack() as whole:
        group = whole.enter_context(Group()) if wanted.throttle_by == "kernel" else None
        ranks = whole.enter_context(Ranks(wanted.processes))
        if group is not None:
            group.enter(ranks.pids)
        for files in wanted.files:
            filled = taken(files.count, wanted.seed)
            with _laid_out(wanted, files, filled, (ranks, group), tell) as (places, cache):
                for case in todo:
                    if case.files is not files:
                        continue
                    place = places[wanted.origins.index(case.origin)]
                    if group is not None and place.device is not None:
                        group.limit(place.device.numbers, case.throttle)
                    for rate in wanted.rates:
                        said = f"case {todo.index(case) + 1} of {len(todo)} ({case.name}), rate {rate:g}"
                        run = _Run(case, rate, filled, place, cache, _run_folder(folder, case, rate))
                        yield run.measured(wanted, ranks, partial(_tell, tell, said))


def _run_folder(folder: str, case: Case, rate: float) -> str:
    return os.path.join(folder, case.name, f"{rate:g}")


def _tell(tell: Callable[[str], None], where: str, what: str) -> None:
    tell(f"{where}, {what}")


@dataclass(frozen=True)
class _Place:
    """The current place of an origin's files."""

    folder: str
    device: Device | None
    """Its device, if the kernel throttles it."""


@contextmanager
def _laid_out(
    wanted: BenchRequest,
    files: Files,
    filled: NDArray[np.int64],
    readers: tuple[Ranks, Group | None],
    tell: Callable[[str], None],
) -> Iterator[tuple[list[_Place], str]]:
    """The files of a data set at every origin, and in the cache as many as the highest rate has."""
    with ExitStack() as stack:
        where = [origin.folder for origin in wanted.origins]
        devices: list[Device | None] = [None] * len(where)
        if wanted.throttle_by == "kernel":
            made_here = [stack.enter_context(attached(one, files.bytes, files.count)) for one in where]
            where, devices = [device.folder for device in made_here], [*made_here]
        most = filled[: round(max(wanted.rates) * files.count)].tolist()
        numbers = [*([list(range(files.count))] * len(where)), most]
        *homes, cache = stack.enter_context(made([*where, wanted.cache], numbers, files.size, tell))
        try:
            yield [_Place(*each) for each in zip(homes, devices, strict=True)], cache
        except BaseException:
            # No process may read the files, or keep their device busy, while they are removed; and a process that waits
            # for the kernel's throttle cannot be ended before.
            ranks, group = readers
            for device in devices:
                if group is not None and device is not None:
                    group.limit(device.numbers, Throttle())
            ranks.close()
            raise


@dataclass(frozen=True, eq=False)
class _Run:
    """One cache rate that is being measured."""

    case: Case
    rate: float
    taken: NDArray[np.int64]
    origin: _Place
    cache: str
    folder: str

    def measured(self, wanted: BenchRequest, ranks: Ranks, tell: Callable[[str], None]) -> Measured:
        """All epochs."""
        count = self.case.files.count
        held = round(self.rate * count)
        cached = np.zeros(count, np.bool_)
        cached[self.taken[:held]] = True
        os.makedirs(self.folder)
        clock = time.monotonic_ns()
        seconds = []
        shares: list[tuple[float | None, float | None]] = []
        for epoch in range(wanted.epochs):
            tell(f"epoch {epoch + 1} of {wanted.epochs}")
            shares.append(self._cold(cached, drop=wanted.drop_caches))
            orders = order(self.case.shuffle, count, wanted.processes, wanted.seed, epoch)
            tasks = [
                Task(
                    run=self.folder,
                    clock_ns=clock,
                    epoch=epoch,
                    order=each,
                    cached=cached,
                    origin=self.origin.folder,
                    cache=self.cache,
                    size=self.case.files.size,
                    throttle=self.case.throttle if self.origin.device is None else Throttle(),
                )
                for each in orders
            ]
            seconds.append(ranks.epoch(tasks))
        ranks.end_run()
        most = tuple(
            max((share for share in each if share is not None), default=None)
            for each in zip(*shares, strict=True)
        )
        return Measured(self.case, self.rate, held, self.folder, tuple(seconds), (most[0], most[1]))

    def _cold(self, cached: NDArray[np.bool_], *, drop: bool) -> tuple[float | None, float | None]:
        """Shares of the files to be read that stay in memory."""
        if self.origin.device is not None:
            cold([self.origin.device.image], machine=False)
        origin = [path(self.origin.folder, number) for number in np.flatnonzero(~cached).tolist()]
        cache = [path(self.cache, number) for number in np.flatnonzero(cached).tolist()]
        return (
            cold(origin, machine=drop) if origin else None,
            cold(cache, machine=drop and not origin) if cache else None,
        )
