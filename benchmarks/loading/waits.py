#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cost of a transform in each mode of the loader, and the sum of its wait causes against the time inside ``next()``.

No acceptance line of PROTOCOL.md uses these values: they compare loaders without a transform. Prints a table;
``--json`` prints one object per run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import foresee
import foresee.torch as ft

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.testbed import Testbed

SAMPLES, SAMPLE_BYTES, BATCH = 256, 4000, 16
#: Seconds during which every request fails.
STORM_S = 2.0
OPTIONS = {"skip_signature": "true", "region": "us-east-1"}
NOISE = bytes(range(256)) * 40_000


@dataclass(frozen=True)
class Spinning:
    """A transform in pure Python that holds the GIL for ``seconds``."""

    seconds: float

    def __call__(self, value: Any) -> torch.Tensor:
        """Return the sample unchanged."""
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return torch.as_tensor(value)


@dataclass(frozen=True)
class Hashing:
    """A transform in C that releases the GIL, like image decoders; it hashes ``count`` bytes."""

    count: int

    def __call__(self, value: Any) -> torch.Tensor:
        """Return the sample unchanged."""
        hashlib.sha256(NOISE[: self.count])
        return torch.as_tensor(value)


class Files(Dataset[torch.Tensor]):
    """Dataset for torch's loader: one file per sample."""

    def __init__(self, paths: list[str], transform: Callable[[Any], torch.Tensor]) -> None:
        self._paths = paths
        self._transform = transform

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, i: int) -> torch.Tensor:
        return self._transform(np.fromfile(self._paths[i], np.uint8))


@dataclass
class Run:
    """One run of one arm."""

    part: str
    arm: str
    seconds: float
    """Seconds of the last epoch."""
    waited: float
    """Seconds inside ``next()`` in the last epoch."""
    ratio: float | None
    """Sum of all causes over the time inside ``next()``, all epochs; None if the loader has no statistics."""
    causes: dict[str, float]
    """Seconds by cause, all epochs."""


def measure(part: str, arm: str, loader: Any, *, step_s: float, epochs: int = 2) -> Run:
    """Loop over ``loader``; a step sleeps for ``step_s``."""
    waited: list[float] = []
    took: list[float] = []
    for _ in range(epochs):
        began, inside = time.perf_counter(), 0.0
        batches: Iterator[Any] = iter(loader)
        while True:
            requested = time.perf_counter()
            batch = next(batches, None)
            inside += time.perf_counter() - requested
            if batch is None:
                break
            if step_s:
                time.sleep(step_s)
        waited.append(inside)
        took.append(time.perf_counter() - began)
    causes: dict[str, float] = {}
    if hasattr(loader, "stats"):
        causes = {name: each["seconds"] for name, each in loader.stats()["waits"].items() if each is not None}
        loader.close()
    ratio = sum(causes.values()) / sum(waited) if causes else None
    return Run(part, arm, took[-1], waited[-1], ratio, causes)


def transforms(folder: Path, ms: float, step_s: float) -> Iterator[Run]:
    """Measure every mode with a transform of ``ms`` milliseconds, and torch's loader."""
    rate = hash_rate()
    paths = [str(path) for path in sorted(folder.rglob("*.bin"))]
    for kind, transform in (("python", Spinning(ms / 1e3)), ("native", Hashing(int(rate * ms / 1e3)))):
        data = ft.FolderDataset(folder, extensions=[".bin"], decode=None, transform=transform)
        ours: dict[str, dict[str, Any]] = {
            "num_workers=0": {},
            "transform_threads=2": {"transform_threads": 2},
            "transform_threads=4": {"transform_threads": 4},
            "num_workers=2": {"num_workers": 2, "persistent_workers": True},
        }
        part = f"transform {kind}"
        for arm, arguments in ours.items():
            loader = ft.DataLoader(data, batch_size=BATCH, shuffle=True, seed=0, **arguments)
            yield measure(part, f"ours {arm}", loader, step_s=step_s)
        for workers in (0, 2):
            stock: DataLoader[torch.Tensor] = DataLoader(
                Files(paths, transform),
                BATCH,
                shuffle=True,
                num_workers=workers,
                persistent_workers=workers > 0,
            )
            yield measure(part, f"torch num_workers={workers}", stock, step_s=step_s)
            del stock


def hash_rate() -> float:
    """Return the bytes per second that one core hashes."""
    began = time.perf_counter()
    hashlib.sha256(NOISE)
    return len(NOISE) / (time.perf_counter() - began)


