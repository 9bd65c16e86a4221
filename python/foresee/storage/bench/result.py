# SPDX-License-Identifier: Apache-2.0
"""Results of a measurement as plain values: seconds by class at each rate and epoch, answers from them, and limits.

The figures are those of the run folders' ledgers, read as any run's are. Everything that is printed, drawn or written
comes from here; ``docs/formats/storage-bench.md`` has the keys.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from foresee.storage.analysis import IoTable, align, answers, ledger
from foresee.storage.bench.measurement import Case, Measured
from foresee.storage.bench.plan import BenchRequest
from foresee.storage.bench.throttle import Throttle

__all__ = ["VERSION", "analyzed_epoch", "facts", "tables"]

VERSION = 1
#: A share of bytes in memory from which on it is worth a sentence.
_IN_MEMORY = 0.01
_ONE_MACHINE = (
    "all processes are on this machine and share one cache, so that both shuffles have its rate as hit rate; on "
    "several machines the local one needs less of each"
)


def analyzed_epoch(wanted: BenchRequest) -> int:
    """The epoch whose figures are analyzed: the second, as in the paper, where there is one."""
    return min(1, wanted.epochs - 1)


def tables(wanted: BenchRequest, measured: Sequence[Measured]) -> dict[str, dict[float, IoTable]]:
    """The epoch's tables, by case and cache rate."""
    epoch = analyzed_epoch(wanted)
    return {
        name: align({each.rate: _read(each.folder, epoch) for each in those})
        for name, those in _by_case(measured).items()
    }


def _read(folder: str, epoch: int) -> IoTable:
    """A table without the limit that a process which reads one file at a time does not have."""
    table = ledger.read(folder, epoch=epoch)
    return replace(table, limits=tuple(limit for limit in table.limits if limit != ledger.AT_ONCE))


def facts(
    wanted: BenchRequest, measured: Sequence[Measured], question: answers.Question, *, interrupted: bool
) -> dict[str, Any]:
    """Everything, in seconds, bytes and shares.

    Args:
        wanted: what was asked for.
        measured: what was measured of it.
        question: what is asked of each case.
        interrupted: whether it was ended from outside.
    """
    read = tables(wanted, measured)
    return {
        "version": VERSION,
        "asked": _request(wanted),
        "epoch": analyzed_epoch(wanted),
        "cases": [
            {
                **_named(those[0].case),
                "rates": [_rate(each) for each in those],
                "answers": answers.answer(read[name], question),
            }
            for name, those in _by_case(measured).items()
        ],
        "limits": _limits(wanted, measured),
        "interrupted": interrupted,
    }


def _by_case(measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    by_case: dict[str, list[Measured]] = {}
    for each in measured:
        by_case.setdefault(each.case.name, []).append(each)
    return by_case


def _request(wanted: BenchRequest) -> dict[str, Any]:
    return {
        "origins": {origin.name: origin.folder for origin in wanted.origins},
        "cache": wanted.cache,
        "rates": list(wanted.rates),
        "processes": wanted.processes,
        "epochs": wanted.epochs,
        "seed": wanted.seed,
        "drop_caches": wanted.drop_caches,
        "throttle_by": wanted.throttle_by,
    }


def _named(case: Case) -> dict[str, Any]:
    return {
        "name": case.name,
        "file_bytes": case.files.size,
        "files": case.files.count,
        "origin": case.origin.name,
        "throttle": {
            "bytes_per_s": case.throttle.bytes_per_s,
            "opens_per_s": case.throttle.opens_per_s,
        },
        "shuffle": case.shuffle,
    }


def _rate(measured: Measured) -> dict[str, Any]:
    return {
        "rate": measured.rate,
        "cached_files": measured.cached,
        "folder": measured.folder,
        "in_memory": dict(zip(("origin", "cache"), measured.in_memory, strict=True)),
        "epochs": [
            {
                "epoch": epoch,
                "seconds": measured.seconds[epoch],
                "slowest": answers.slowest(table),
            }
            for epoch, table in ledger.read_epochs(measured.folder).items()
        ],
    }


def _limits(wanted: BenchRequest, measured: Sequence[Measured]) -> list[str]:
    """Return the notes for readers of the results."""
    limits = [_ONE_MACHINE]
    for name, at in (("origin", 0), ("cache", 1)):
        shares = [each.in_memory[at] for each in measured]
        most = max((share for share in shares if share is not None), default=None)
        if most is None and shares:
            limits.append(f"{name}: the kernel does not say how much of it was in memory before an epoch")
        elif most is not None and most > _IN_MEMORY:
            limits.append(
                f"{name}: up to {100 * most:.0f} % of its bytes were in memory before an epoch and could not be "
                "driven out (a tmpfs keeps its files there): its READ is not a device's"
            )
    if wanted.drop_caches:
        limits.append("the machine's pages, names and inodes were dropped before every epoch")
    else:
        limits.append(
            "pages of the files were dropped before every epoch, names and inodes were not: META may be that of names "
            "which the kernel remembers; --drop-caches, as root, drops them"
        )
    slowed = ", ".join(name for name, throttle in wanted.throttles if throttle != Throttle())
    if slowed and wanted.throttle_by == "kernel":
        limits.append(
            f"{slowed}: the kernel throttles reads of a file system on a loop device, in slices of about 0.1 s, so an "
            "epoch that is not much longer gets more; a limit on opens is one on read requests, of which a file may "
            "need several"
        )
    elif slowed:
        limits.append(
            f"{slowed}: a token bucket in this reader, not a slower storage; what queues in a real one is not in it"
        )
    devices = {origin.folder: os.stat(origin.folder).st_dev for origin in wanted.origins}
    shared = [folder for folder, device in devices.items() if device == os.stat(wanted.cache).st_dev]
    if shared:
        limits.append(
            f"{' and '.join(shared)} and the cache are one file system: each takes from the other's rate"
        )
    return limits
