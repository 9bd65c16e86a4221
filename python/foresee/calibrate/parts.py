# SPDX-License-Identifier: Apache-2.0
"""Sweeps of memory, disks and the origin, with their conditions.

Reads from the page cache have their own figure (``cached_read``), separate from reads of a device.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from foresee import _native
from foresee.calibrate.sweep import (
    GAIN,
    REPEATS,
    Measure,
    Sweep,
    cores,
    counts,
    frequency,
    rate,
    sweep,
    time_of,
)
from foresee.jobspec import Figure

if TYPE_CHECKING:
    from foresee._loading.data_source import Source

#: More threads do not increase the load of a device.
_DISK_THREADS = 32
#: The loader's limits: threads that read a directory, and connections to a bucket.
_DIRECTORY_READERS, _STORE_READERS = 64, 128
_FILE_BYTES = 1 << 30
_MEBI = 1 << 20


class Recorder:
    """Turns sweeps into figures, and lists what is left out. ``on_progress`` gets what is measured next."""

    def __init__(self, on_progress: Callable[[str], None]) -> None:
        self.on_progress = on_progress
        self.left_out: list[str] = []

    def curve(
        self,
        name: str,
        measure: Measure,
        most: int,
        seconds: float,
        conditions: str,
        *,
        small: tuple[str, Measure, str] | None = None,
    ) -> Iterator[Figure]:
        """Return the figures of a sweep; ``small``: name, measurement and conditions of a latency."""
        made = sweep(
            measure,
            counts(most),
            seconds,
            lambda count: self.on_progress(f"{name} at {count}"),
            small=None if small is None else small[1],
        )
        yield from self._figures(name, made, conditions, small)

    def limit(
        self, name: str, small: Measure, most: int, seconds: float, conditions: str
    ) -> Iterator[Figure]:
        """Return the maximum of operations per second, unless they still rise with the threads."""

        def operations(threads: int, share: float) -> tuple[int, float, float]:
            _, took, each = small(threads, share)
            return (round(threads * took / each) if each else 0), took, each

        made = sweep(operations, counts(most), seconds, lambda count: self.on_progress(f"{name} at {count}"))
        middle = [statistics.median(point.rates) for point in made.points]
        last = made.points[-1]
        if made.cut or len(middle) < 2 or middle[-1] >= GAIN * max(middle[:-1]):
            self.left_out.append(f"{name}: it still rises at {last.at} readers, so no limit was found")
            return
        best = made.points[middle.index(max(middle))]
        yield frequency(
            name, best.rates, f"{conditions}, with {best.at} readers; {REPEATS} repeats, {load()}"
        )

    def _figures(
        self, name: str, made: Sweep, conditions: str, small: tuple[str, Measure, str] | None
    ) -> Iterator[Figure]:
        around = f"{REPEATS} repeats, {load()}"
        for point in made.points:
            if not all(point.rates):
                self.left_out.append(f"{name} at {point.at}: a repeat moved nothing")
                continue
            yield rate(name, point.at, point.rates, f"{conditions}; {around}")
            if small is not None and all(point.latencies):
                yield time_of(small[0], point.at, point.latencies, f"{small[2]}; {around}")
        if made.cut:
            self.left_out.append(f"{name} beyond {made.points[-1].at}: its share of --seconds was up")


def load() -> str:
    """Return a note on other programs: the load of the last minute, and the number of cores.

    >>> load().startswith("load ")
    True
    """
    return f"load {os.getloadavg()[0]:.1f} on {cores()} cores"


def memcpy(trial: _native.Trial, seconds: float, recorder: Recorder) -> Iterator[Figure]:
    """Measure ``memcpy.rate``."""
    conditions = f"1 MiB pieces, drawn from {_mebibytes(trial, 'pool_bytes')}"
    yield from recorder.curve("memcpy.rate", _work(trial, "copy"), cores(), seconds, conditions)


def checksum(trial: _native.Trial, seconds: float, recorder: Recorder) -> Iterator[Figure]:
    """Measure ``checksum.rate``."""
    conditions = f"CRC-32C of 128 KiB samples, drawn from {_mebibytes(trial, 'pool_bytes')}"
    yield from recorder.curve("checksum.rate", _work(trial, "checksum"), cores(), seconds, conditions)


def ram(trial: _native.Trial, seconds: float, recorder: Recorder) -> Iterator[Figure]:
    """Measure ``tier.ram.*``, of the loader's memory tier."""
    data = f"{_mebibytes(trial, 'pool_bytes')} in the memory tier"
    available = available_memory()
    if available is None:
        recorder.left_out.append("tier.ram.capacity: the kernel does not report the available memory")
    else:
        conditions = "memory available when measured, for all ranks of the node together"
        yield Figure(name="tier.ram.capacity", value=float(available), unit="B", conditions=conditions)
    yield from recorder.curve(
        "tier.ram.read",
        _work(trial, "tier_read"),
        cores(),
        0.6 * seconds,
        f"128 KiB samples at random, {data}",
        small=("tier.ram.latency", _work(trial, "tier_small_read"), f"4 KiB of a sample, {data}"),
    )
    yield from recorder.curve(
        "tier.ram.write",
        _work(trial, "tier_write"),
        cores(),
        0.4 * seconds,
        f"128 KiB samples in place of others, {data}",
    )


