# SPDX-License-Identifier: Apache-2.0
"""The live prediction of a run: the contents of its file, when it is made, the comparison, and no effect on training."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.profiles import PROFILE
from support.properties import properties
from support.waiting import WATCHDOG

from foresee import jobspec, predict
from foresee.predict import live as live_module
from foresee.predict import live_job, prediction_file
from foresee.predict.live import LivePrediction, Shape
from foresee.predict.sizes import drawn

#: Longest wait of a first batch for its prediction, in seconds.
HEAD_START_S = live_module._HEAD_START_S

SHAPE = Shape(
    samples=200,
    mean_bytes=10_000.0,
    sigma_bytes=0.0,
    batch=5,
    drop_last=False,
    epochs=3,
    ranks=1,
    rank=0,
    seed=0,
    shuffled=True,
    ram_bytes=10**8,
    disk_bytes=0,
    node_ranks=1,
    has_node_cache=False,
    in_flight=2,
    folder=False,
)


class Clock:
    """A clock, and the time that was spent waiting."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waited = 0.0

    def waits(self) -> dict[str, float]:
        return {"origin_read": self.waited}

    def spend_waiting(self, seconds: float) -> None:
        self.now += seconds
        self.waited += seconds


class DeferredThreading:
    """Replacement for `threading`: a thread does its work in the thread that joins it."""

    Event = live_module.threading.Event
    get_native_id = live_module.threading.get_native_id

    class Thread:  # noqa: D106 - see above
        def __init__(self, target: Callable[..., None], args: tuple[Any, ...], **_: Any) -> None:
            self._work: list[Callable[[], None]] = [lambda: target(*args)]

        def start(self) -> None: ...

        def join(self, _: float | None = None) -> None:
            while self._work:
                self._work.pop()()


