# SPDX-License-Identifier: Apache-2.0
"""Users' datasets in worker processes: start methods, reused memory, and the dataset that workers see."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from support.waiting import wait_until
from torch.utils.data import DataLoader, Subset, get_worker_info

import foresee.torch as ft
from foresee.errors import WorkerDied
from foresee.torch.data import worker_start

N = 40


class Blocks:
    """Sample i is 4 KB of i, times a factor that can be changed."""

    factor = 1

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.full((1024,), float(i * self.factor)), os.getpid()


class Failing(Blocks):
    """Every third sample fails."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if i % 3 == 0:
            raise ValueError(f"row {i}")
        return super().__getitem__(i)


class Leaving(Blocks):
    """Ends its process."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        os._exit(3)


def firsts(batches) -> list[list[float]]:
    return [data[:, 0].tolist() for data, _ in batches]


def blocks(size: int = 4) -> list[list[float]]:
    return [[float(i) for i in range(start, start + size)] for start in range(0, N, size)]


def test_retained_batches_do_not_change_when_later_ones_are_made() -> None:
    with ft.DataLoader(Blocks(), batch_size=4, num_workers=2, persistent_workers=True) as loader:
        retained = list(loader) + list(loader)
        assert firsts(retained) == blocks() * 2
        for data, _ in retained:
            assert (data == data[:, :1]).all()
    assert firsts(retained) == blocks() * 2, "batches changed after the workers ended"


def test_memory_of_freed_batches_is_reused() -> None:
    with ft.DataLoader(Blocks(), batch_size=4, num_workers=1, persistent_workers=True) as loader:
        for _ in range(5):
            assert firsts(loader) == blocks()
        (worker,) = loader._resources._pool._workers
        assert len(worker.segments) <= 6, "two ahead, one in the loop, one released, and one in progress"


def test_workers_of_the_next_epoch_see_a_changed_dataset() -> None:
    dataset = Blocks()
    with ft.DataLoader(dataset, batch_size=4, num_workers=2) as loader:
        assert firsts(loader) == blocks()
        dataset.factor = 2
        assert firsts(loader) == [[2 * x for x in row] for row in blocks()]


def test_persistent_workers_begin_the_next_epoch_before_its_iter() -> None:
    with ft.DataLoader(Blocks(), batch_size=4, num_workers=2, persistent_workers=True) as loader:
        assert firsts(loader) == blocks()
        wait_until(lambda: loader.stats()["samples"] > N, what="the samples of the next epoch")
        assert firsts(loader) == blocks()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_every_start_method_gives_the_same_batches(method: str) -> None:
    offset = 1
    with ft.DataLoader(
        Blocks(),
        batch_size=4,
        num_workers=1,
        multiprocessing_context=method,
        collate_fn=lambda samples: [float(data[0]) + offset for data, _ in samples],
    ) as loader:
        assert list(loader) == [[x + 1 for x in row] for row in blocks()]


def test_workers_of_the_next_epoch_start_at_the_end_of_this_one_with_the_current_dataset(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_start, "_LARGE_PAYLOAD", 100)
    dataset, offset = Blocks(), 1
    with ft.DataLoader(
        dataset,
        batch_size=4,
        num_workers=1,
        multiprocessing_context="spawn",
        epochs=2,
        collate_fn=lambda samples: [(float(data[0]) + offset, pid) for data, pid in samples],
    ) as loader:
        assert [[x for x, _ in batch] for batch in loader] == [[x + 1 for x in row] for row in blocks()]
        ready = loader._resources._starter._ready
        wait_until(lambda: len(ready) == 1, what="a worker for the next epoch")
        pid = ready[0][0].pid
        dataset.factor = 2
        assert list(loader) == [[(2 * x + 1, pid) for x in row] for row in blocks()]
        assert not loader._resources._starter._ready, "workers were started for a third epoch"
    assert "the pickle of Blocks has 0.0 GB, and each worker gets a copy" in caplog.text


def test_faults_in_workers_follow_on_error_as_in_the_training_process() -> None:
    def run(workers: int, on_error: str):
        with ft.DataLoader(Failing(), batch_size=4, num_workers=workers, on_error=on_error) as loader:
            batches, audit = firsts(loader), loader.audit()
            changes = audit["replaced"] + audit["skipped"]
            return batches, sorted(changes, key=lambda change: change["position"])

    for on_error in ("replace", "skip"):
        assert run(2, on_error) == run(0, on_error)


def test_a_worker_that_exits_is_named() -> None:
    with (
        ft.DataLoader(Leaving(), batch_size=4, num_workers=1) as loader,
        pytest.raises(WorkerDied, match=r"worker 0 \(pid \d+\) exited with code 3"),
    ):
        next(iter(loader))


def test_a_dataset_of_torchvision_works_unchanged() -> None:
    # Imported here, because each worker process that is not a fork imports this file.
    from torchvision.datasets import FakeData
    from torchvision.transforms.functional import to_tensor

    pictures = FakeData(12, image_size=(3, 8, 8), num_classes=5, transform=to_tensor)
    for workers in (0, 1):
        with ft.DataLoader(pictures, batch_size=5, num_workers=workers) as loader:
            for ours, theirs in zip(loader, DataLoader(pictures, batch_size=5), strict=True):
                assert all(map(torch.equal, ours, theirs))


def note_dataset(number: int) -> None:
    """Stores the result of ``get_worker_info`` for the transform."""
    info = get_worker_info()
    assert info is not None
    Row.seen = (number, type(info.dataset).__name__, list(info.dataset.indices))


class Row:
    """A transform that adds what its worker knows of the dataset."""

    seen: tuple[int, str, list[int]] | None = None

    def __call__(self, row: torch.Tensor) -> tuple[torch.Tensor, tuple[str, list[int]]]:
        assert self.seen is not None
        return row, self.seen[1:]


@pytest.mark.parametrize(("method", "workers"), [("spawn", 1), ("fork", 2)])
def test_workers_see_the_subset_whose_bytes_the_engine_reads(tmp_path, method, workers) -> None:
    np.save(tmp_path / "rows.npy", np.arange(20).reshape(10, 2))
    subset = Subset(ft.ArrayDataset(str(tmp_path), transform=Row()), [7, 2, 5])
    loader = ft.DataLoader(
        subset,
        batch_size=2,
        num_workers=workers,
        multiprocessing_context=method,
        worker_init_fn=note_dataset,
        # Otherwise a process that is not a fork is started for the next epoch.
        epochs=1,
        collate_fn=list,
    )
    samples = [sample for batch in loader for sample in batch]
    assert [row[0].item() for row, _ in samples] == [14, 4, 10]
    assert [seen for _, seen in samples] == [("Subset", [7, 2, 5])] * 3
    assert loader.stats()["operations"]["origin"]["read"]["ok"]["samples"] == 3
