# SPDX-License-Identifier: Apache-2.0
"""Run an example with loaders that write their batches to files: `python recorded_example.py ARGUMENTS`.

The environment variable ``EXAMPLE`` names the example, so that a launcher can restart this program.
``RECORDED`` is the folder of the files, one per rank and process. Each line is a batch: its epoch, the position after
it, and the ids of its samples, which are 64 times the first column.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import foresee
import foresee.torch as ft
from support.waiting import wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCALE = 64
#: One entry per batch of this process, if batches may be held.
BATCHES: list[Any] = []


def write_rows(path: pathlib.Path, samples: int) -> pathlib.Path:
    """Write an array whose first column is the number of the row."""
    rows = np.random.default_rng(0).random((samples, 5), dtype=np.float32)
    rows[:, 0] = np.arange(samples) / SCALE
    np.save(path, rows)
    return path


def record(loader: Any, rank: int, rows: Any) -> None:
    """Append a batch to the file of this process."""
    state = loader.state_dict()
    ids = [round(float(row[0]) * SCALE) for row in rows]
    with pathlib.Path(os.environ["RECORDED"], f"{rank}-{os.getpid()}").open("a") as file:
        print(json.dumps([state["epoch"], state["position"], ids]), file=file)
    hold(loader)


def hold(loader: Any) -> None:
    """At the third batch, wait until the file exists that ``HOLD`` names for this world size."""
    holds = json.loads(os.environ.get("HOLD", "{}"))
    if held := holds.get(str(loader.sampler.num_replicas)) if holds else None:
        BATCHES.append(loader)
        if len(BATCHES) == 3:
            wait_until(pathlib.Path(held).exists, what=f"{held}")


class TorchLoader(ft.DataLoader):
    """Writes each batch to the file."""

    def __iter__(self) -> Iterator[Any]:
        return self._recorded(super().__iter__())

    def _recorded(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            record(self, self.sampler.rank, batch["rows"] if isinstance(batch, dict) else batch)
            yield batch


class NumpyLoader(foresee.Loader):
    """Writes each batch to the file."""

    def __iter__(self) -> Iterator[Any]:
        return self._recorded(super().__iter__())

    def _recorded(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            record(self, self.rank, batch.rows())
            yield batch


def install() -> None:
    """Replace the loaders of Foresee by the recording ones."""
    ft.DataLoader = TorchLoader  # type: ignore[misc]
    foresee.Loader = NumpyLoader  # type: ignore[misc]


def example(name: str) -> Any:
    """Import an example as ``train``, a name that spawned processes also find."""
    path = ROOT / "examples" / name / "train.py"
    spec = importlib.util.spec_from_file_location("train", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train"] = module
    spec.loader.exec_module(module)
    return module


if __name__ in {"__main__", "__mp_main__"}:  # the second: a process spawned by multiprocessing
    install()
    train = example(os.environ["EXAMPLE"])
    if __name__ == "__main__":
        train.main()
