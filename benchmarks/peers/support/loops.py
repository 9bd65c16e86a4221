# SPDX-License-Identifier: Apache-2.0
"""The loop of a rank: training without a model, in step with all ranks."""

from __future__ import annotations

import logging
import time
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from common.process_tree import cpu_s
from common.proof import order_checksum
from common.samples import ID_BYTES

from .arms import Ours, Stock
from .task import Epoch, Result, Task

#: How a message begins when the nodes have met.
MET = "this node exchanges samples"
#: Messages that a result has at most.
MESSAGES_MAX = 50


class Messages(logging.Handler):
    """The messages of the logger ``foresee``, with their times."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Store a message."""
        self.found.append((time.monotonic(), record.getMessage()))

    @classmethod
    def attach(cls) -> Messages:
        """Store all messages from now on, and print them on standard error too."""
        messages = cls()
        logger = logging.getLogger("foresee")
        logger.setLevel(logging.INFO)
        logger.addHandler(messages)
        shown = logging.StreamHandler()
        shown.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(shown)
        return messages


def train(opened: Ours | Stock, task: Task, messages: Messages) -> Result:
    """Run all epochs, together with all ranks."""
    result = Result()
    cpu_before = cpu_s()
    dist.barrier()
    for number in range(task.epochs):
        result.epochs.append(_epoch(opened, task, number))
        result.epochs[-1].counts = opened.counts()
    # The host of a node serves others until all are done.
    dist.barrier()
    result.cpu_s = cpu_s() - cpu_before
    result.counts = opened.counts()
    began = result.epochs[0].began
    result.met_s = next((at - began for at, text in messages.found if text.startswith(MET)), None)
    result.messages = [f"{at - began:.3f} s: {text}" for at, text in messages.found[:MESSAGES_MAX]]
    dist.barrier()
    return result


def _epoch(opened: Ours | Stock, task: Task, number: int) -> Epoch:
    epoch = Epoch(received_bytes=-received_bytes(task.interface))
    clock = time.monotonic
    epoch.began = requested = clock()
    # The start of the epoch is part of the wait for its first batch.
    batches = opened.epoch(number)
    while True:
        batch = next(batches, None)
        received = clock()
        epoch.waits_s.append(received - requested)
        if batch is None:
            break
        _count(batch, epoch)
        time.sleep(max(0.0, received + task.step_s - clock()))
        computed = clock()
        dist.barrier()
        requested = clock()
        epoch.barriers_s += requested - computed
    epoch.ended = clock()
    epoch.received_bytes += received_bytes(task.interface)
    return epoch


def _count(batch: torch.Tensor, epoch: Epoch) -> None:
    rows = batch.numpy()
    ids = np.ascontiguousarray(rows[:, :ID_BYTES]).view("<u8").ravel()
    epoch.samples += len(rows)
    epoch.bytes += rows.nbytes
    epoch.order = order_checksum(ids, epoch.order)
    epoch.checksum = (epoch.checksum + sum(map(zlib.crc32, rows))) % 2**64


def received_bytes(interface: str, table: Path = Path("/proc/net/dev")) -> int:
    """Return the bytes that an interface of this network namespace has received; 0 for no interface."""
    if not interface:
        return 0
    for line in table.read_text().splitlines():
        name, colon, values = line.partition(":")
        if colon and name.strip() == interface:
            return int(values.split()[0])
    raise ValueError(f"{table} has no interface {interface}")
