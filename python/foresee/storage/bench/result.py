# SPDX-License-Identifier: Apache-2.0
"""Results of a measurement as plain values: seconds by class at each rate and epoch, answers from them, and limits.

The seconds come from the ledgers of the run folders. All reports and figures show these values;
``docs/formats/storage-bench.md`` has the keys.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from foresee.storage.analysis import IoTable, align, answers, ledger
from foresee.storage.bench.measurement import Case, RateResult
from foresee.storage.bench.plan import BenchRequest
from foresee.storage.bench.throttle import Throttle

__all__ = ["VERSION", "analyzed_epoch", "facts", "tables"]

VERSION = 1
_REQUEST_KEYS = ("cache", "processes", "epochs", "seed", "drop_caches", "throttle_by")
#: Share of bytes in memory from which on a limit mentions it.
_IN_MEMORY = 0.01
_ONE_MACHINE = (
    "all processes are on this machine and share one cache, so that both shuffles have its rate as hit rate; on "
    "several machines the local shuffle needs less of each cache"
)


def analyzed_epoch(request: BenchRequest) -> int:
    """Return the epoch that is analyzed: the second, as in the paper, if there is one."""
    return min(1, request.epochs - 1)


def tables(request: BenchRequest, results: Sequence[RateResult]) -> dict[str, dict[float, IoTable]]:
    """Return the tables of the analyzed epoch, by case and cache rate."""
    epoch = analyzed_epoch(request)
    return {
        name: align({each.rate: _read(each.folder, epoch) for each in results})
        for name, results in _by_case(results).items()
    }


def _read(folder: str, epoch: int) -> IoTable:
    """Read a table; its processes read one file at a time, so they lack the limit of concurrent requests."""
    table = ledger.read(folder, epoch=epoch)
    return replace(table, limits=tuple(limit for limit in table.limits if limit != ledger.AT_ONCE))


def facts(
    request: BenchRequest, results: Sequence[RateResult], question: answers.Question, *, interrupted: bool
) -> dict[str, Any]:
    """Return the JSON object, in seconds, bytes and shares.

    Args:
        request: the checked request.
        results: the finished cache rates.
        question: the question to each case.
        interrupted: whether a signal ended the measurement.
    """
    read = tables(request, results)
    return {
        "version": VERSION,
        "asked": {
            "origins": {origin.name: origin.folder for origin in request.origins},
            "rates": list(request.rates),
            **{name: getattr(request, name) for name in _REQUEST_KEYS},
        },
        "epoch": analyzed_epoch(request),
        "cases": [
            {
                **_case_facts(results_[0].case),
                "rates": [_rate_facts(each) for each in results_],
                "answers": answers.answer(read[name], question),
            }
            for name, results_ in _by_case(results).items()
        ],
        "limits": _limits(request, results),
        "interrupted": interrupted,
    }


def _by_case(results: Sequence[RateResult]) -> dict[str, list[RateResult]]:
    by_case: dict[str, list[RateResult]] = {}
    for each in results:
        by_case.setdefault(each.case.name, []).append(each)
    return by_case


def _case_facts(case: Case) -> dict[str, Any]:
    return {
        "name": case.name,
        "file_bytes": case.files.size,
        "files": case.files.count,
        "origin": case.origin.name,
        "throttle": asdict(case.throttle),
        "shuffle": case.shuffle,
    }


def _rate_facts(result: RateResult) -> dict[str, Any]:
    return {
        "rate": result.rate,
        "cached_files": result.cached,
        "folder": result.folder,
        "in_memory": dict(zip(("origin", "cache"), result.in_memory, strict=True)),
        "epochs": [
            {
                "epoch": epoch,
                "seconds": result.seconds[epoch],
                "slowest": answers.slowest(table),
            }
            for epoch, table in ledger.read_epochs(result.folder).items()
        ],
    }


def _limits(request: BenchRequest, results: Sequence[RateResult]) -> list[str]:
    """Return the limits for readers of the results."""
    limits = [_ONE_MACHINE]
    for name, at in (("origin", 0), ("cache", 1)):
        shares = [each.in_memory[at] for each in results]
        most = max((share for share in shares if share is not None), default=None)
        if most is None and shares:
            limits.append(f"{name}: the kernel does not report how much of it was in memory before an epoch")
        elif most is not None and most > _IN_MEMORY:
            limits.append(
                f"{name}: up to {100 * most:.0f} % of its bytes were in memory before an epoch and could not be "
                "evicted (a tmpfs keeps its files there): its READ is not a device's"
            )
    if request.drop_caches:
        limits.append("the machine's pages, names and inodes were dropped before every epoch")
    else:
        limits.append(
            "pages of the files were dropped before every epoch, names and inodes were not: META may be that of names "
            "which the kernel remembers; --drop-caches, as root, drops them"
        )
    slowed = ", ".join(name for name, throttle in request.throttles if throttle != Throttle())
    if slowed and request.throttle_by == "kernel":
        limits.append(
            f"{slowed}: the kernel throttles reads of a file system on a loop device, in slices of about 0.1 s, so an "
            "epoch that is not much longer gets more; a limit on opens is one on read requests, of which a file may "
            "need several"
        )
    elif slowed:
        limits.append(
            f"{slowed}: a token bucket in this reader, not a slower storage; queues of a real one are not modelled"
        )
    devices = {origin.folder: os.stat(origin.folder).st_dev for origin in request.origins}
    shared = [folder for folder, device in devices.items() if device == os.stat(request.cache).st_dev]
    if shared:
        limits.append(
            f"{' and '.join(shared)} and the cache are one file system: each takes from the other's rate"
        )
    return limits
