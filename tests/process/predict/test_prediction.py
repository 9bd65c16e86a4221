# SPDX-License-Identifier: Apache-2.0
"""Predictions of traced runs with a profile, which do not change the batches."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from support.data import epoch
from support.profiles import PROFILE
from support.waiting import WATCHDOG

import foresee
from foresee import predict
from foresee.predict import live, prediction_file


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits of the live prediction, for busy hosts."""
    monkeypatch.setattr(live, "_HEAD_START_S", WATCHDOG)
    monkeypatch.setattr(live, "_LINGER_S", WATCHDOG)


def run(folder: pathlib.Path, **other: Any) -> list[Any]:
    cache = foresee.Cache(ram="64MB")
    with foresee.Loader(folder, batch_size=4, shuffle=True, seed=0, epochs=2, cache=cache, **other) as loader:
        return [epoch(loader) for _ in range(2)]


def test_a_traced_run_is_predicted_and_compared_and_its_trace_is_readable(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run(folder)
    (tmp_path / "profile.toml").write_text(PROFILE)
    monkeypatch.setenv("FORESEE_TRACE", str(tmp_path / "run"))
    monkeypatch.setenv("FORESEE_PROFILE", str(tmp_path / "profile.toml"))
    assert run(folder) == plain
    result = prediction_file.read(tmp_path / "run" / "prediction.json")
    assert result["measured"]["epochs"] == 2
    assert result["error"]["total"] is not None
    trace = predict.read(tmp_path / "run")
    assert (trace.ranks, trace.epochs, trace.steps, trace.batch, trace.samples) == (1, 2, 24, 4, 96)
    assert trace.sizes.sum() == sum(900 + 37 * (i % 11) for i in range(96))
    assert trace.limits == ()


def test_with_a_job_file_the_prediction_is_made_before_the_first_step(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run(folder)
    (tmp_path / "profile.toml").write_text(PROFILE)
    (tmp_path / "job.toml").write_text('version = 1\n[train]\ncompute_step = "1 ms"\n')
    for name in ("trace", "profile", "job_file"):
        path = tmp_path / {"trace": "run", "profile": "profile.toml", "job_file": "job.toml"}[name]
        monkeypatch.setenv(f"FORESEE_{name.upper()}", str(path))
    assert run(folder) == plain
    result = prediction_file.read(tmp_path / "run" / "prediction.json")
    assert (result["after_steps"], result["compute"]["from"]) == (0, "job file")
    assert result["measured"]["epochs"] == 2


@pytest.mark.parametrize("without", ["FORESEE_TRACE", "FORESEE_PROFILE"])
def test_without_trace_or_profile_nothing_is_predicted(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    (tmp_path / "profile.toml").write_text(PROFILE)
    monkeypatch.setenv("FORESEE_TRACE", str(tmp_path / "run"))
    monkeypatch.setenv("FORESEE_PROFILE", str(tmp_path / "profile.toml"))
    monkeypatch.delenv(without)
    run(folder)
    assert not (tmp_path / "run" / "prediction.json").exists()


def test_only_rank_0_predicts(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "profile.toml").write_text(PROFILE)
    monkeypatch.setenv("FORESEE_TRACE", str(tmp_path / "run"))
    monkeypatch.setenv("FORESEE_PROFILE", str(tmp_path / "profile.toml"))
    run(folder, rank=1, world_size=2)
    assert not (tmp_path / "run" / "prediction.json").exists()


def test_an_invalid_profile_is_a_warning_and_training_continues(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    (tmp_path / "profile.toml").write_text("version = 7\n")
    monkeypatch.setenv("FORESEE_TRACE", str(tmp_path / "run"))
    monkeypatch.setenv("FORESEE_PROFILE", str(tmp_path / "profile.toml"))
    assert len(run(folder)[1]) == 96
    (warning,) = [message for message in caplog.messages if "no prediction" in message]
    assert "version = 7" in warning
