# SPDX-License-Identifier: Apache-2.0
"""Train a small network on images in a bucket: one rank, with Foresee or with torch's DataLoader.

`run.py` starts it under ``torchrun``, once with each loader. Model, loop, order, decoding and transform are the same
for both; only the class in `LOADERS` differs, so equal loss curves mean equal batches in an equal order. Each rank
writes its times, and the origin's counts if it has any, to ``OUT/rank-K.json``. `report.py` compares the runs.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import signal
import sys
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import bucket
import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from processes import end_with_parent
from report import causes
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import foresee.torch as ft

#: Side of the network's input in pixels; other images are resized.
SIDE = 96
#: Channels after the first convolution: an epoch of 4096 images takes a few seconds on two cores.
WIDTH = 16
#: Batches in memory for the measurement without I/O: 64 of 32 images are 57 MB.
READY_BATCHES = 64
#: Seconds between updates of the progress line.
PROGRESS_EVERY_S = 0.2

Pair = tuple[torch.Tensor, torch.Tensor]


def main() -> int:
    """Train with the options of the command line, as the rank in torchrun's variables."""
    end_with_parent()
    # Exit through Python, so that loader and workers are closed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    args = parse()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    dist.init_process_group("gloo")
    try:
        report = train(args)
    finally:
        dist.destroy_process_group()
    out = args.out / f"rank-{os.environ['RANK']}.json"
    out.write_text(json.dumps(report) + "\n")
    return 0


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="One rank of the demo; started by torchrun.")
    parser.add_argument("data", help="s3://BUCKET/PREFIX with one folder of images per class")
    parser.add_argument("--loader", choices=sorted(LOADERS), required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for this loader's files")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="samples per rank and step")
    parser.add_argument("--seed", type=int, required=True, help="seed of the order and of the network")
    parser.add_argument("--ram", required=True, help="Foresee's memory per rank, such as 256MB")
    parser.add_argument("--workers", type=int, required=True, help="processes per rank of torch's DataLoader")
    parser.add_argument("--counters", help="URL of the origin's counters, if it has any")
    return parser.parse_args()


class Loader(Protocol):
    """Interface of the loaders."""

    samples: int
    classes: list[str]

    def epoch(self, number: int) -> Iterator[Pair]:
        """Iterate over the batches of one epoch."""

    def stats(self) -> dict[str, Any] | None:
        """Return the loader's counters; None if it has none."""

    def close(self) -> None:
        """Stop background threads and processes."""


class Foresee:
    """Foresee's loader, with a data set and a cache."""

    def __init__(self, args: argparse.Namespace) -> None:
        listing = str(args.out / "pictures.fidx")
        if dist.get_rank() == 0:
            ft.FolderDataset(args.data).index.save(listing)
        dist.barrier()
        data = ft.FolderDataset(listing, decode="pil", transform=to_tensor)
        self.samples, self.classes = len(data), data.classes
        self._loader = ft.DataLoader(
            data,
            batch_size=args.batch,
            shuffle=True,
            seed=args.seed,
            epochs=args.epochs,
            cache=ft.Cache(ram=args.ram),
            # The transform has no state and draws no random number, so several may run in parallel.
            transform_threads=args.workers,
        )

    def epoch(self, number: int) -> Iterator[Pair]:
        """As in ``Loader``; ``set_epoch`` is optional, since epochs advance by themselves."""
        self._loader.set_epoch(number)
        return iter(self._loader)

    def stats(self) -> dict[str, Any] | None:
        """Return bytes by source and waits by cause."""
        return self._loader.stats()

    def close(self) -> None:
        """Stop reading."""
        self._loader.close()


class Stock:
    """torch's DataLoader, with persistent workers and connections."""

    def __init__(self, args: argparse.Namespace) -> None:
        found: list[Any] = [bucket.list_pictures(args.data) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(found)
        data = bucket.Pictures(found[0], to_tensor)
        self.samples, self.classes = len(data), data.classes
        # More workers than cores are useful here, because they wait for the origin.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        self._sampler: Any = torch.utils.data.DistributedSampler(data, shuffle=True, seed=args.seed)
        self._loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
            data,
            batch_size=args.batch,
            sampler=self._sampler,
            num_workers=args.workers,
            persistent_workers=args.workers > 0,
            prefetch_factor=4 if args.workers else None,
            worker_init_fn=begin_worker,
        )

    def epoch(self, number: int) -> Iterator[Pair]:
        """As in ``Loader``; without ``set_epoch`` every epoch would have the order of the first one."""
        self._sampler.set_epoch(number)
        return iter(self._loader)

    def stats(self) -> dict[str, Any] | None:
        """Return None: it has no counters."""
        return None

    def close(self) -> None:
        """End the workers."""
        del self._loader


LOADERS: dict[str, Callable[[argparse.Namespace], Loader]] = {"foresee": Foresee, "torch": Stock}


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Train all epochs, then run the same loop without I/O; return the input of `report.py`."""
    origin = Origin(args.counters)
    began = time.monotonic()
    loader = LOADERS[args.loader](args)
    dist.barrier()
    listing = {"seconds": time.monotonic() - began, "origin": origin.since()}
    learner = Learner(len(loader.classes))
    progress = Progress(args)
    epochs, ready = [], []
    try:
        for number in range(args.epochs):
            first: list[Pair] = []
            progress.begin(number, loader.stats)
            epoch = one_epoch(learner, collect_first(loader.epoch(number), first), progress)
            epoch["stats"] = loader.stats()
            epoch["origin"] = origin.since()
            epochs.append(epoch)
            ready = first
    finally:
        loader.close()
    weights = learner.digest()
    steps = len(epochs[-1]["losses"])
    progress.begin(None, lambda: None)
    without_io = one_epoch(learner, itertools.islice(itertools.cycle(ready), steps), progress)
    return {
        "rank": dist.get_rank(),
        "ranks": dist.get_world_size(),
        "samples": loader.samples,
        "classes": loader.classes,
        "listing": listing,
        "epochs": epochs,
        "weights_sha256": weights,
        "without_io": {name: without_io[name] for name in ("seconds", "waited_s")},
    }


def one_epoch(learner: Learner, batches: Iterator[Pair], progress: Progress) -> dict[str, Any]:
    """Train on ``batches``; the wait is the time inside ``next``, the first and the last call included."""
    losses: list[str] = []
    waited = 0.0
    samples = 0
    dist.barrier()
    began = time.monotonic()
    while True:
        began_wait = time.monotonic()
        batch = next(batches, None)
        waited += time.monotonic() - began_wait
        if batch is None:
            break
        loss = learner.step(*batch)
        losses.append(loss.hex())
        samples += len(batch[1])
        progress.show(len(losses), loss, waited)
    dist.barrier()
    seconds = time.monotonic() - began
    progress.end(seconds, len(losses), waited)
    return {"seconds": seconds, "waited_s": waited, "samples": samples, "losses": losses}


def collect_first(batches: Iterable[Pair], first: list[Pair]) -> Iterator[Pair]:
    """Iterate over ``batches``, and add the first ones to ``first``."""
    for batch in batches:
        if len(first) < READY_BATCHES:
            first.append(batch)
        yield batch


class Learner:
    """The network, replicated on all ranks, and its optimizer."""

    def __init__(self, classes: int) -> None:
        self._model = DistributedDataParallel(network(classes))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.02, momentum=0.9)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """Train one step, and return this rank's loss."""
        loss = nn.functional.cross_entropy(self._model(images.float().div(255)), labels)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def digest(self) -> str:
        """Return SHA-256 over all weights."""
        weights = hashlib.sha256()
        for value in self._model.state_dict().values():
            weights.update(value.numpy().tobytes())
        return weights.hexdigest()


def network(classes: int) -> nn.Sequential:
    """Return four convolutions of stride 2, an average and a linear layer: 100 thousand weights."""
    layers: list[nn.Module] = []
    channels = 3
    for depth in range(4):
        wider = WIDTH << depth
        layers += [nn.Conv2d(channels, wider, 3, stride=2, padding=1), nn.BatchNorm2d(wider), nn.ReLU()]
        channels = wider
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def to_tensor(picture: Image.Image) -> torch.Tensor:
    """Convert to uint8 of shape (3, SIDE, SIDE), without a random number."""
    if picture.size != (SIDE, SIDE):
        picture = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def begin_worker(_worker: int) -> None:
    """End a worker process with its rank."""
    end_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Origin:
    """The origin's counters, which rank 0 reads while the others wait."""

    def __init__(self, url: str | None) -> None:
        self._url = url if dist.get_rank() == 0 else None
        self._before = self._now()

    def since(self) -> dict[str, int] | None:
        """Return requests and bytes since the last call; None on other ranks or without counters."""
        dist.barrier()
        now = self._now()
        dist.barrier()
        if now is None or self._before is None:
            return None
        passed = {name: now[name] - self._before[name] for name in now}
        self._before = now
        return passed

    def _now(self) -> dict[str, int] | None:
        if self._url is None:
            return None
        with urllib.request.urlopen(self._url, timeout=10) as response:
            counters = json.load(response)
        return {
            "requests": counters["requests_total"],
            "listings": counters["lists"],
            "bytes": counters["body_bytes"],
        }


class Progress:
    """Rank 0's progress on stderr: a line that is rewritten on a terminal, else one line per epoch."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._epoch: int | None = None
        self._stats: Callable[[], dict[str, Any] | None] = lambda: None
        self._before: dict[str, Any] | None = None
        self._name = args.loader
        self._epochs = args.epochs
        self._shown = dist.get_rank() == 0
        self._live = self._shown and sys.stderr.isatty()
        self._last = 0.0

    def begin(self, epoch: int | None, stats: Callable[[], dict[str, Any] | None]) -> None:
        """Begin ``epoch``, None without I/O; ``stats`` returns the loader's counters."""
        self._epoch = epoch
        self._stats = stats
        self._before = stats() if self._shown else None

    def show(self, steps: int, loss: float, waited_s: float) -> None:
        """Show the progress after ``steps`` of the epoch."""
        now = time.monotonic()
        if self._live and now - self._last >= PROGRESS_EVERY_S:
            self._last = now
            text = f"{self._phase()}  step {steps:>4}  loss {loss:6.3f}  {self._waited(waited_s)}"
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)

    def end(self, seconds: float, steps: int, waited_s: float) -> None:
        """End the epoch."""
        if self._shown:
            text = f"{self._phase()}  {steps:>4} steps  {seconds:5.1f} s, of it {self._waited(waited_s)}"
            start, clear = ("\r", "\x1b[K") if self._live else ("", "")
            print(f"{start}{text}{clear}", file=sys.stderr, flush=True)

    def _waited(self, seconds: float) -> str:
        """Format the wait of rank 0, with its causes if they are known."""
        return f"rank 0 waited {seconds:5.1f} s{causes(self._before, self._stats())}"

    def _phase(self) -> str:
        if self._epoch is None:
            return f"  {self._name:<8} without I/O "
        return f"  {self._name:<8} epoch {self._epoch + 1} of {self._epochs}"


if __name__ == "__main__":
    sys.exit(main())
