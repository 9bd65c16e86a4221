# SPDX-License-Identifier: Apache-2.0
"""The loading process: a training loop without a model, the same for every arm.

Reads one job per line from standard input, runs its arm, and writes one result line. It measures what a loop sees: the
time inside ``next()``. Its parent process counts bytes at the origin and memory.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
import traceback
import zlib
from pathlib import Path
from typing import Any

import numpy as np

# Every training process imports torch, so the memory of each arm includes it.
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arms.base import Arm, Batch
from common.process_tree import cpu_s
from common.samples import ID_BYTES
from support.job import Epoch, Job, Result

PAGE_BYTES = 4096


def main() -> None:
    """Run jobs until standard input closes."""
    # Libraries that print to standard output must not corrupt the results.
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        job = Job.from_line(line)
        try:
            result = run(job)
        except Exception as error:
            traceback.print_exc()
            result = Result(job.arm, job.workload, job.settings, "", 0.0, 0.0, [])
            # A worker's error may contain a traceback with local paths, which belongs in the log only.
            lines = f"{type(error).__name__}: {error}".strip().splitlines()
            result.error = "\n".join(dict.fromkeys((lines[0], lines[-1])))
        results.write(result.to_line() + "\n")


def run(job: Job) -> Result:
    """Run one job."""
    module = importlib.import_module(f"arms.{job.arm}_arm")
    arm: Arm = module.Arm()
    clock = time.perf_counter
    began = clock()
    result = Result(job.arm, job.workload, job.settings, arm.order, 0.0, 0.0, [])
    if job.phase == "prepare":
        arm.prepare(job)
        result.prepare_s = clock() - began
        return result
    Path(job.scratch).mkdir(parents=True, exist_ok=True)
    cpu_before = cpu_s()
    with contextlib.closing(arm.open(job)) as loader:
        opened_s = clock() - began
        result.open_cpu_s = cpu_s() - cpu_before
        for number in range(job.epochs):
            result.epochs.append(_epoch(loader.epoch(number), job, verify=job.verify, is_first=number == 0))
        result.start_s = opened_s + result.epochs[0].first_s
        if not job.verify:
            result.epochs.append(_epoch(loader.epoch(job.epochs), job, verify=True, is_first=False))
    return result


def _epoch(batches: Any, job: Job, *, verify: bool, is_first: bool) -> Epoch:
    epoch = Epoch(verified=verify)
    clock = time.perf_counter
    cpu_before = cpu_s()
    began = requested = clock()
    for at, batch in enumerate(batches):
        got = clock()
        if at == 0:
            epoch.first_s = got - requested
        if at > 0 or not is_first:
            epoch.waited_s += got - requested
        _take(batch, epoch, verify=verify)
        if job.compute_s:
            time.sleep(job.compute_s)
        requested = clock()
    ended = clock()
    epoch.waited_s += ended - requested
    epoch.seconds = ended - began
    epoch.cpu_s = cpu_s() - cpu_before
    epoch.checksum %= 2**64
    return epoch


def _take(batch: Batch, epoch: Epoch, *, verify: bool) -> None:
    # The conversion to an array is not part of the loader's time.
    if isinstance(batch, torch.Tensor):
        batch = batch.numpy()
    if not verify and isinstance(batch, np.ndarray):
        # Touch every page: mapped memory that was never read does not count as delivered.
        _ = int(batch.reshape(-1)[::PAGE_BYTES].sum())
        epoch.samples += len(batch)
        epoch.bytes += batch.nbytes
        return
    for sample in batch:
        held: Any = sample.numpy() if isinstance(sample, torch.Tensor) else sample
        view = memoryview(held).cast("B")
        epoch.samples += 1
        epoch.bytes += view.nbytes
        if verify:
            epoch.checksum += zlib.crc32(view)
            epoch.ids += int.from_bytes(view[:ID_BYTES], "little")
        else:
            _ = int(np.frombuffer(view, np.uint8)[::PAGE_BYTES].sum())


if __name__ == "__main__":
    main()
