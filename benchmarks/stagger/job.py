#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One job: read the data in the order of ``DistributedSampler``, and sleep or train for each batch.

A job that sleeps reads like a DataLoader with one worker that prefetches two batches, but without torch, which starts
too slowly for the quick run. Its order equals that of ``DistributedSampler`` exactly. A job that trains uses the DataLoader.
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

#: Batches that torch's DataLoader prefetches for one worker, in addition to the one that is being read.
PREFETCHED_BATCHES = 2
EDGE = 96


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="folder of samples")
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compute", type=float, default=0.0, help="seconds that each step sleeps")
    parser.add_argument("--network", choices=("plain_cnn", "residual_cnn"), help="network to train instead")
    return parser.parse_args()


def read(folder: str, sample: int) -> bytes:
    """Read one sample."""
    with open(os.path.join(folder, f"{sample:06d}"), "rb") as file:
        return file.read()


def batches(args: argparse.Namespace, epoch: int) -> Iterator[list[bytes]]:
    """Yield the batches of an epoch, which a thread prefetches."""
    order = _native.order_distributed(args.samples, 1, 0, seed=args.seed, epoch=epoch)
    ready: queue.Queue[list[bytes] | None] = queue.Queue(PREFETCHED_BATCHES)

    def fetch() -> None:
        for at in range(0, len(order), args.batch):
            ready.put([read(args.data, int(sample)) for sample in order[at : at + args.batch]])
        ready.put(None)

    threading.Thread(target=fetch, daemon=True).start()
    while (batch := ready.get()) is not None:
        yield batch


def sleep(args: argparse.Namespace) -> None:
    """Run all epochs with steps that sleep."""
    meter = Meter(os.environ.get("FORESEE_STEPS"))
    order = order_hash(f"distributed {args.samples} {args.seed}")
    for epoch in range(args.epochs):
        timer = meter.timer(steps=-(-args.samples // args.batch), order=order)
        # The timer waits until the job is released, so create it before the first read.
        fetched = batches(args, epoch)
        while True:
            timer.begin_wait()
            batch = next(fetched, None)
            if batch is None:
                break
            timer.end_wait()
            time.sleep(args.compute)
        timer.end_step()


def train(args: argparse.Namespace) -> None:
    """Run all epochs with steps that train."""
    import networks
    import torch
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    import foresee.torch as ft

    class Pictures(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return int(args.samples)

        def __getitem__(self, at: int) -> torch.Tensor:
            pixels = np.frombuffer(read(args.data, at), np.uint8)[: 3 * EDGE * EDGE]
            return torch.from_numpy(pixels.reshape(3, EDGE, EDGE).astype(np.float32) / 255)

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    pictures = Pictures()
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(
        pictures, num_replicas=1, rank=0, seed=args.seed
    )
    loader = ft.measure(
        DataLoader(pictures, batch_size=args.batch, sampler=sampler, num_workers=1, persistent_workers=True)
    )
    network = networks.made(args.network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()


def main() -> int:
    """Run one job."""
    args = parse()
    (train if args.network else sleep)(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
