# SPDX-License-Identifier: Apache-2.0
"""A run's own prediction: what its file says, when it is made, what is compared, and that training never hears of it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.house import ROOT
from support.profiles import PROFILE
from support.properties import properties
from support.waiting import WATCHDOG

from foresee import jobspec, predict
from foresee.errors import ConfigError
from foresee.planning import simulation
from foresee.predict import live as beside_
from foresee.predict import live_job, prediction_file
from foresee.predict.live import LivePrediction, Shape
from foresee.predict.sizes import drawn

GOLDEN = ROOT / "testdata" / "forecast" / "prediction.json"

#: What a first batch waits for its prediction at most.
HEAD_START_S = beside_._HEAD_START_S

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
    in_flight=2,
    folder=False,
)


class Clock:
    """Time, and what of it was spent waiting."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waited = 0.0

    def waits(self) -> dict[str, float]:
        return {"origin_read": self.waited}

    def spend_waiting(self, seconds: float) -> None:
        self.now += seconds
        self.waited += seconds


class Later:
    """In place of `threading`: a thread does its work when it is waited for, in the thread that waits."""

    Event = beside_.threading.Event
    get_native_id = beside_.threading.get_native_id

    class Thread:  # noqa: D106 - see above
        def __init__(self, target: Callable[..., None], args: tuple[Any, ...], **_: Any) -> None:
            self._work: list[Callable[[], None]] = [lambda: target(*args)]

        def start(self) -> None: ...

        def join(self, _: float | None = None) -> None:
            while self._work:
                self._work.pop()()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than training would wait, and the thread has its share of the cores."""
    monkeypatch.setattr(beside_, "_HEAD_START_S", WATCHDOG)
    monkeypatch.setattr(beside_, "_LINGER_S", WATCHDOG)
    monkeypatch.setattr(beside_, "_NICE", 0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def made(tmp_path: Path, clock: Clock) -> Callable[..., LivePrediction]:
    profile = tmp_path / "profile.toml"
    profile.write_text(PROFILE)

    def make(shape: Shape = SHAPE, **other: Any) -> LivePrediction:
        given = {"folder": str(tmp_path / "run"), "profile_file": str(profile), "job_file": None} | other
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


def document(tmp_path: Path, name: str = "prediction.json") -> dict[str, Any]:
    return prediction_file.read(tmp_path / "run" / name)


def test_the_first_steps_tell_how_long_one_computes(tmp_path: Path, clock: Clock, made: Any) -> None:
    live = made()
    train(live, clock)
    live.close()
    told = document(tmp_path)
    assert told["compute"] == {
        "from": "first steps",
        "steps": 16,
        "step_s": pytest.approx(0.01),
        "bytes_per_s": None,
    }
    assert told["after_steps"] >= 17
    assert told["measured"]["total_s"] == pytest.approx(3 * 40 * 0.012)
    assert told["measured"]["waits_s"] == {"origin_read": pytest.approx(3 * 40 * 0.002)}
    # Nothing is waited for there but the first batch: 10 ms of each 12 are foretold.
    assert told["predicted"]["total_s"] == pytest.approx(3 * 40 * 0.01, rel=0.01)
    assert told["error"]["total"] == pytest.approx(-1 / 6, abs=0.01)
    assert told["error"]["compute"] == pytest.approx(0, abs=0.01)
    assert told["error"]["wait"] < -0.9
    assert told["error"]["wait_origin"] == pytest.approx(told["error"]["wait"])
    assert told["error"]["wait_disk"] is None


def test_a_job_file_tells_before_the_first_step(tmp_path: Path, clock: Clock, made: Any) -> None:
    file = tmp_path / "job.toml"
    file.write_text('version = 1\n[train]\ncompute_step = "12 ms"\n')
    live = made(job_file=str(file))
    live._thread.join()
    told = document(tmp_path)
    assert (told["after_steps"], told["compute"]["from"], told["compute"]["step_s"]) == (
        0,
        "job file",
        0.012,
    )
    assert told["measured"] is None
    train(live, clock)
    live.close()
    live.close()
    assert document(tmp_path)["error"]["total"] == pytest.approx(0, abs=0.01)


def test_the_first_batch_waits_for_a_prediction_that_a_job_file_makes_possible(
    tmp_path: Path, made: Any
) -> None:
    file = tmp_path / "job.toml"
    file.write_text('version = 1\n[train]\ncompute_step = "12 ms"\n')
    live = made(job_file=str(file))
    live.begin_epoch(whole=True)
    assert document(tmp_path)["after_steps"] == 0
    for _ in range(5):
        live.on_batch(finished=False)
    live.close()
    assert document(tmp_path)["after_steps"] == 0


def test_a_prediction_that_is_late_says_so_and_holds_the_run_up_once(
    tmp_path: Path, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "job.toml"
    file.write_text('version = 1\n[train]\ncompute_step = "12 ms"\n')
    monkeypatch.setattr(beside_, "_HEAD_START_S", HEAD_START_S)
    monkeypatch.setattr(beside_, "threading", Later)
    live = made(job_file=str(file))
    held: list[float] = []
    monkeypatch.setattr(live._is_written, "wait", held.append)
    live.begin_epoch(whole=True)
    live.begin_epoch(whole=True)
    assert held == [2.0]
    for _ in range(3):
        live.on_batch(finished=False)
    live.close()
    assert document(tmp_path)["after_steps"] == 3


def test_steps_taken_while_the_file_is_written_count(
    tmp_path: Path, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "job.toml"
    file.write_text('version = 1\n[train]\ncompute_step = "12 ms"\n')
    write = LivePrediction._write

    def slow(self: LivePrediction) -> None:
        self._steps = 2
        write(self)

    monkeypatch.setattr(LivePrediction, "_write", slow)
    made(job_file=str(file))._thread.join()
    assert document(tmp_path)["after_steps"] == 2


def test_sizes_that_scatter_keep_their_mean(tmp_path: Path, made: Any) -> None:
    """Of a run that waits for its origin alone, and of what its steps compute."""
    file = tmp_path / "job.toml"
    for step, least in (("1 us", 2000 * 107_700 / 100e6), ("200 ms", 400 * 0.2)):
        file.write_text(f'version = 1\n[train]\ncompute_step = "{step}"\n')
        shape = dataclasses.replace(
            SHAPE, samples=2000, mean_bytes=107_700.0, sigma_bytes=100_000.0, epochs=1, ram_bytes=0
        )
        place = tmp_path / step.replace(" ", "")
        live = made(shape=shape, folder=str(place), job_file=str(file))
        live.begin_epoch(whole=True)
        live.close()
        told = prediction_file.read(place / "prediction.json")["predicted"]["first_epoch_s"]
        assert told == pytest.approx(least, rel=0.02)


@properties(soak=60)
@given(st.integers(1, 5000), st.floats(1, 1e9), st.floats(1e-3, 1e3))
def test_drawn_sizes_are_above_0_and_have_their_mean(samples: int, mean: float, variation: float) -> None:
    made = drawn(samples, mean, variation * mean)
    assert made.min() >= 1
    # What is rounded up to a byte is at most a byte too much.
    assert abs(float(made.mean()) - mean) <= 1 + 1e-9 * mean


SPREAD = PROFILE.replace('name = "origin.read"\n', 'name = "origin.read"\nspread = 20.0\n')


def test_a_profile_that_scatters_gives_an_interval(tmp_path: Path, clock: Clock, made: Any) -> None:
    """100 MB/s, 20 either way: 200 samples of 1 MB take 1.67 to 2.5 s."""
    (tmp_path / "spread.toml").write_text(SPREAD)
    shape = dataclasses.replace(SHAPE, mean_bytes=1e6, epochs=1)
    file = tmp_path / "job.toml"
    file.write_text('version = 1\n[train]\ncompute_step = "1 us"\n')
    live = made(shape=shape, profile_file=str(tmp_path / "spread.toml"), job_file=str(file))
    train(live, clock, epochs=1)
    live.close()
    told = document(tmp_path)
    assert told["interval"]["low"]["total_s"] == pytest.approx(200e6 / 120e6, rel=0.02)
    assert told["interval"]["high"]["total_s"] == pytest.approx(200e6 / 80e6, rel=0.02)
    # 0.48 s were measured, of which 0.08 s were waiting: it is the origin that is quicker.
    assert told["moved"] == {
        "figure": "origin.read",
        "cause": "origin",
        "seconds": pytest.approx(-1.92, abs=0.05),
    }


def test_quick_and_slow_are_the_other_way_round_for_times_and_rooms_do_not_scatter() -> None:
    figures = [
        ("origin.latency", 10.0, "ms", 4.0, (6.0, 14.0)),
        ("origin.read", 10.0, "MB/s", 4.0, (14.0, 6.0)),
        ("network.rate", 10.0, "MB/s", 30.0, (40.0, 1.0)),
        ("tier.ram.capacity", 10.0, "GB", 4.0, (10.0, 10.0)),
        ("memcpy.rate", 10.0, "GB/s", None, (10.0, 10.0)),
    ]
    made = [
        jobspec.Figure(name=name, value=value, unit=unit, spread=spread, at=None if name[0] in "nt" else 1)
        for name, value, unit, spread, _ in figures
    ]
    machine = jobspec.Profile(machine="a", date=dt.date(2026, 11, 22), figure=tuple(made))
    ends = live_job.ends(machine)
    assert ends is not None
    assert [[one.value for one in each.figure] for each in ends] == [
        [expected[at] for *_, expected in figures] for at in (0, 1)
    ]
    assert live_job.ends(dataclasses.replace(machine, figure=tuple(made[3:]))) is None


@pytest.mark.parametrize(
    ("took", "waited", "waits", "told"),
    [
        ([10.5, 5.0], [3.0, 0.0], {"origin_read": 3.0}, None),
        ([15.0, 5.0], [3.0, 0.0], {"origin_read": 3.0}, ("train.compute_step", "compute", 4.0)),
        ([15.0, 5.0], [7.0, 0.0], {"disk": 4.0, "origin_queue": 3.0}, ("tier.disk.read", "disk", 4.0)),
        ([15.0, 5.0], [7.0, 0.0], {"plan": 4.0, "origin_queue": 3.0}, (None, "plan", 4.0)),
        ([8.0, 5.0], [0.0, 0.0], {}, ("origin.read", "origin", -3.0)),
        ([], [], {}, None),
    ],
)
def test_what_a_run_departs_by_most_is_named(
    took: list[float], waited: list[float], waits: dict[str, float], told: tuple[Any, ...] | None
) -> None:
    predicted: dict[str, Any] = {
        "first_epoch_s": 11.0,
        "later_epoch_s": 5.0,
        "first_wait_s": 3.0,
        "later_wait_s": 0.0,
        "first_waits_s": {"origin": 3.0, "disk": 0.0, "ram": 0.0},
        "later_waits_s": {"origin": 0.0, "disk": 0.0, "ram": 0.0},
    }
    found = prediction_file.measured(took, waited, waits, 0.1)
    expected = None if told is None else dict(zip(("figure", "cause", "seconds"), told, strict=True))
    assert prediction_file.moved(predicted, None, found) == expected
    wide = {
        "low": {"first_epoch_s": 1.0, "later_epoch_s": 1.0},
        "high": {"first_epoch_s": 20.0, "later_epoch_s": 9.0},
    }
    assert prediction_file.moved(predicted, wide, found) is None


def test_files_come_one_after_the_other_and_answers_of_a_bucket_together(tmp_path: Path, made: Any) -> None:
    file = tmp_path / "job.toml"
    file.write_text('version = 1\n[train]\ncompute_step = "200 ms"\n')
    waits = []
    for folder in (True, False):
        place = tmp_path / str(folder)
        shape = dataclasses.replace(SHAPE, mean_bytes=500_000.0, folder=folder)
        live = made(shape=shape, folder=str(place), job_file=str(file))
        live._thread.join()
        live.close()
        waits.append(prediction_file.read(place / "prediction.json")["predicted"]["first_wait_s"])
    # Only the first batch is waited for. Two threads, batches of five: a bucket's fifth sample comes a turn before the sixth.
    assert waits[0] < waits[1] < 1.3 * waits[0]


def test_what_was_not_read_as_a_whole_is_not_compared(tmp_path: Path, clock: Clock, made: Any) -> None:
    live = made()
    live.begin_epoch(whole=False)
    for step in range(30):
        live.on_batch(finished=step == 29)
        clock.now += 0.01
    live.begin_epoch(whole=True)
    live.on_batch(finished=False)
    live.close()
    told = document(tmp_path)
    assert told["measured"]["epochs"] == 0
    assert set(told["error"].values()) == {None}


def test_every_loader_has_a_file_of_its_own(tmp_path: Path, clock: Clock, made: Any) -> None:
    for _ in range(2):
        live = made()
        train(live, clock)
        live.close()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"prediction.json", "prediction.2.json"}
    assert document(tmp_path, "prediction.2.json")["error"] is not None


@pytest.mark.parametrize(
    ("spoil", "told"),
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
def test_a_prediction_that_cannot_be_made_is_one_warning(
    clock: Clock, made: Any, caplog: Any, spoil: dict[str, Any], told: str
) -> None:
    live = made(**spoil)
    train(live, clock)
    live.close()
    (warning,) = caplog.messages
    assert "this run has no prediction: " in warning
    assert told in warning


def test_a_job_file_without_the_steps_time_is_a_warning(
    tmp_path: Path, clock: Clock, made: Any, caplog: Any
) -> None:
    (tmp_path / "job.toml").write_text("version = 1\n[train]\nepochs = 2\n")
    live = made(job_file=str(tmp_path / "job.toml"))
    train(live, clock)
    live.close()
    (warning,) = caplog.messages
    assert "train.compute_step and train.compute_rate are missing" in warning


def test_a_run_too_short_to_tell_is_a_warning(tmp_path: Path, made: Any, caplog: Any) -> None:
    live = made()
    live.begin_epoch(whole=True)
    live.on_batch(finished=False)
    live.close()
    (warning,) = caplog.messages
    assert "ended before its first steps" in warning
    assert not (tmp_path / "run").exists()


def test_counters_that_fail_are_no_affair_of_training(made: Any, clock: Clock, caplog: Any) -> None:
    def broken() -> dict[str, float]:
        raise RuntimeError("no counters")

    live = made()
    live._waits = broken
    train(live, clock)
    live.close()
    assert "no counters" in caplog.messages[0]
    assert len(caplog.messages) == 1


def golden() -> str:
    small = jobspec.loads(
        'version = 1\n[data]\nsamples = 8\nsize = "1 MB"\n[train]\nbatch = 2\nepochs = 2\ncompute_step = 0.5\n'
        '[cluster]\nranks = 1\n[cluster.staging]\ncapacity = "8 MB"\nthreads = 1\n[cluster.origin]\nread = 4_000_000\n'
    )
    reports: list[simulation.Report] = []
    simulated = simulation.Run(small, "foresee", order="sequential")
    while len(reports) < 2:
        simulated.advance()
        if len(simulated.report().epochs) > len(reports):
            reports.append(simulated.report())
    told = prediction_file.predicted(reports, 2)
    within = prediction_file.interval([told, told | {"total_s": 4.0, "first_epoch_s": 2.0}])
    found = prediction_file.measured([2.5, 2.0], [0.5, 0.0], {"origin_read": 0.4, "copy": 0.1}, 0.5)
    return prediction_file.dumps(
        {
            "policy": "foresee",
            "profile": "profile.toml",
            "machine": "two cores",
            "job": "job.toml",
            "rank": 0,
            "ranks": 1,
            "compute": {"from": "job file", "steps": 0, "step_s": 0.5, "bytes_per_s": None},
            "after_steps": 0,
            "predicted": told,
            "interval": within,
            "measured": found,
            "error": prediction_file.error(told, found),
            "moved": prediction_file.moved(told, within, found),
        }
    )


def test_the_golden_file_is_what_is_written_and_comes_back() -> None:
    text = golden()
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(text)
    assert GOLDEN.read_text() == text
    document = prediction_file.read(GOLDEN)
    assert prediction_file.dumps({key: value for key, value in document.items() if key != "version"}) == text


def test_the_page_has_every_key() -> None:
    page = (GOLDEN.parents[2] / "docs" / "formats" / "prediction.md").read_text()
    document = json.loads(GOLDEN.read_text())
    predicted = document["predicted"]
    keys = {*document, *predicted, *document["measured"], *document["error"], *document["compute"]}
    keys |= {*document["interval"], *document["moved"]}
    keys |= {
        *predicted["first_waits_s"],
        *(cause for place in prediction_file.SOURCES.values() for cause in place),
    }
    assert not {key for key in keys if f"`{key}`" not in page}


@pytest.mark.parametrize(
    ("text", "told"),
    [("{", "not a prediction file"), ('{"version": 1}', "version = 1"), ("[]", "version = None")],
)
def test_another_file_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ConfigError, match=told):
        prediction_file.read(tmp_path / "p.json")


def test_the_loaders_default_staging_is_the_engines() -> None:
    assert predict.staging_bytes(1, 1.0) == 4096
    assert predict.staging_bytes(64, 1e6) == 512_000_000
    # Of a budget a quarter at most, but three batches of the largest samples in any case.
    assert predict.staging_bytes(64, 1e6, ram=1_000_000_000) == 250_000_000
    assert predict.staging_bytes(64, 1e6, ram=100_000_000, largest=2e6) == 384_000_000


def test_what_a_memory_budget_has_left_for_samples_is_the_engines() -> None:
    assert predict.ram_capacity(1_000_000_000, 250_000_000, 1_000_000, disk=False) == 710_000_000
    assert predict.ram_capacity(1_000_000_000, 250_000_000, 1_000_000, disk=True) == 710_000_000 - (32 << 20)
    assert predict.ram_capacity(80_000_000, 20_000_000, 0, disk=True) == 50_000_000
    assert predict.ram_capacity(10, 20, 1, disk=False) == 0
