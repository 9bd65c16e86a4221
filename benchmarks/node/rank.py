#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank: a training loop without a model, in a process with the variables of torchrun.

Reads its task from the first line of standard input. It reports each state that it reaches on a line of standard output,
and waits for a line after the states in ``WAITS``, so that all ranks of a run go on together.
"""

from __future__ import annotations

import os
import resource
import sys
import time
import traceback
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.samples import ID_BYTES
from support.task import Epoch, Result, Task

from foresee import Batch, Cache, Loader

PAGE_BYTES = 4096
#: States after which a rank waits.
WAITS = ("ready", "first", "timed", "done")

Report = Callable[..., None]


def main() -> int:
    """Run one task; exit status 1 if it failed."""
    # Libraries that print to standard output must not corrupt the reports.
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def report(state: str, text: str = "") -> None:
        reports.write(f"{state} {text}".rstrip() + "\n")
        if state in WAITS and not sys.stdin.readline():
            # The benchmark has ended.
            raise SystemExit(1)

    try:
        task = Task.from_line(sys.stdin.readline())
        report("ready")
        run(task, report)
    except Exception as error:
        traceback.print_exc()
        report("failed", f"{type(error).__name__}: {error}".splitlines()[0])
        return 1
    return 0


def run(task: Task, report: Report) -> None:
    """Open the loader, read all epochs, and report the result before the loader is closed."""
    result = Result(opened=time.monotonic())
    cpu_before = _cpu_s()
    listed: dict[str, Any] = (
        {} if task.data.endswith(".fidx") else {"layout": "folder", "extensions": [".bin"]}
    )
    with Loader(
        task.data,
        batch_size=task.batch,
        shuffle=True,
        seed=task.seed,
        epochs=task.epochs + task.checks,
        cache=Cache(ram=task.ram_bytes),
        **listed,
    ) as loader:
        for number in range(task.epochs):
            result.epochs.append(_epoch(loader, task, result, report, is_first=number == 0))
            if number == 0 and task.waits_after_first:
                report("first")
        result.cpu_s = _cpu_s() - cpu_before
        report("timed")
        for batch in loader if task.checks else ():
            result.checksum += sum(map(zlib.crc32, _samples(batch)))
        report("done", result.to_line())


def _epoch(loader: Loader, task: Task, result: Result, report: Report, *, is_first: bool) -> Epoch:
    clock = time.monotonic
    epoch = Epoch(began=clock())
    requested = epoch.began
    for step, batch in enumerate(loader, 1):
        if is_first and step == 1:
            result.first_batch = clock()
        _count(batch, epoch)
        if task.compute_s:
            time.sleep(task.compute_s)
        epoch.requested.append(requested)
        requested = clock()
        epoch.computed.append(requested)
        if is_first and step == task.report_step:
            report("step")
        if task.only_first_batch:
            break
    epoch.ended = clock()
    return epoch


def _count(batch: Batch, epoch: Epoch) -> None:
    """Add the samples' numbers, and touch every page: mapped memory that was never read does not count as delivered."""
    _ = int(batch.data[::PAGE_BYTES].sum())
    starts = batch.offsets[:-1]
    numbers = batch.data[starts[:, None] + np.arange(ID_BYTES)].view("<u8")
    epoch.samples += len(starts)
    epoch.bytes += batch.data.nbytes
    epoch.ids += int(numbers.sum())


def _samples(batch: Batch) -> list[Any]:
    """Return the bytes of each sample."""
    return [batch.data[begin:end] for begin, end in pairwise(batch.offsets)]


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    sys.exit(main())
