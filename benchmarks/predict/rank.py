# SPDX-License-Identifier: Apache-2.0
"""All ranks of one set-up, asked run after run: one line of JSON in, one out.

The ranks are processes of their own, begun once. What a rank measures is what a training loop sees: time inside
``next()``, time of its compute, time at the barrier. Clocks of one machine are one clock, so ranks' times can be
compared.
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
#: A sleep may end so much late; the rest of a step is a busy wait.
LATE_S = 0.0003
#: Until others have come to the barrier, or it has failed.
PATIENCE_S = 120


def main(ranks: int) -> None:
    """Do tasks until standard input closes."""
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
        told = [end.recv() for end in ends]
        print(json.dumps(told), flush=True)
        # Whoever failed has broken the barrier for all.
        barrier.reset()


def serve(rank: int, ranks: int, pipe: Connection, barrier: Barrier) -> None:
    """One rank, which is told as torchrun would that all are on this machine."""
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
    while True:
        try:
            line = pipe.recv()
        except EOFError:
            return
        try:
            told = measure(Task(rank=rank, ranks=ranks, **json.loads(line)), barrier)
        except Exception as error:
            traceback.print_exc()
            barrier.abort()
            told = {"error": f"{type(error).__name__}: {error}"}
        pipe.send(told)


def measure(task: Task, barrier: Barrier) -> dict[str, Any]:
    """One run of one rank."""
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
    told: dict[str, Any] = {"epochs": []}
    with contextlib.closing(opened(task)) as loader:
        barrier.wait(PATIENCE_S)
        loader.start()
        began = clock()
        told["began"] = began
        for epoch in range(task.epochs):
            steps = [sum(task.sizes[sample] for sample in ids) for ids in task.batches(epoch)]
            waited = at_barrier = computed = 0.0
            seen = [0, 0, 0]
            batches = loader.epoch(epoch)
            requested = clock()
            for step, batch in enumerate(batches):
                got = clock()
                waited += got - requested
                look(batch, seen)
                del batch
                compute(got + steps[step] / task.compute_rate)
                done = clock()
                computed += done - got
                if task.ranks > 1:
                    barrier.wait(PATIENCE_S)
                requested = clock()
                at_barrier += requested - done
            ended = clock()
            waited += ended - requested
            told["epochs"].append(
                {"end": ended, "waited": waited, "computed": computed, "barrier": at_barrier, "seen": seen}
            )
            void(task, epoch, seen)
    return told


def compute(until: float) -> None:
    """Until then."""
    clock = time.perf_counter
    left = until - clock()
    if left > LATE_S:
        time.sleep(left - LATE_S)
    while clock() < until:
        pass


def look(batch: Batch, seen: list[int]) -> None:
    """Touch every page: memory that was mapped but never read does not count as delivered."""
    for sample in batch:
        view = np.frombuffer(sample, np.uint8)
        _ = int(view[::PAGE_BYTES].sum())
        seen[0] += 1
        seen[1] += view.nbytes
        seen[2] += int.from_bytes(view[:ID_BYTES].tobytes(), "little")


def void(task: Task, epoch: int, seen: list[int]) -> None:
    """Say so if an epoch missed, repeated or shortened a sample."""
    ids = task.ids[epoch]
    whole = [len(ids), sum(task.sizes[sample] for sample in ids), sum(ids)]
    if task.policy != PERFECT and seen != whole:
        raise ValueError(f"epoch {epoch}: {seen} samples, bytes and sum of ids, {whole} expected")


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main(int(sys.argv[1]))
