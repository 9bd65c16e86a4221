# SPDX-License-Identifier: Apache-2.0
"""The loops of a rank: training without a model, hits in a worker process, and a native client at full speed."""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from common.process_tree import cpu_s
from common.proof import order_checksum
from common.samples import ID_BYTES
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

import foresee
import foresee.torch as ft

from .arms import Arrays, Files, ObjectsOfStore, Opened, cached, storage_options
from .task import Epoch, Result, Task

#: Times that each sample of a batch is read again.
ROUNDS = 40
#: Batch of the native client, and its memory, which must not limit its reads.
NATIVE_BATCH, NATIVE_RAM_BYTES = 64, 256 << 20


def train(opened: Opened, task: Task) -> Result:
    """Run all epochs."""
    result = Result()
    cpu_before = cpu_s()
    for number in range(task.epochs):
        result.epochs.append(_epoch(opened, task, number))
        result.epochs[-1].counts = opened.counts()
    result.cpu_s = cpu_s() - cpu_before
    result.values = opened.counts()
    return result


def _epoch(opened: Opened, task: Task, number: int) -> Epoch:
    epoch = Epoch()
    clock = time.monotonic
    began = requested = clock()
    # The start of the epoch is part of the wait for its first batch.
    batches = opened.epoch(number)
    # The end of a whole epoch is requested too, as workers go on to the next one only then.
    is_whole = task.read * task.ranks == task.samples
    while is_whole or epoch.samples < task.read:
        batch = next(batches, None)
        received = clock()
        epoch.waits_s.append(received - requested)
        if batch is None:
            break
        _count(batch, epoch)
        if task.compute_s:
            time.sleep(max(0.0, received + task.compute_s * len(batch) - clock()))
        epoch.steps_s.append(clock() - requested)
        requested = clock()
    epoch.seconds = clock() - began
    return epoch


def _count(batch: torch.Tensor, epoch: Epoch) -> None:
    rows = batch.numpy()
    ids = np.ascontiguousarray(rows[:, :ID_BYTES]).view("<u8").ravel()
    epoch.samples += len(rows)
    epoch.bytes += rows.nbytes
    epoch.order = order_checksum(ids, epoch.order)
    epoch.checksum = (epoch.checksum + sum(map(zlib.crc32, rows))) % 2**64


def hits(task: Task) -> Result:
    """Measure hits in a worker process.

    Raises:
        RuntimeError: a sample was read instead of found, or differs.
    """
    opened = cached(task, Arrays(task), _time_hits)
    # What the `collate_fn` returns in the worker.
    batches: Iterator[Any] = opened.epoch(0)
    times = []
    for batch in batches:
        if batch["misses"] or batch["wrong"]:
            raise RuntimeError(f"{batch['misses']} samples were read again, and {batch['wrong']} differ")
        times.append(batch["ns"])
    of_hits, of_look_ups = torch.cat(times, dim=1).tolist()
    hit_us, dict_us = (statistics.median(ns) / 1e3 for ns in (of_hits, of_look_ups))
    return Result(values={"hit_us": hit_us, "dict_us": dict_us, "hit_over_dict_us": hit_us - dict_us})


def _time_hits(samples: list[NDArray[np.uint8]]) -> dict[str, Any]:
    """Read the samples of a batch again in the worker; return the nanoseconds of hits and of look-ups in a dict."""
    worker = get_worker_info()
    assert worker is not None
    dataset: Any = worker.dataset
    clock = time.perf_counter_ns
    table = {int.from_bytes(sample[:ID_BYTES].tobytes(), "little"): sample for sample in samples}
    ids = list(table)
    wrong = sum(not np.array_equal(dataset[i], sample) for i, sample in table.items())
    misses = dataset.stats()["misses"]
    of_hits, of_look_ups = [], []
    for _ in range(ROUNDS):
        for i in ids:
            began = clock()
            _ = dataset[i]
            found = clock()
            _ = table[i]
            of_look_ups.append(clock() - found)
            of_hits.append(found - began)
    misses = dataset.stats()["misses"] - misses
    return {"ns": torch.tensor([of_hits, of_look_ups]), "misses": misses, "wrong": wrong}


def reads(task: Task) -> Result:
    """Measure what the model of a window needs: seconds of a read alone, of one of several, of a hit, and of a local file."""
    samples, threads = range(task.read), task.settings["threads"]
    objects, files = ObjectsOfStore(task), Files(task)
    held = ft.CachedDataset(files)
    values = {"read_s": _seconds_each(objects.__getitem__, samples)}
    with ThreadPoolExecutor(threads) as pool:
        # Each of them opens a connection at first.
        list(pool.map(objects.__getitem__, samples[:threads]))
        began = time.monotonic()
        list(pool.map(objects.__getitem__, samples))
        values["download_s"] = threads * (time.monotonic() - began) / len(samples)
    # The first pass reads the files.
    _seconds_each(held.__getitem__, samples)
    values["hit_s"] = _seconds_each(held.__getitem__, samples)
    values["file_s"] = _seconds_each(files.__getitem__, samples)
    return Result(values=values)


def _seconds_each(read: Callable[[int], Any], samples: Iterable[int]) -> float:
    """Return the mean seconds of a call."""
    began = time.monotonic()
    count = sum(read(sample) is not None for sample in samples)
    return (time.monotonic() - began) / count


def native(task: Task) -> Result:
    """Measure the GET rate of a native client: a loader of ours without torch, over the second half of ``read``."""
    place = task.place
    received = 0
    halfway: tuple[float, int] | None = None
    with foresee.Loader(
        f"s3://{place.bucket}/{place.prefix}",
        batch_size=NATIVE_BATCH,
        shuffle=True,
        seed=task.seed,
        epochs=1,
        cache=foresee.Cache(ram=NATIVE_RAM_BYTES),
        rank=0,
        world_size=1,
        layout="folder",
        extensions=[".bin"],
        storage_options=storage_options(place),
    ) as loader:
        for batch in loader:
            received += len(batch.offsets) - 1
            if halfway is None and received >= task.read // 2:
                halfway = time.monotonic(), received
            if received >= task.read:
                break
        ended = time.monotonic()
    assert halfway is not None
    since, before = halfway
    return Result(values={"gets_per_s": (received - before) / (ended - since)})
