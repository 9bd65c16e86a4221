# SPDX-License-Identifier: Apache-2.0
"""Step times that loaders write for their launcher: the file, its reader, and ``ft.measure`` with torch's loader."""

from __future__ import annotations

import doctest
import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support.house import ROOT
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import foresee
import foresee.torch as ft
from foresee._runtime import step_times
from foresee._runtime.ranks import World
from foresee._runtime.step_times import Meter, StepsReader, order_hash
from foresee.errors import ConfigError

DATA = TensorDataset(torch.arange(10))


@pytest.fixture
def steps_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the environment names."""
    monkeypatch.setenv("FORESEE_STEPS", str(tmp_path / "steps"))
    return tmp_path / "steps"


def rows(folder: Path, rank: int = 0) -> tuple[step_times.StepsHeader, np.ndarray]:
    file = StepsReader(str(folder / f"rank-{rank}.steps"))
    new = file.poll()
    assert file.head is not None
    return file.head, new


def test_the_examples_in_the_docstrings_are_true() -> None:
    assert not doctest.testmod(step_times).failed


def test_the_example_of_the_format_page_is_read_as_documented(tmp_path: Path) -> None:
    page = (ROOT / "docs/formats/steps.md").read_text()
    example = re.findall(r"^```\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)[-1]
    (tmp_path / "rank-1.steps").write_bytes(bytes.fromhex(example))
    head, steps = rows(tmp_path, 1)
    assert head == step_times.StepsHeader(rank=1, ranks=2, steps=3, order=order_hash("sequential 10"))
    assert steps.tolist() == [(10**9, 2 * 10**6, 5 * 10**6, 0, 0)]


class Nanoseconds:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 10**15

    def __call__(self) -> int:
        return self.now

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.now += round(1e9 * seconds)


def test_waiting_and_computing_are_separated_and_the_reader_follows_the_file(tmp_path: Path) -> None:
    clock = Nanoseconds()
    meter = Meter(str(tmp_path / "new"), World(1, 2), clock=clock)
    file = StepsReader(str(tmp_path / "new" / "rank-1.steps"))
    assert len(file.poll()) == 0
    timer = meter.timer(steps=3, order=7)
    began = clock()
    for wait, compute in ((0.02, 0.04), (0.03, 0.07)):
        timer.begin_wait()
        clock.pass_by(wait)
        timer.end_wait()
        clock.pass_by(compute)
    (first,) = file.poll()
    assert first.tolist() == (began, 20_000_000, 40_000_000, 0, 0)
    timer.end_step()
    timer.end_step()
    (second,) = file.poll()
    assert second.tolist() == (began + 60_000_000, 30_000_000, 70_000_000, 0, 1)
    assert file.head == step_times.StepsHeader(rank=1, ranks=2, steps=3, order=7)
    stats = meter.stats()
    assert (stats["steps"], stats["epochs"]) == (2, 1)
    assert stats["wait_seconds"] == pytest.approx(0.025)
    assert stats["compute_seconds_sd"] == pytest.approx(np.std([0.04, 0.07], ddof=1))


def test_time_at_a_locked_gate_is_in_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Nanoseconds()
    meter = Meter(str(tmp_path), World(0, 1), clock=clock)
    timer = meter.timer(steps=3)
    began = clock()
    timer.begin_wait()
    clock.pass_by(0.02)
    timer.end_wait()
    clock.pass_by(0.04)

    def held() -> bool:
        # The previous step has ended and is written while the gate is locked.
        assert len(rows(tmp_path)[1]) == 1
        clock.pass_by(5.0)
        return True

    monkeypatch.setattr(meter, "_pass_gate", held)
    timer.begin_wait()
    clock.pass_by(0.03)
    timer.end_wait()
    timer.end_step()
    first, second = rows(tmp_path)[1].tolist()
    assert first[:3] == (began, 20_000_000, 40_000_000)
    assert second[:3] == (began + 5_060_000_000, 30_000_000, 0)


def test_without_the_variable_no_file_is_written_and_stats_has_the_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loader = ft.measure(DataLoader(DATA, batch_size=4))
    assert loader.stats()["wait_seconds"] is None
    assert [batch[0].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(loader) == 3
    assert loader.batch_size == 4
    assert (loader.stats()["steps"], loader.stats()["epochs"]) == (3, 1)
    assert not os.listdir(tmp_path)
    with pytest.raises(AttributeError):
        _ = loader.no_such_thing


def test_a_measured_stock_loader_writes_steps_epochs_and_its_order(steps_folder: Path) -> None:
    loader = ft.measure(DataLoader(DATA, batch_size=4))
    for _ in range(2):
        list(loader)
    head, steps = rows(steps_folder)
    assert head == step_times.StepsHeader(rank=0, ranks=1, steps=3, order=order_hash("sequential 10"))
    assert steps["epoch"].tolist() == [0, 0, 0, 1, 1, 1]
    assert steps["step"].tolist() == [0, 1, 2, 0, 1, 2]
    assert (np.diff(steps["begin_ns"].astype(np.int64)) > 0).all()


def test_a_loop_that_is_left_early_has_written_its_steps(steps_folder: Path) -> None:
    for _ in ft.measure(DataLoader(DATA, batch_size=4)):
        break
    assert len(rows(steps_folder)[1]) == 1


def orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *loaders: DataLoader, seed: int = 0
) -> list[int | None]:
    hashes = []
    for i, loader in enumerate(loaders):
        monkeypatch.setenv("FORESEE_STEPS", str(tmp_path / str(i)))
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        measured = ft.measure(loader)
        shuffled = [batch[0].tolist() for batch in measured]
        hashes.append(rows(tmp_path / str(i))[0].order)
        torch.set_rng_state(before)
        assert shuffled == [batch[0].tolist() for batch in loader], "measuring draws nothing"
    return hashes


def test_equal_orders_have_equal_hashes_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seeded(seed: int) -> DataLoader:
        return DataLoader(DATA, 2, sampler=DistributedSampler(DATA, num_replicas=1, rank=0, seed=seed))

    hashes = orders(
        tmp_path, monkeypatch, seeded(3), seeded(4), DataLoader(DATA, 2), DataLoader(DATA, 2, shuffle=True)
    )
    assert len({*hashes, None}) == 5
    assert hashes[0] == order_hash("distributed 10 3")


def test_the_hash_of_a_random_order_depends_on_the_generators_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = []
    for i, (seed, batch) in enumerate([(3, 2), (3, 5), (4, 2)]):
        monkeypatch.setenv("FORESEE_STEPS", str(tmp_path / str(i)))
        generator = torch.Generator().manual_seed(seed)
        list(ft.measure(DataLoader(DATA, batch, shuffle=True, generator=generator)))
        hashes.append(rows(tmp_path / str(i))[0].order)
    assert hashes[0] == hashes[1] != hashes[2]
    assert None not in hashes


def test_an_order_of_an_unknown_sampler_has_no_hash(steps_folder: Path) -> None:
    list(ft.measure(DataLoader(DATA, 2, sampler=[3, 1, 2, 0])))
    assert rows(steps_folder)[0].order is None


def test_any_iterable_can_be_measured(steps_folder: Path) -> None:
    loader = ft.measure(range(3))
    assert list(loader) == [0, 1, 2]
    head, steps = rows(steps_folder)
    assert (head.steps, head.order, len(steps)) == (3, None, 3)
    endless = ft.measure(iter([1, 2]))
    with pytest.raises(TypeError):
        len(endless)
    assert list(endless) == [1, 2]


def test_the_first_loader_of_a_rank_counts(steps_folder: Path) -> None:
    list(ft.measure(DataLoader(DATA, batch_size=4)))
    list(ft.measure(DataLoader(DATA, batch_size=1)))
    head, steps = rows(steps_folder)
    assert (head.steps, len(steps)) == (3, 3)


@pytest.mark.parametrize("shuffle", [False, True])
def test_foresee_loaders_write_the_same_steps_without_a_wrapper(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shuffle: bool
) -> None:
    expected = order_hash("distributed 23 5" if shuffle else "sequential 23")
    for i, make in enumerate(
        (
            lambda: foresee.Loader(folder, batch_size=4, shuffle=shuffle, seed=5, epochs=2),
            lambda: ft.DataLoader(ft.FolderDataset(folder), batch_size=4, shuffle=shuffle, seed=5, epochs=2),
        )
    ):
        monkeypatch.setenv("FORESEE_STEPS", str(tmp_path / str(i)))
        with make() as loader:
            assert sum(1 for _ in range(2) for _ in loader) == 12
        head, steps = rows(tmp_path / str(i))
        assert head == step_times.StepsHeader(rank=0, ranks=1, steps=6, order=expected)
        assert steps["step"].tolist() == [*range(6), *range(6)]


def test_half_a_step_at_the_end_of_a_file_is_no_step(steps_folder: Path) -> None:
    list(ft.measure(range(3)))
    path = steps_folder / "rank-0.steps"
    with path.open("ab") as file:
        file.write(b"half a step")
    reader = StepsReader(str(path))
    assert len(reader.poll()) == 3
    assert len(reader.poll()) == 0


def test_a_folder_that_cannot_be_made_costs_a_warning_and_no_training(
    steps_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps_folder.write_text("no folder")
    assert len(list(ft.measure(range(3)))) == 3
    assert "steps are not written" in caplog.text


def test_a_disk_that_is_full_costs_a_warning_and_no_training(
    steps_folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "write", full)
    loader = ft.measure(range(3))
    assert len(list(loader)) == 3
    assert loader.stats()["steps"] == 3
    assert caplog.text.count("steps are not written any more") == 1


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"x" * 32, "no file of steps"),
        (b"FORESTEP" + bytes([9]) + bytes(23), "version 9; this program reads version 1"),
    ],
)
def test_a_file_of_another_format_is_refused(tmp_path: Path, data: bytes, expected: str) -> None:
    (tmp_path / "rank-0.steps").write_bytes(data)
    with pytest.raises(ConfigError, match=expected):
        StepsReader(str(tmp_path / "rank-0.steps")).poll()
