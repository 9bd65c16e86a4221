# SPDX-License-Identifier: Apache-2.0
"""Waits by cause on a virtual clock: each instant inside ``next()`` has exactly one cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import foresee
import foresee.torch as ft
from foresee._loading.plain import PlainEngine
from foresee._runtime.waits import Turns, Waits
from foresee.errors import OriginMissing, SampleFault

MS = 1_000_000


class Clock:
    """A clock that only ``advance`` moves."""

    def __init__(self) -> None:
        self.now = 1_000 * MS

    def advance(self, ms: int, value: Any = None) -> Any:
        self.now += ms * MS
        return value


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of plain reads, which take 3 ms a sample."""
    clock = Clock()
    read = PlainEngine.read
    monkeypatch.setenv("FORESEE_OFF", "1")
    monkeypatch.setattr(PlainEngine, "now", lambda _: clock.now)
    monkeypatch.setattr(PlainEngine, "read", lambda self, sample: clock.advance(3, read(self, sample)))
    return clock


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(10):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{i}.bin").write_bytes(bytes([i]) * 8)
    return tmp_path


def seconds(loader: Any) -> dict[str, float]:
    """Return the recorded milliseconds by cause."""
    return {
        cause: round(each["seconds"] * 1e3, 6)
        for cause, each in loader.stats()["waits"].items()
        if each is not None
    }


def wait_ms(loader: Iterable[Any], clock: Clock, step_ms: int = 50) -> float:
    """Milliseconds inside ``next()`` of one epoch whose steps take ``step_ms``."""
    total, batches = 0, iter(loader)
    while True:
        began = clock.now
        if next(batches, None) is None:
            return (total + clock.now - began) / MS
        total += clock.now - began
        clock.advance(step_ms)


def data(folder: Path, clock: Clock, transform_ms: int = 10, **arguments: Any) -> ft.FolderDataset:
    def transform(value: torch.Tensor) -> torch.Tensor:
        return clock.advance(transform_ms, value)

    return ft.FolderDataset(folder, extensions=[".bin"], decode=None, transform=transform, **arguments)


def collating(clock: Clock, ms: int) -> Callable[[list[Any]], Any]:
    return lambda samples: clock.advance(ms, samples)


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 4},
        {"batch_size": 4, "shuffle": True, "seed": 1},
        {"batch_size": 4, "shuffle": True},
        {"batch_sampler": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]},
        {"batch_size": 4, "on_error": "skip"},
    ],
    ids=["sequential", "shuffled", "unseeded", "batch_sampler", "on_error"],
)
def test_reading_transforms_and_collating_add_up_to_the_time_inside_next(
    folder: Path, clock: Clock, arguments: dict[str, Any]
) -> None:
    with ft.DataLoader(data(folder, clock), collate_fn=collating(clock, 7), **arguments) as loader:
        whole = wait_ms(loader, clock) + wait_ms(loader, clock)
        found = seconds(loader)
    assert {cause: ms for cause, ms in found.items() if ms} == {
        "origin_read": 2 * 10 * 3,
        "transform": 2 * 10 * 10,
        "collate": 2 * 3 * 7,
    }
    assert sum(found.values()) == pytest.approx(whole)


def test_batches_without_any_work_wait_for_reading_alone(folder: Path, clock: Clock) -> None:
    with foresee.Loader(folder, batch_size=4, extensions=[".bin"]) as loader:
        whole = wait_ms(loader, clock)
        assert seconds(loader) == {"origin_read": 30}
    assert whole == 30


def test_the_last_wait_is_written_before_the_statistics_are_read(folder: Path, clock: Clock) -> None:
    with ft.DataLoader(data(folder, clock), batch_size=5, collate_fn=list) as loader:
        next(iter(loader))
        assert seconds(loader)["transform"] == 50


def test_a_wait_that_ends_with_an_error_is_written(folder: Path, clock: Clock) -> None:
    def fail_once(value: torch.Tensor) -> torch.Tensor:
        clock.advance(10)
        if int(value[0]) == 2:
            raise ArithmeticError("no such number")
        return value

    dataset = ft.FolderDataset(folder, extensions=[".bin"], decode=None, transform=fail_once)
    with ft.DataLoader(dataset, batch_size=5) as loader:
        began = clock.now
        with pytest.raises(SampleFault, match="no such number"):
            next(iter(loader))
        assert seconds(loader) == {"plan": 0, "origin_read": 15, "transform": 30} or seconds(loader) == {
            "origin_read": 15,
            "transform": 30,
        }
        assert sum(seconds(loader).values()) == (clock.now - began) / MS


def test_reading_a_substitute_counts_as_reading(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = PlainEngine.read

    def broken(self: PlainEngine, sample: int) -> bytes:
        if sample == 1:
            clock.advance(3)
            raise OriginMissing("gone")
        return read(self, sample)

    monkeypatch.setattr(PlainEngine, "read", broken)
    with ft.DataLoader(
        data(folder, clock), batch_size=5, collate_fn=collating(clock, 1), on_error=lambda _: 7
    ) as loader:
        whole = wait_ms(loader, clock)
        found = seconds(loader)
    assert found["origin_read"] == 11 * 3
    assert found["transform"] == 100
    assert sum(found.values()) == whole


def test_drawing_the_order_counts_as_planning(folder: Path, clock: Clock) -> None:
    class Slow(torch.utils.data.Sampler[int]):
        def __len__(self) -> int:
            return 10

        def __iter__(self) -> Iterator[int]:
            clock.advance(40)
            return iter(range(10))

    with ft.DataLoader(data(folder, clock), batch_size=5, sampler=Slow(), collate_fn=list) as loader:
        whole = wait_ms(loader, clock)
        found = seconds(loader)
    assert found["plan"] == 40
    assert sum(found.values()) == whole


def test_a_step_counts_for_no_cause_however_long_it_takes(folder: Path, clock: Clock) -> None:
    with ft.DataLoader(data(folder, clock), batch_size=2, collate_fn=list) as loader:
        whole = wait_ms(loader, clock, step_ms=100_000)
        assert sum(seconds(loader).values()) == whole < 1000


def test_ended_waits_are_written_once_and_in_order() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.written: list[tuple[Any, ...]] = []
            self.at = 0

        def now(self) -> int:
            self.at += 1
            return self.at

        def record_wait(self, *wait: Any) -> None:
            self.written.append(wait)

    recorder = Recorder()
    waits = Waits(recorder)
    waits.end(0, 0, 1)
    waits.begin()
    waits.enter("transform")
    waits.extend(Turns(recorder.now, [("collate", 9)]).list)
    waits.end(0, 1, 8)
    assert recorder.written == []
    waits.begin()
    assert recorder.written == [(0, 1, 8, 1, 3, [("transform", 2), ("collate", 9)])]
    waits.end(0, 2, 8)
    waits.end(0, 2, 8)
    waits.flush()
    waits.flush()
    assert [wait[:3] for wait in recorder.written] == [(0, 1, 8), (0, 2, 8)]


def test_an_unknown_cause_is_refused(folder: Path) -> None:
    with foresee.Loader(folder, batch_size=4, extensions=[".bin"]) as loader:
        engine: Any = loader._session._engine
        with pytest.raises(foresee.ForeseeError, match="a cause of waiting"):
            engine.record_wait(0, 0, 4, 0, 10, [("moon", 5)])