def disk(
    name: str, folder: str, seconds: float, recorder: Recorder, *, reads: bool = True
) -> Iterator[Figure]:
    """Measure ``tier.NAME.*`` of the disk of ``folder``; ``reads``: whether reads too."""
    recorder.on_progress(f"tier.{name}: writing a file")
    trial = _native.Trial.disk(folder, bytes_max=_FILE_BYTES, seconds=0.2 * seconds)
    facts = trial.facts()
    file = f"file of {_mebibytes(trial, 'bytes')} in {os.path.abspath(folder)}"
    if facts["in_memory"]:
        file += ", a file system in memory"
    bypass = "O_DIRECT" if facts["direct"] else "pages dropped before (posix_fadvise), no O_DIRECT here"
    yield Figure(
        name=f"tier.{name}.capacity",
        value=float(facts["free_bytes"]),
        unit="B",
        conditions=f"free for this user when measured, in {os.path.abspath(folder)}",
    )
    if reads:
        small = (f"tier.{name}.latency", _work(trial, "small_read"), f"4 KiB random reads, {bypass}, {file}")
        yield from recorder.curve(
            f"tier.{name}.read",
            _work(trial, "read"),
            _DISK_THREADS,
            0.4 * seconds,
            f"128 KiB random reads, {bypass}, {file}",
            small=small,
        )
    yield from recorder.curve(
        f"tier.{name}.cached_read",
        _work(trial, "cached_read"),
        cores(),
        0.1 * seconds,
        f"128 KiB random reads, page-cache hits, {file}",
    )
    written = "O_DIRECT and fdatasync" if facts["direct"] else "page cache and fdatasync, no O_DIRECT here"
    yield from recorder.curve(
        f"tier.{name}.write",
        _work(trial, "write"),
        _DISK_THREADS,
        0.3 * seconds,
        f"1 MiB writes, {written}, {file}",
    )


def origin(trial: _native.Trial, source: Source, seconds: float, recorder: Recorder) -> Iterator[Figure]:
    """Measure ``origin.*``, with samples of an index."""
    index = source.index
    facts = trial.facts()
    pages = facts["pages"]
    most = min(_DIRECTORY_READERS if pages else _STORE_READERS, len(index))
    where = f"{len(index):,} samples of {_size(index.total_bytes / len(index))} on average, {index.uri}"
    if facts["in_memory"]:
        where += ", a file system in memory"
    each = "one request per reader"
    cold = f"{each}, pages dropped before (posix_fadvise)" if pages else each
    yield from recorder.curve(
        "origin.read",
        _work(trial, "read"),
        most,
        (0.7 if pages else 0.85) * seconds,
        f"whole samples at random, {cold}, {where}",
        small=("origin.latency", _work(trial, "small_read"), f"at most 4 KiB of a sample, {cold}, {where}"),
    )
    conditions = f"most of at most 4 KiB of a sample, {cold}, {where}"
    yield from recorder.limit("origin.requests", _work(trial, "small_read"), most, 0.15 * seconds, conditions)
    if not pages:
        return
    yield from recorder.curve(
        "origin.cached_read",
        _work(trial, "cached_read"),
        min(cores(), len(index)),
        0.15 * seconds,
        f"whole samples, page-cache hits, {each}, {where}",
    )


def available_memory() -> int | None:
    """Return the kernel's estimate of bytes available without swapping, or None."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _work(trial: _native.Trial, work: str) -> Measure:
    return lambda threads, seconds: trial.measure(work, threads=threads, seconds=seconds)


def _mebibytes(trial: _native.Trial, fact: str) -> str:
    return f"{trial.facts()[fact] // _MEBI} MiB"


def _size(bytes_: float) -> str:
    return f"{bytes_ / 1e6:.3g} MB" if bytes_ >= 1e6 else f"{bytes_ / 1e3:.3g} KB"
