#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare user-defined datasets and images with torch's loader, and a table of files with a folder.

Loaders alternate. ``run.py --quick`` measures its lines about datasets here, without the images. Prints a table;
``--json`` prints one object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision.datasets import ImageFolder

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.verdicts import Line, judged

import foresee.torch as ft

#: Size of the dataset whose ``__getitem__`` computes, and seconds per sample.
SAMPLES, GETITEM_S = 320, 0.001
FILES, FILE_BYTES, FILES_BATCH = 8192, 4096, 64
#: Epochs of each loader in one repeat when epochs alternate.
TURNS = 40
PICTURES, SIDE, BATCH = 600, 160, 32
#: Values that torch's loader tries; the best one counts.
PREFETCH_FACTORS = (2, 4, 8)

Epochs = Callable[[int], float]
"""Returns the seconds of the given number of epochs, including the gaps between them."""


class Computing(Dataset[Any]):
    """Compute for a millisecond in Python per sample."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        end = time.perf_counter() + GETITEM_S
        while time.perf_counter() < end:
            pass
        return torch.full((64,), float(i)), i


@contextmanager
def opened(loader: Any) -> Iterator[Epochs]:
    """Run a first epoch, so that workers have started, and yield a function that times epochs."""

    def epochs(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            for _ in loader:
                pass
        return time.perf_counter() - began

    epochs(1)
    try:
        yield epochs
    finally:
        if hasattr(loader, "close"):
            loader.close()


def ratios_of(
    ours: Callable[[], Any], theirs: Sequence[Callable[[], Any]], repeats: int, epochs: int = 2
) -> list[float]:
    """Return our time over that of their best setting; loaders alternate, and each is created once per repeat."""
    ratios = []
    for _ in range(repeats):
        seconds = []
        for make in theirs:
            with opened(make()) as run:
                seconds.append(run(epochs))
        with opened(ours()) as run:
            ratios.append(run(epochs) / min(seconds))
    return ratios


def interleaved(ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int) -> list[float]:
    """Return our median epoch over theirs with alternating epochs of two open loaders; for epochs of milliseconds."""
    ratios = []
    for _ in range(repeats):
        with opened(theirs()) as run_theirs, opened(ours()) as run_ours:
            pairs = [(run_ours(1), run_theirs(1)) for _ in range(TURNS)]
        mine, other = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
        ratios.append(mine / other)
    return ratios


def computing(workers: int, repeats: int) -> list[float]:
    """Measure ``any_dataset_over_torch``: a user-defined dataset."""
    settings: list[dict[str, Any]] = [{}]
    ours: dict[str, Any] = {}
    if workers:
        ours = {"num_workers": workers, "persistent_workers": True}
        settings = [{**ours, "prefetch_factor": factor} for factor in PREFETCH_FACTORS]
    data = Computing()
    theirs = [
        lambda args=args: DataLoader(data, batch_size=BATCH, sampler=RandomSampler(data), **args)
        for args in settings
    ]
    return ratios_of(
        lambda: ft.DataLoader(data, batch_size=BATCH, shuffle=True, seed=0, **ours), theirs, repeats, epochs=8
    )


def tables(repeats: int) -> list[float]:
    """Measure ``file_table_over_folder``: the same files by name and by listing, later epochs, from memory."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "class"
        folder.mkdir()
        paths = [folder / f"{i:05}.bin" for i in range(FILES)]
        for i, path in enumerate(paths):
            path.write_bytes(bytes([i % 256]) * FILE_BYTES)
        args: dict[str, Any] = {"batch_size": FILES_BATCH, "shuffle": True, "seed": 0}
        listed = partial(ft.FolderDataset, place, extensions=".bin")
        named = partial(ft.FileDataset, paths, [0] * FILES)
        return interleaved(
            lambda: ft.DataLoader(named(), **args), lambda: ft.DataLoader(listed(), **args), repeats
        )


def pictures(folder: Path) -> None:
    """Write small JPEGs in six classes."""
    noise = np.random.default_rng(0)
    for i in range(PICTURES):
        path = folder / f"class-{i % 6}"
        path.mkdir(exist_ok=True)
        coarse = Image.fromarray(noise.integers(0, 255, (20, 20, 3), dtype=np.uint8))
        coarse.resize((SIDE, SIDE)).save(path / f"{i:04}.jpg", quality=85)


def as_tensor(picture: Image.Image) -> torch.Tensor:
    """Return a tensor of shape (3, height, width) with values from 0 to 1."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float().div_(255)


def first_batch(make: Callable[[], Any]) -> float:
    """Return the seconds from creating a loader to its first batch."""
    began = time.perf_counter()
    loader = make()
    iterator = iter(loader)
    next(iterator)
    seconds = time.perf_counter() - began
    del iterator
    if hasattr(loader, "close"):
        loader.close()
    return seconds


def picture_ratios(folder: Path, repeats: int) -> dict[str, list[float]]:
    """Measure the first batch and later epochs of images with two workers."""
    args: dict[str, Any] = {"batch_size": BATCH, "num_workers": 2}

    def theirs(**more: Any) -> Any:
        data = ImageFolder(folder, as_tensor)
        return DataLoader(data, sampler=RandomSampler(data), **args, **more)

    def ours(**more: Any) -> Any:
        return ft.DataLoader(
            ft.FolderDataset(folder, transform=as_tensor), shuffle=True, seed=0, **args, **more
        )

    starts = [first_batch(ours) - first_batch(theirs) for _ in range(repeats)]
    staying = {"persistent_workers": True}
    later = ratios_of(lambda: ours(**staying), [lambda: theirs(**staying)], repeats, epochs=3)
    return {"pictures_first_batch_over_torch": starts, "pictures_later_epochs_over_torch": later}


def measure(repeats: int) -> dict[str, list[float]]:
    """Measure the lines of ``run.py``, one value per repeat."""
    return {
        "any_dataset_over_torch": computing(2, repeats),
        "any_dataset_alone_over_torch": computing(0, repeats),
        "file_table_over_folder": tables(repeats),
    }


#: name, unit, limit.
LINES = [
    ("any_dataset_over_torch", "ratio", 1.0),
    ("any_dataset_alone_over_torch", "ratio", 1.02),
    ("file_table_over_folder", "ratio", 1.02),
]


def lines(values: dict[str, list[float]]) -> list[Line]:
    """Return the acceptance lines of ``values``."""
    return [
        judged(name, unit, limit, below=True, value=statistics.median(values[name]))
        for name, unit, limit in LINES
    ]


def main() -> int:
    """Measure and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--repeats", type=int, default=5, help="default %(default)s")
    args = parser.parse_args()
    values = measure(args.repeats)
    with tempfile.TemporaryDirectory() as folder:
        pictures(Path(folder))
        values |= picture_ratios(Path(folder), args.repeats)
    if args.json:
        print(json.dumps(values))
        return 0
    for name, each in values.items():
        print(f"{name:36} {statistics.median(each):7.3f}  ({min(each):.3f} to {max(each):.3f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
