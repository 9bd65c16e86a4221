# SPDX-License-Identifier: Apache-2.0
"""Run all ranks of one set-up: one line of JSON per task in, one line of results out.

The ranks are separate processes that start once. A rank measures what a training loop sees: time inside ``next()``, time
of its compute, time at the barrier. All ranks share the clock of the host, so their times are comparable.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import time
import traceback
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from support.loaders import Batch, Task, opened
from support.setups import ID_BYTES, PERFECT

from foresee import _native

PAGE_BYTES = 4096
#: A sleep may end this much late, so a busy wait ends each step.
LATE_S = 0.0003
#: Timeout of the barrier.
BARRIER_TIMEOUT_S = 120


def main(ranks: int) -> None:
    """Run tasks until standard input closes."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(ranks)
    ends, processes = [], []
    for rank in range(ranks):
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(rank, ranks, theirs, barrier), daemon=True)
        process.start()
        ends.append(ours)
        processes.append(process)
    for line in sys.stdin:
        for end in ends:
            end.send(line)
        result = [end.recv() for end in ends]
        print(json.dumps(result), flush=True)
        # A rank that failed has aborted the barrier.
        barrier.reset()


def serve(rank: int, ranks: int, pipe: Connection, barrier: Barrier) -> None:
    """Run one rank, with the variables that torchrun sets for ranks of one host."""
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
    while True:
        try:
            line = pipe.recv()
        except EOFError:
            return
        try:
            result = measure(Task(rank=rank, ranks=ranks, **json.loads(line)), barrier)
        except Exception as error:
            traceback.print_exc()
            barrier.abort()
            result = {"error": f"{type(error).__name__}: {error}"}
        pipe.send(result)


def measure(task: Task, barrier: Barrier) -> dict[str, Any]:
    """Run one task on one rank."""
    clock = time.perf_counter
    for epoch in range(task.epochs):
        order = _native.order_distributed(
            len(task.sizes),
            task.ranks,
            task.rank,
            seed=task.seed,
            epoch=epoch,
            shuffle=True,
            drop_last=False,
            start=0,
        )
        task.ids.append(order.astype(int).tolist())
    result: dict[str, Any] = {"epochs": []}
    with contextlib.closing(opened(task)) as loader:
        barrier.wait(BARRIER_TIMEOUT_S)
        loader.start()
        began = clock()
        result["began"] = began
        for epoch in range(task.epochs):
            steps = [sum(task.sizes[sample] for sample in ids) for ids in task.batches(epoch)]
            waited = at_barrier = computed = 0.0
            totals = [0, 0, 0]
            batches = loader.epoch(epoch)
            requested = clock()
            for step, batch in enumerate(batches):
                got = clock()
                waited += got - requested
                touch(batch, totals)
                del batch
                compute(got + steps[step] / task.compute_rate)
                done = clock()
                computed += done - got
                if task.ranks > 1:
                    barrier.wait(BARRIER_TIMEOUT_S)
                requested = clock()
                at_barrier += requested - done
            ended = clock()
            waited += ended - requested
            result["epochs"].append(
                {"end": ended, "waited": waited, "computed": computed, "barrier": at_barrier, "seen": totals}
            )
            check(task, epoch, totals)
    return result


def compute(until: float) -> None:
    """Sleep until ``until``."""
    clock = time.perf_counter
    left = until - clock()
    if left > LATE_S:
        time.sleep(left - LATE_S)
    while clock() < until:
        pass


def touch(batch: Batch, totals: list[int]) -> None:
    """Touch every page, because mapped memory that was never read does not count, and add to the totals."""
    for sample in batch:
        view = np.frombuffer(sample, np.uint8)
        _ = int(view[::PAGE_BYTES].sum())
        totals[0] += 1
        totals[1] += view.nbytes
        totals[2] += int.from_bytes(view[:ID_BYTES].tobytes(), "little")


def check(task: Task, epoch: int, totals: list[int]) -> None:
    """Raise an error if an epoch missed, repeated or shortened a sample."""
    ids = task.ids[epoch]
    whole = [len(ids), sum(task.sizes[sample] for sample in ids), sum(ids)]
    if task.policy != PERFECT and totals != whole:
        raise ValueError(f"epoch {epoch}: {totals} samples, bytes and sum of ids, {whole} expected")


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main(int(sys.argv[1]))