@pytest.fixture(autouse=True)
def _allow_slow_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait as long as a busy host needs, and run the thread at normal priority."""
    monkeypatch.setattr(live_module, "_HEAD_START_S", WATCHDOG)
    monkeypatch.setattr(live_module, "_LINGER_S", WATCHDOG)
    monkeypatch.setattr(live_module, "_NICE", 0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_live(tmp_path: Path, clock: Clock) -> Callable[..., LivePrediction]:
    profile = tmp_path / "profile.toml"
    profile.write_text(PROFILE)

    def make(shape: Shape = SHAPE, **other: Any) -> LivePrediction:
        given = {"folder": str(tmp_path / "run"), "profile_file": str(profile), "job_file": None} | other
        given = {"node": lambda: None} | given
        return LivePrediction(shape, waits=clock.waits, clock=lambda: clock.now, **given)

    return make


def train(live: LivePrediction, clock: Clock, epochs: int = 3, steps: int = 40) -> None:
    for _ in range(epochs):
        live.begin_epoch(whole=True)
        for step in range(steps):
            clock.spend_waiting(0.002)
            live.on_batch(finished=step + 1 == steps)
            clock.now += 0.01
        clock.now += 5.0  # something else between epochs


def read_prediction(tmp_path: Path, name: str = "prediction.json") -> dict[str, Any]:
    return prediction_file.read(tmp_path / "run" / name)


def test_the_compute_time_of_a_step_comes_from_the_first_steps(
    tmp_path: Path, clock: Clock, make_live: Any
) -> None:
    live = make_live()
    train(live, clock)
    live.close()
    document = read_prediction(tmp_path)
    assert document["compute"] == {
        "from": "first steps",
        "steps": 16,
        "step_s": pytest.approx(0.01),
        "bytes_per_s": None,
    }
    assert document["after_steps"] >= 17
    assert document["measured"]["total_s"] == pytest.approx(3 * 40 * 0.012)
    assert document["measured"]["waits_s"] == {"origin_read": pytest.approx(3 * 40 * 0.002)}
    # Only the first batch is waited for, so that 10 ms of each 12 ms are predicted.
    assert document["predicted"]["total_s"] == pytest.approx(3 * 40 * 0.01, rel=0.01)
    assert document["error"]["total"] == pytest.approx(-1 / 6, abs=0.01)
    assert document["error"]["compute"] == pytest.approx(0, abs=0.01)
    assert document["error"]["wait"] < -0.9
    assert document["error"]["wait_origin"] == pytest.approx(document["error"]["wait"])
    assert document["error"]["wait_disk"] is None


def later_origin_reads(shape: Shape, tmp_path: Path) -> int:
    """Return the samples that a simulated run reads at the origin after its first epoch."""
    profile = tmp_path / "profile.toml"
    profile.write_text(PROFILE)
    job = live_job.job_of(shape, 0.01, jobspec.profile.read(profile), None)
    reports = live_job.simulated(shape, job, lambda: False)
    assert reports is not None
    first, last = (
        {each.source: each.samples for each in report.reads} for report in (reports[0], reports[-1])
    )
    return last["origin"] - first["origin"]


def test_the_memory_of_a_node_is_shared_by_its_ranks_and_own_memory_is_not(tmp_path: Path) -> None:
    """2 MB of data: a node with 2 MB of memory holds 87% of them, and each of two ranks with 2 MB all that it reads."""
    shape = dataclasses.replace(SHAPE, ranks=2, node_ranks=2, has_node_cache=True, ram_bytes=2_000_000)
    own = live_job.as_attached(shape, None)
    assert not own.has_node_cache
    attached = live_job.as_attached(own, {"ram_bytes": 4_000_000, "disk_bytes": 0})
    assert (attached.has_node_cache, attached.ram_bytes) == (True, 4_000_000)
    capacities = [
        live_job.job_of(one, 0.01, jobspec.profile.loads(PROFILE), None).cluster.tiers[0].capacity
        for one in (shape, attached)
    ]
    assert capacities == [875_000, 1_750_000]
    assert later_origin_reads(attached, tmp_path) == 0
    assert later_origin_reads(shape, tmp_path) > 0


def test_a_job_file_allows_a_prediction_before_the_first_step(
    tmp_path: Path, clock: Clock, make_live: Any
) -> None:
    file = tmp_path / "job.toml"
    file.write_text('version = 1\n[train]\ncompute_step = "12 ms"\n')
    live = make_live(job_file=str(file))
    live._thread.join()
    document = read_prediction(tmp_path)
    assert (document["after_steps"], document["compute"]["from"], document["compute"]["step_s"]) == (
        0,
        "job file",
        0.012,
    )
    assert document["measured"] is None
    train(live, clock)
    live.close()
    live.close()
    assert read_prediction(tmp_path)["error"]["total"] == pytest.approx(0, abs=0.01)


def test_the_first_batch_waits_for_a_prediction_from_a_job_file(tmp_path: Path, make_live: Any) -> None:
    file = tmp_path / "job.toml"
    file.write_text('version = 1\n[train]\ncompute_step = "12 ms"\n')
    live = make_live(job_file=str(file))
    live.begin_epoch(whole=True)
    assert read_prediction(tmp_path)["after_steps"] == 0
    for _ in range(5):
        live.on_batch(finished=False)
    live.close()
    assert read_prediction(tmp_path)["after_steps"] == 0


def test_a_late_prediction_is_marked_and_delays_the_run_once(
    tmp_path: Path, make_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "job.toml"
    file.write_text('version = 1\n[train]\ncompute_step = "12 ms"\n')
    monkeypatch.setattr(live_module, "_HEAD_START_S", HEAD_START_S)
    monkeypatch.setattr(live_module, "threading", DeferredThreading)
    live = make_live(job_file=str(file))
    held: list[float] = []
    monkeypatch.setattr(live._is_written, "wait", held.append)
    live.begin_epoch(whole=True)
    live.begin_epoch(whole=True)
    assert held == [2.0]
    for _ in range(3):
        live.on_batch(finished=False)
    live.close()
    assert read_prediction(tmp_path)["after_steps"] == 3


def test_steps_during_the_write_of_the_file_count(
    tmp_path: Path, make_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "job.toml"
    file.write_text('version = 1\n[train]\ncompute_step = "12 ms"\n')
    write = LivePrediction._write

    def slow(self: LivePrediction) -> None:
        self._steps = 2
        write(self)

    monkeypatch.setattr(LivePrediction, "_write", slow)
    make_live(job_file=str(file))._thread.join()
    assert read_prediction(tmp_path)["after_steps"] == 2


def test_varying_sizes_keep_their_mean(tmp_path: Path, make_live: Any) -> None:
    """Of a run that only waits for its origin, and of one limited by computing."""
    file = tmp_path / "job.toml"
    for step, least in (("1 us", 2000 * 107_700 / 100e6), ("200 ms", 400 * 0.2)):
        file.write_text(f'version = 1\n[train]\ncompute_step = "{step}"\n')
        shape = dataclasses.replace(
            SHAPE, samples=2000, mean_bytes=107_700.0, sigma_bytes=100_000.0, epochs=1, ram_bytes=0
        )
        place = tmp_path / step.replace(" ", "")
        live = make_live(shape=shape, folder=str(place), job_file=str(file))
        live.begin_epoch(whole=True)
        live.close()
        first_epoch_s = prediction_file.read(place / "prediction.json")["predicted"]["first_epoch_s"]
        assert first_epoch_s == pytest.approx(least, rel=0.02)


@properties(soak=60)
@given(st.integers(1, 5000), st.floats(1, 1e9), st.floats(1e-3, 1e3))
def test_drawn_sizes_are_above_0_and_have_their_mean(samples: int, mean: float, variation: float) -> None:
    sizes = drawn(samples, mean, variation * mean)
    assert sizes.min() >= 1
    # Rounding up to a byte adds at most one byte.
    assert abs(float(sizes.mean()) - mean) <= 1 + 1e-9 * mean


SPREAD = PROFILE.replace('name = "origin.read"\n', 'name = "origin.read"\nspread = 20.0\n')


def test_a_profile_with_spread_gives_an_interval(tmp_path: Path, clock: Clock, make_live: Any) -> None:
    """100 MB/s with a spread of 20: 200 samples of 1 MB take 1.67 to 2.5 s."""
    (tmp_path / "spread.toml").write_text(SPREAD)
    shape = dataclasses.replace(SHAPE, mean_bytes=1e6, epochs=1)
    file = tmp_path / "job.toml"
    file.write_text('version = 1\n[train]\ncompute_step = "1 us"\n')
    live = make_live(shape=shape, profile_file=str(tmp_path / "spread.toml"), job_file=str(file))
    train(live, clock, epochs=1)
    live.close()
    document = read_prediction(tmp_path)
    assert document["interval"]["low"]["total_s"] == pytest.approx(200e6 / 120e6, rel=0.02)
    assert document["interval"]["high"]["total_s"] == pytest.approx(200e6 / 80e6, rel=0.02)
    # 0.48 s were measured, 0.08 s of them waiting: the origin is faster than predicted.
    assert document["moved"] == {
        "figure": "origin.read",
        "cause": "origin",
        "seconds": pytest.approx(-1.92, abs=0.05),
    }


def test_fast_and_slow_ends_are_swapped_for_times_and_capacities_do_not_vary() -> None:
    cases = [
        ("origin.latency", 10.0, "ms", 4.0, (6.0, 14.0)),
        ("origin.read", 10.0, "MB/s", 4.0, (14.0, 6.0)),
        ("network.rate", 10.0, "MB/s", 30.0, (40.0, 1.0)),
        ("tier.ram.capacity", 10.0, "GB", 4.0, (10.0, 10.0)),
        ("memcpy.rate", 10.0, "GB/s", None, (10.0, 10.0)),
    ]
    figures = [
        jobspec.Figure(name=name, value=value, unit=unit, spread=spread, at=None if name[0] in "nt" else 1)
        for name, value, unit, spread, _ in cases
    ]
    profile = jobspec.Profile(machine="a", date=dt.date(2026, 11, 22), figure=tuple(figures))
    ends = live_job.ends(profile)
    assert ends is not None
    assert [[one.value for one in each.figure] for each in ends] == [
        [expected[at] for *_, expected in cases] for at in (0, 1)
    ]
    assert live_job.ends(dataclasses.replace(profile, figure=tuple(figures[3:]))) is None


@pytest.mark.parametrize(
    ("took", "waited", "waits", "moved"),
    [
        ([10.5, 5.0], [3.0, 0.0], {"origin_read": 3.0}, None),
        ([15.0, 5.0], [3.0, 0.0], {"origin_read": 3.0}, ("train.compute_step", "compute", 4.0)),
        ([15.0, 5.0], [7.0, 0.0], {"disk": 4.0, "origin_queue": 3.0}, ("tier.disk.read", "disk", 4.0)),
        ([15.0, 5.0], [7.0, 0.0], {"plan": 4.0, "origin_queue": 3.0}, (None, "plan", 4.0)),
        ([8.0, 5.0], [0.0, 0.0], {}, ("origin.read", "origin", -3.0)),
        ([], [], {}, None),
    ],
)
def test_the_largest_deviation_of_a_run_is_named(
    took: list[float], waited: list[float], waits: dict[str, float], moved: tuple[Any, ...] | None
) -> None:
    predicted: dict[str, Any] = {
        "first_epoch_s": 11.0,
        "later_epoch_s": 5.0,
        "first_wait_s": 3.0,
        "later_wait_s": 0.0,
        "first_waits_s": {"origin": 3.0, "disk": 0.0, "ram": 0.0},
        "later_waits_s": {"origin": 0.0, "disk": 0.0, "ram": 0.0},
    }
    measured = prediction_file.measured(took, waited, waits, 0.1)
    expected = None if moved is None else dict(zip(("figure", "cause", "seconds"), moved, strict=True))
    assert prediction_file.moved(predicted, None, measured) == expected
    wide = {
        "low": {"first_epoch_s": 1.0, "later_epoch_s": 1.0},
        "high": {"first_epoch_s": 20.0, "later_epoch_s": 9.0},
    }
    assert prediction_file.moved(predicted, wide, measured) is None


def test_files_are_read_one_after_another_and_objects_of_a_bucket_concurrently(
    tmp_path: Path, make_live: Any
) -> None:
    file = tmp_path / "job.toml"
    file.write_text('version = 1\n[train]\ncompute_step = "200 ms"\n')
    waits = []
    for folder in (True, False):
        place = tmp_path / str(folder)
        shape = dataclasses.replace(SHAPE, mean_bytes=500_000.0, folder=folder)
        live = make_live(shape=shape, folder=str(place), job_file=str(file))
        live._thread.join()
        live.close()
        waits.append(prediction_file.read(place / "prediction.json")["predicted"]["first_wait_s"])
    # Only the first batch of five is waited for. With two threads, a bucket delivers it one turn before the sixth sample.
    assert waits[0] < waits[1] < 1.3 * waits[0]


def test_an_epoch_that_was_not_read_as_a_whole_is_not_compared(
    tmp_path: Path, clock: Clock, make_live: Any
) -> None:
    live = make_live()
    live.begin_epoch(whole=False)
    for step in range(30):
        live.on_batch(finished=step == 29)
        clock.now += 0.01
    live.begin_epoch(whole=True)
    live.on_batch(finished=False)
    live.close()
    document = read_prediction(tmp_path)
    assert document["measured"]["epochs"] == 0
    assert set(document["error"].values()) == {None}


def test_each_loader_writes_its_own_file(tmp_path: Path, clock: Clock, make_live: Any) -> None:
    for _ in range(2):
        live = make_live()
        train(live, clock)
        live.close()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"prediction.json", "prediction.2.json"}
    assert read_prediction(tmp_path, "prediction.2.json")["error"] is not None


@pytest.mark.parametrize(
    ("invalid", "expected"),
    [
        ({"profile_file": "nothing.toml"}, "nothing.toml"),
        ({"job_file": "nothing.toml"}, "nothing.toml"),
        ({"folder": os.devnull + "/run"}, "/dev/null"),
        ({"shape": dataclasses.replace(SHAPE, samples=2**25)}, "too many to simulate during training"),
        ({"shape": dataclasses.replace(SHAPE, mean_bytes=0.0)}, "data.size"),
        (
            {"shape": dataclasses.replace(SHAPE, disk_bytes=10**9)},
            "tiers[1].read is missing",
        ),
    ],
)
def test_an_impossible_prediction_is_one_warning(
    clock: Clock, make_live: Any, caplog: Any, invalid: dict[str, Any], expected: str
) -> None:
    live = make_live(**invalid)
    train(live, clock)
    live.close()
    (warning,) = caplog.messages
    assert "this run has no prediction: " in warning
    assert expected in warning


def test_a_job_file_without_the_step_time_is_a_warning(
    tmp_path: Path, clock: Clock, make_live: Any, caplog: Any
) -> None:
    (tmp_path / "job.toml").write_text("version = 1\n[train]\nepochs = 2\n")
    live = make_live(job_file=str(tmp_path / "job.toml"))
    train(live, clock)
    live.close()
    (warning,) = caplog.messages
    assert "train.compute_step and train.compute_rate are missing" in warning


def test_a_run_too_short_for_a_prediction_is_a_warning(tmp_path: Path, make_live: Any, caplog: Any) -> None:
    live = make_live()
    live.begin_epoch(whole=True)
    live.on_batch(finished=False)
    live.close()
    (warning,) = caplog.messages
    assert "ended before its first steps" in warning
    assert not (tmp_path / "run").exists()


def test_failing_counters_do_not_affect_training(make_live: Any, clock: Clock, caplog: Any) -> None:
    def broken() -> dict[str, float]:
        raise RuntimeError("no counters")

    live = make_live()
    live._waits = broken
    train(live, clock)
    live.close()
    assert "no counters" in caplog.messages[0]
    assert len(caplog.messages) == 1


def test_the_default_staging_size_equals_that_of_the_engine() -> None:
    assert predict.staging_bytes(1, 1.0) == 4096
    assert predict.staging_bytes(64, 1e6) == 512_000_000
    # At most a quarter of a budget, but at least three batches of the largest samples.
    assert predict.staging_bytes(64, 1e6, ram=1_000_000_000) == 250_000_000
    assert predict.staging_bytes(64, 1e6, ram=100_000_000, largest=2e6) == 384_000_000


def test_the_memory_left_for_samples_equals_that_of_the_engine() -> None:
    assert predict.ram_capacity(1_000_000_000, 250_000_000, 1_000_000, disk=False) == 710_000_000
    assert predict.ram_capacity(1_000_000_000, 250_000_000, 1_000_000, disk=True) == 710_000_000 - (32 << 20)
    assert predict.ram_capacity(80_000_000, 20_000_000, 0, disk=True) == 50_000_000
    assert predict.ram_capacity(10, 20, 1, disk=False) == 0
