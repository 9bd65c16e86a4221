#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One job: reads the data in a stock order, and sleeps or trains for each batch.

A job that sleeps reads as a DataLoader with one worker and two batches ahead does, without torch, whose start would
outlast the quick run; its order is that of torch's ``DistributedSampler``, bit for bit. One that trains has the
DataLoader itself.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np

from foresee import _native
from foresee._runtime.step_times import Meter, order_hash

#: What torch's DataLoader has for one worker: batches that are ready, beside the one that is being read.
LEAST_LEAD = 2
EDGE = 96


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="folder of samples")
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compute", type=float, default=0.0, help="seconds that a step sleeps")
    parser.add_argument("--network", choices=("plain_cnn", "residual_cnn"), help="train it instead")
    return parser.parse_args()


def read(folder: str, sample: int) -> bytes:
    """One sample."""
    with open(os.path.join(folder, f"{sample:06d}"), "rb") as file:
        return file.read()


def batches(given: argparse.Namespace, epoch: int) -> Iterator[list[bytes]]:
    """An epoch's batches, read ahead by a thread."""
    order = _native.order_distributed(given.samples, 1, 0, seed=given.seed, epoch=epoch)
    ready: queue.Queue[list[bytes] | None] = queue.Queue(LEAST_LEAD)

    def fetch() -> None:
        for at in range(0, len(order), given.batch):
            ready.put([read(given.data, int(sample)) for sample in order[at : at + given.batch]])
        ready.put(None)

    threading.Thread(target=fetch, daemon=True).start()
    while (batch := ready.get()) is not None:
        yield batch


def sleep(given: argparse.Namespace) -> None:
    """Every epoch, asleep."""
    meter = Meter(os.environ.get("FORESEE_STEPS"))
    order = order_hash(f"distributed {given.samples} {given.seed}")
    for epoch in range(given.epochs):
        timer = meter.timer(steps=-(-given.samples // given.batch), order=order)
        # The timer waits at the gate, so nothing is read before.
        fetched = batches(given, epoch)
        while True:
            timer.begin_wait()
            batch = next(fetched, None)
            if batch is None:
                break
            timer.end_wait()
            time.sleep(given.compute)
        timer.end_step()


def train(given: argparse.Namespace) -> None:
    """Every epoch, training."""
    import networks
    import torch
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    import foresee.torch as ft

    class Pictures(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return int(given.samples)

        def __getitem__(self, at: int) -> torch.Tensor:
            pixels = np.frombuffer(read(given.data, at), np.uint8)[: 3 * EDGE * EDGE]
            return torch.from_numpy(pixels.reshape(3, EDGE, EDGE).astype(np.float32) / 255)

    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    pictures = Pictures()
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(
        pictures, num_replicas=1, rank=0, seed=given.seed
    )
    loader = ft.measure(
        DataLoader(pictures, batch_size=given.batch, sampler=sampler, num_workers=1, persistent_workers=True)
    )
    network = networks.made(given.network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for epoch in range(given.epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()


def main() -> int:
    """Run one job."""
    given = parse()
    (train if given.network else sleep)(given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
