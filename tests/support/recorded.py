# SPDX-License-Identifier: Apache-2.0
"""Run an example whose loaders write their batches to files: `python recorded.py ARGUMENTS` in place of the example.

``EXAMPLE`` in the environment is the example, so that launchers which restart their program start this one.
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
#: One entry for each batch of this process that may be held.
BATCHES: list[Any] = []


def write_rows(path: pathlib.Path, samples: int) -> pathlib.Path:
    """Write an array whose first column is the number of the row."""
    rows = np.random.default_rng(0).random((samples, 5), dtype=np.float32)
    rows[:, 0] = np.arange(samples) / SCALE
    np.save(path, rows)
    return path


def note(loader: Any, rank: int, rows: Any) -> None:
    """Write a batch down."""
    state = loader.state_dict()
    ids = [round(float(row[0]) * SCALE) for row in rows]
    with pathlib.Path(os.environ["RECORDED"], f"{rank}-{os.getpid()}").open("a") as file:
        print(json.dumps([state["epoch"], state["position"], ids]), file=file)
    hold(loader)


def hold(loader: Any) -> None:
    """Wait with the third batch of a world size that ``HOLD`` has, until the file is there that it names for it."""
    holds = json.loads(os.environ.get("HOLD", "{}"))
    if held := holds.get(str(loader.sampler.num_replicas)) if holds else None:
        BATCHES.append(loader)
        if len(BATCHES) == 3:
            wait_until(pathlib.Path(held).exists, what=f"{held}")


class TorchLoader(ft.DataLoader):
    """Writes each batch to the file."""

    def __iter__(self) -> Iterator[Any]:
        return self._noted(super().__iter__())

    def _noted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            note(self, self.sampler.rank, batch["rows"] if isinstance(batch, dict) else batch)
            yield batch


class NumpyLoader(foresee.Loader):
    """Likewise."""

    def __iter__(self) -> Iterator[Any]:
        return self._noted(super().__iter__())

    def _noted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            note(self, self.rank, batch.rows())
            yield batch


def install() -> None:
    """Let scripts find the loaders that take notes."""
    ft.DataLoader = TorchLoader  # type: ignore[misc]
    foresee.Loader = NumpyLoader  # type: ignore[misc]


def example(name: str) -> Any:
    """The module of an example, which spawned processes find, too."""
    path = ROOT / "examples" / name / "train.py"
    spec = importlib.util.spec_from_file_location("train", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train"] = module
    spec.loader.exec_module(module)
    return module


if __name__ in {"__main__", "__mp_main__"}:  # the second is a process that one of multiprocessing's spawned
    install()
    train = example(os.environ["EXAMPLE"])
    if __name__ == "__main__":
        train.main()