def memory(folder: Path) -> Iterator[Run]:
    """Measure batches from memory, without transform and compute: the shortest ``next()``."""
    rows = folder.parent / "rows.npy"
    np.save(rows, np.zeros((50_000, 256), np.uint8))
    for batch in (4, 32, 256):
        arguments: dict[str, Any] = {"batch_size": batch, "shuffle": True, "seed": 0}
        yield measure("memory", f"foresee.Loader batch {batch}", foresee.Loader(rows, **arguments), step_s=0)
        data = ft.ArrayDataset(str(rows))
        yield measure("memory", f"DataLoader batch {batch}", ft.DataLoader(data, **arguments), step_s=0)


def origins(folder: Path, step_s: float) -> Iterator[Run]:
    """Measure a bucket with 50 ms of latency, without faults and with two seconds of faults."""
    storms: dict[str, list[dict[str, Any]]] = {
        "latency": [],
        "503": [{"kind": "status", "status": 503, "path": "/train/"}],
        "reset": [{"kind": "reset", "path": "/train/"}],
    }
    with Testbed("serve", str(folder.parent.parent)) as testbed:
        options = {**OPTIONS, "endpoint": testbed.url}
        uri = f"s3://{folder.parent.name}/train"
        data = ft.FolderDataset(
            uri, extensions=[".bin"], decode=None, transform=torch.Tensor.float, storage_options=options
        )
        for name, rules in storms.items():
            makers: dict[str, Callable[[], Any]] = {
                "foresee.Loader": lambda: foresee.Loader(
                    uri, batch_size=BATCH, extensions=[".bin"], storage_options=options
                ),
                "num_workers=0": lambda: ft.DataLoader(data, batch_size=BATCH),
                "transform_threads=2": lambda: ft.DataLoader(data, batch_size=BATCH, transform_threads=2),
                "num_workers=2": lambda: ft.DataLoader(data, batch_size=BATCH, num_workers=2),
            }
            for arm, make in makers.items():
                testbed.limit(latency_ms=50)
                testbed.faults()
                loader = make()
                testbed.faults(*rules)
                threading.Timer(STORM_S, testbed.faults).start()
                yield measure(f"origin {name}", arm, loader, step_s=step_s, epochs=1)


def main() -> int:
    """Run the selected parts."""
    parser = argparse.ArgumentParser(description="Costs of transforms, and waits by cause, in every mode.")
    parser.add_argument(
        "--ms", type=float, default=3.0, help="milliseconds of a transform (default %(default)s)"
    )
    parser.add_argument(
        "--step-ms", type=float, default=20.0, help="milliseconds of a step (default %(default)s)"
    )
    parser.add_argument(
        "--parts", nargs="*", choices=("transforms", "memory", "origins"), help="run only these"
    )
    parser.add_argument("--json", action="store_true", help="one object per run")
    args = parser.parse_args()
    parts = args.parts or ["transforms", "memory", "origins"]
    step_s = args.step_ms / 1e3
    with tempfile.TemporaryDirectory(prefix="foresee-bench-") as home:
        folder = Path(home) / "bucket" / "train"
        (folder / "c").mkdir(parents=True)
        for i in range(SAMPLES):
            (folder / "c" / f"{i:04}.bin").write_bytes(NOISE[i : i + SAMPLE_BYTES])
        runs: list[Iterator[Run]] = []
        if "transforms" in parts:
            runs.append(transforms(folder, args.ms, step_s))
        if "memory" in parts:
            runs.append(memory(folder))
        if "origins" in parts:
            runs.append(origins(folder, step_s))
        if not args.json:
            print(
                "| part | arm | epoch s | waited s | causes / clock | longest causes, s |\n|---|---|---|---|---|---|"
            )
        for run in (run for part in runs for run in part):
            print(json.dumps(asdict(run)) if args.json else row(run), flush=True)
    return 0


def row(run: Run) -> str:
    """Return a line of the table."""
    causes = sorted(run.causes.items(), key=lambda each: -each[1])
    longest = ", ".join(f"`{name}` {seconds:.2f}" for name, seconds in causes[:3] if seconds >= 0.005)
    ratio = "-" if run.ratio is None else f"{run.ratio:.3f}"
    return f"| {run.part} | {run.arm} | {run.seconds:.2f} | {run.waited:.2f} | {ratio} | {longest} |"


if __name__ == "__main__":
    sys.exit(main())
