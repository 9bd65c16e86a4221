# SPDX-License-Identifier: Apache-2.0
"""The measurement: which process reads which file from which place, in which order.

With the global shuffle all files are shuffled in every epoch and sharded among the ranks, as torch's
``DistributedSampler`` does; with the local one each rank shuffles its own shard. The cache is filled before and never
changes, as the paper's (pinning), so its rate is its hit rate. A higher rate adds files to those of a lower one, and
each rank's shard has the same cached share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foresee import _native
from foresee.storage.bench.files import create_files, evict_files, file_path
from foresee.storage.bench.loop import ControlGroup, LoopDevice, attach_device
from foresee.storage.bench.plan import BenchRequest, Files, Origin
from foresee.storage.bench.rank import Task
from foresee.storage.bench.ranks import Ranks
from foresee.storage.bench.throttle import Throttle

__all__ = ["Case", "RateResult", "cache_order", "cases", "measure", "rank_orders", "rank_shares"]

#: Differs from every epoch's seed: the cached files do not depend on an order.
_CACHE_SEED = 1 << 40
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
class RateResult:
    """One cache rate of a case."""

    case: Case
    rate: float
    cached: int
    """Files in the cache."""
    folder: str
    """The run folder."""
    seconds: tuple[float, ...]
    """By epoch: from the begin of the first process to the end of the last one."""
    in_memory: tuple[float | None, float | None]
    """Largest share of the origin's and the cache's bytes that was in memory before an epoch; None: unknown."""


def cases(request: BenchRequest) -> list[Case]:
    """Return all cases in the order of the measurement."""
    found = []
    for files in request.files:
        for origin in request.origins:
            for speed, throttle in request.throttles:
                place = [origin.name] if len(request.origins) > 1 or not speed else []
                for shuffle in request.shuffles:
                    name = "-".join([files.name, *place, *([speed] if speed else []), shuffle])
                    found.append(Case(name, files, origin, throttle, shuffle))
    return found


def cache_order(count: int, seed: int) -> NDArray[np.int64]:
    """Return all files in the order in which a growing cache adds them."""
    return _native.order_randperm(count, _CACHE_SEED + seed).astype(np.int64)


def rank_shares(count: int, ranks: int, seed: int) -> list[NDArray[np.int64]]:
    """Return each rank's files under the local shuffle; the cache has the same share of each."""
    order = cache_order(count, seed)
    return [order[rank::ranks] for rank in range(ranks)]


