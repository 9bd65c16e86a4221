# SPDX-License-Identifier: Apache-2.0
"""Waits by cause in every mode of the loaders, with real threads, workers and reads.

The causes never exceed the time inside ``next()``, and the wait for a slow transform is at least its duration.
``tests/unit/loading/test_waits.py`` checks exact sums on a virtual clock.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.processes import child
from support.waiting import moment, pause

import foresee
import foresee.torch as ft
from foresee.errors import SampleFault, StallTimeout

STEP, PAUSE_S = 4, 0.01


@pytest.fixture
def folder(small_folder: pathlib.Path) -> pathlib.Path:
    """23 files of 8 bytes; see `small_folder`."""
    return small_folder


def slow(value: torch.Tensor) -> torch.Tensor:
    """A slow transform."""
    pause(PAUSE_S)
    return value


def inside_next(loader: Any, epochs: int = 1) -> float:
    """Measure the seconds that a loop spends inside ``next()``."""
    total = 0.0
    for _ in range(epochs):
        batches = iter(loader)
        while True:
            began = moment()
            batch = next(batches, None)
            total += moment() - began
            if batch is None:
                break
    return total


def waits(loader: Any) -> dict[str, float]:
    """Return the waits in seconds by cause."""
    return {cause: each["seconds"] for cause, each in loader.stats()["waits"].items() if each is not None}


PERSISTENT = {"num_workers": 1, "persistent_workers": True, "in_order": False}


@pytest.mark.parametrize(
    ("off", "arguments", "cause"),
    [
        ("0", {}, "transform"),
        ("1", {}, "transform"),
        ("0", {"shuffle": True}, "transform"),
        ("0", {"transform_threads": 2}, "transform"),
        ("1", {"transform_threads": 2}, "transform"),
        ("0", {"num_workers": 1}, "workers"),
        ("0", PERSISTENT, "workers"),
        ("1", PERSISTENT, "workers"),
        ("0", {"pin_memory": True, "on_error": "skip"}, "transform"),
    ],
)
def test_causes_never_exceed_the_time_inside_next_and_a_slow_transform_has_its_own(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, off: str, arguments: dict[str, Any], cause: str
) -> None:
    monkeypatch.setenv("FORESEE_OFF", off)
    dataset = ft.FolderDataset(folder, decode=None, transform=slow)
    with ft.DataLoader(dataset, batch_size=STEP, collate_fn=list, **arguments) as loader:
        whole = inside_next(loader, epochs=1 if arguments == {"num_workers": 1} else 2)
        found = waits(loader)
    # The loop waits for all of its first batch.
    assert found[cause] >= STEP * PAUSE_S
    assert sum(found.values()) <= whole


@pytest.mark.parametrize("off", ["0", "1"], ids=["engine", "plain"])
def test_causes_of_loops_without_transforms_never_exceed_the_time_inside_next(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    monkeypatch.setenv("FORESEE_OFF", off)
    with foresee.Loader(folder, batch_size=STEP, shuffle=True, seed=0) as loader:
        whole = inside_next(loader, epochs=3)
        found = waits(loader)
        assert sum(found.values()) <= whole
        assert not found.keys() & {"transform", "collate", "workers"}
    dataset = ft.FolderDataset(folder, decode=None)
    with ft.DataLoader(dataset, batch_sampler=[[0, 1], [2], [3, 4, 5]]) as batches:
        whole = inside_next(batches)
        assert sum(waits(batches).values()) <= whole


def failing(value: torch.Tensor) -> torch.Tensor:
    pause(PAUSE_S)
    raise ArithmeticError("no such picture")


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [({}, "transform"), ({"transform_threads": 2}, "transform"), ({"num_workers": 1}, "workers")],
    ids=["loop", "threads", "workers"],
)
def test_a_wait_that_ends_with_an_error_is_written(
    folder: pathlib.Path, arguments: dict[str, Any], cause: str
) -> None:
    dataset = ft.FolderDataset(folder, decode=None, transform=failing)
    with ft.DataLoader(dataset, batch_size=STEP, **arguments) as loader:
        began = moment()
        with pytest.raises(SampleFault):
            next(iter(loader))
        whole = moment() - began
        found = waits(loader)
    assert found[cause] >= PAUSE_S
    assert sum(found.values()) <= whole


def endless(value: torch.Tensor) -> torch.Tensor:
    pause(2)
    return value


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [({"transform_threads": 1}, "transform"), ({"num_workers": 1}, "workers")],
    ids=["threads", "workers"],
)
def test_a_wait_that_times_out_has_the_cause_of_its_batch(
    folder: pathlib.Path, arguments: dict[str, Any], cause: str
) -> None:
    dataset = ft.FolderDataset(folder, decode=None, transform=endless)
    with ft.DataLoader(dataset, batch_size=1, timeout=0.5, **arguments) as loader:
        batches = iter(loader)
        with pytest.raises(StallTimeout):
            next(batches)
        found = waits(loader)
    assert sum(found.values()) >= 0.5
    assert found[cause] > 0


def test_a_forked_child_writes_no_wait_and_does_not_hang(folder: pathlib.Path) -> None:
    source = """
        import os, sys
        import foresee
        from support.processes import print_json
        with foresee.Loader(sys.argv[1], batch_size=4) as loader:
            batches = iter(loader)
            next(batches)
            pid = os.fork()
            if pid == 0:
                try:
                    next(batches)
                except foresee.ForeseeError:
                    os._exit(7)
                os._exit(1)
            print_json(status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            list(batches)
            print_json(samples=sum(each["samples"] for each in loader.stats()["waits"].values() if each))
    """
    with child(source, str(folder)) as program:
        assert program.line() == {"status": 7}
        assert program.line() == {"samples": 23}


def traced(
    folder: pathlib.Path, run: pathlib.Path, monkeypatch: pytest.MonkeyPatch, **arguments: Any
) -> None:
    monkeypatch.setenv("FORESEE_TRACE", str(run))
    dataset = ft.FolderDataset(folder, decode=None, transform=slow)
    with ft.DataLoader(dataset, batch_size=STEP, shuffle=True, seed=0, **arguments) as loader:
        inside_next(loader, epochs=2)


@pytest.mark.parametrize("command", ["analyze", "trace"])
def test_commands_that_read_ledgers_see_the_transform(
    folder: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    traced(folder, tmp_path / "run", monkeypatch)
    if command == "analyze":
        from foresee.cli import main

        assert main(["analyze", str(tmp_path / "run"), "--json"]) == 0
        (waits,) = json.loads(capsys.readouterr().out)["waits"]
        assert waits["ranks"]["rank 0"]["transform"] >= 2 * 23 * PAUSE_S
        assert next(iter(waits["ranks"]["rank 0"])) == "transform"
        return
    from foresee import predict

    trace = predict.read(tmp_path / "run")
    assert (trace.epochs, trace.steps, len(trace.epoch_s)) == (2, 6, 2)
    # A prediction simulates reads and counts a transform as part of the step.
    assert float(trace.compute.mean()) >= STEP * PAUSE_S
    assert sum(trace.epoch_s) >= 2 * 23 * PAUSE_S


def test_every_written_cause_is_a_key_of_the_statistics(
    folder: pathlib.Path, pytestconfig: pytest.Config
) -> None:
    expected = {
        "plan",
        "origin_queue",
        "origin_read",
        "origin_retry",
        "disk",
        "node",
        "copy",
        "transform",
        "collate",
        "workers",
    }
    maker: Callable[[], Any]
    for maker in (
        lambda: foresee.Loader(folder, batch_size=STEP),
        lambda: ft.DataLoader(ft.FolderDataset(folder, decode=None), batch_size=STEP),
    ):
        with maker() as loader:
            assert loader.stats()["waits"].keys() == expected