def rank_orders(shuffle: str, count: int, ranks: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """Return the files that each rank reads in an epoch: each file once, by one rank."""
    if shuffle == "global":
        order = _native.order_randperm(count, seed + epoch).astype(np.int64)
        return [order[rank::ranks] for rank in range(ranks)]
    return [
        share[_native.order_randperm(len(share), _LOCAL_SEED + ranks * (seed + epoch) + rank)]
        for rank, share in enumerate(rank_shares(count, ranks, seed))
    ]


def measure(request: BenchRequest, folder: str, report: Callable[[str], None]) -> Iterator[RateResult]:
    """Measure rate after rate; remove the files at the end in any case.

    Args:
        request: the checked request.
        folder: parent of the run folders; must exist.
        report: called with the next activity.

    Raises:
        ConfigError: a folder cannot be written to.
        OSError: a file cannot be written or read, ``OriginError`` and ``CacheError`` among them.
        WorkerDied: a process of the measurement has ended.
    """
    todo = cases(request)
    with ExitStack() as stack:
        group = stack.enter_context(ControlGroup()) if request.throttle_by == "kernel" else None
        ranks = stack.enter_context(Ranks(request.processes))
        if group is not None:
            group.add(ranks.pids)
        for files in request.files:
            order = cache_order(files.count, request.seed)
            with _create_data_set(request, files, order, ranks, group, report) as (origins, cache):
                for number, case in enumerate(todo, 1):
                    if case.files is not files:
                        continue
                    origin = origins[request.origins.index(case.origin)]
                    if group is not None and origin.device is not None:
                        group.limit(origin.device.numbers, case.throttle)
                    for rate in request.rates:
                        where = f"case {number} of {len(todo)} ({case.name}), rate {rate:g}"
                        run_folder = os.path.join(folder, case.name, f"{rate:g}")
                        run = _RateRun(case, rate, order, origin, cache, run_folder, where)
                        yield run.measure(request, ranks, report)


@dataclass(frozen=True)
class _OriginFolder:
    """The folder of the files at an origin."""

    path: str
    device: LoopDevice | None
    """Its device, if the kernel throttles it."""


@contextmanager
def _create_data_set(
    request: BenchRequest,
    files: Files,
    order: NDArray[np.int64],
    ranks: Ranks,
    group: ControlGroup | None,
    report: Callable[[str], None],
) -> Iterator[tuple[list[_OriginFolder], str]]:
    """Create the files of a data set at every origin, and in the cache those of the highest rate."""
    with ExitStack() as stack:
        folders = [origin.folder for origin in request.origins]
        devices: list[LoopDevice | None] = [None] * len(folders)
        if request.throttle_by == "kernel":
            attached = [
                stack.enter_context(attach_device(each, files.bytes, files.count)) for each in folders
            ]
            folders, devices = [device.folder for device in attached], [*attached]
        cached = order[: round(max(request.rates) * files.count)].tolist()
        numbers = [*([list(range(files.count))] * len(folders)), cached]
        *created, cache = stack.enter_context(
            create_files([*folders, request.cache], numbers, files.size, report)
        )
        try:
            yield [_OriginFolder(*each) for each in zip(created, devices, strict=True)], cache
        except BaseException:
            # The processes end before the removal, so that none reads the files or keeps their device busy. A process
            # that waits for the kernel's throttle can end only without the limit.
            for device in devices:
                if group is not None and device is not None:
                    group.limit(device.numbers, Throttle())
            ranks.close()
            raise


@dataclass(frozen=True, eq=False)
class _RateRun:
    """The measurement of one cache rate."""

    case: Case
    rate: float
    cache_order: NDArray[np.int64]
    origin: _OriginFolder
    cache: str
    folder: str
    where: str
    """Prefix of progress reports."""

    def measure(self, request: BenchRequest, ranks: Ranks, report: Callable[[str], None]) -> RateResult:
        """Measure all epochs."""
        count = self.case.files.count
        cached_count = round(self.rate * count)
        cached = np.zeros(count, np.bool_)
        cached[self.cache_order[:cached_count]] = True
        os.makedirs(self.folder)
        clock = time.monotonic_ns()
        seconds = []
        shares: list[tuple[float | None, float | None]] = []
        for epoch in range(request.epochs):
            report(f"{self.where}, epoch {epoch + 1} of {request.epochs}")
            shares.append(self._evict(cached, drop=request.drop_caches))
            orders = rank_orders(self.case.shuffle, count, request.processes, request.seed, epoch)
            tasks = [
                Task(
                    run=self.folder,
                    clock_ns=clock,
                    epoch=epoch,
                    order=each,
                    cached=cached,
                    origin=self.origin.path,
                    cache=self.cache,
                    size=self.case.files.size,
                    throttle=self.case.throttle if self.origin.device is None else Throttle(),
                )
                for each in orders
            ]
            seconds.append(ranks.epoch(tasks))
        ranks.end_run()
        origin, cache = (
            max((share for share in each if share is not None), default=None)
            for each in zip(*shares, strict=True)
        )
        return RateResult(self.case, self.rate, cached_count, self.folder, tuple(seconds), (origin, cache))

    def _evict(self, cached: NDArray[np.bool_], *, drop: bool) -> tuple[float | None, float | None]:
        """Evict the files of the next epoch; return the shares at the origin and in the cache that stay in memory."""
        if self.origin.device is not None:
            evict_files([self.origin.device.image], machine=False)
        origin = [file_path(self.origin.path, number) for number in np.flatnonzero(~cached).tolist()]
        cache = [file_path(self.cache, number) for number in np.flatnonzero(cached).tolist()]
        return (
            evict_files(origin, machine=drop) if origin else None,
            evict_files(cache, machine=drop and not origin) if cache else None,
        )
