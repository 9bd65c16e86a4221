# SPDX-License-Identifier: Apache-2.0
"""Values of the catalog after ``foresee stagger run`` in virtual time: confirmed or marked stale."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import pathlib
import resource
from types import SimpleNamespace

import pytest
from support.stagger_runs import write
from support.virtual import Virtual

from foresee.cli.stagger import run
from foresee.stagger import Catalog, Entry, Key
from foresee.stagger.catalog_entry import UsedValue
from foresee.storage import page_cache


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return the name of a file that no fake job opens."""
    return tmp_path / "chunks.bin"


@pytest.fixture
def _storage_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the check for reads: the jobs are fake, so the kernel would count none."""
    monkeypatch.setattr(run, "_read_little", lambda places: False)


def fill_catalog(path: pathlib.Path, seconds: float) -> list[Key]:
    """Create a catalog in which both jobs compute and wait for equal times."""
    keys = [Key(machine="here", data="sleepy", model=name, batch=4, loader="default") for name in ("a", "b")]
    with Catalog.open(path, write=True) as catalog:
        for key, beside in zip(keys, reversed(keys), strict=True):
            for name in ("compute", "wait", "wait_cached", "wait_conc"):
                value = 0.0 if name == "wait_cached" else seconds
                entry = Entry(seconds=value, steps=9, date=dt.date(2026, 11, 22), program="0")
                catalog.put(key, name, entry, beside=beside if name == "wait_conc" else None)
    return keys


@pytest.mark.usefixtures("_storage_was_read")
def test_values_that_a_run_contradicts_are_marked_stale(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    path = tmp_path / "jobs.db"
    one, other = fill_catalog(path, 1.0)
    jobs = [write(tmp_path, name, data, train="", stagger="") for name in ("a", "b")]
    result, errors = virtual.run(*jobs, "--catalog", str(path), "--machine", "here")
    assert result["stands"] is False
    assert result["predicted"]["makespan"] == pytest.approx(80)
    assert "marked stale" in errors
    with Catalog.open(path) as catalog:
        assert set(catalog.stale(one, beside=other)) == {"compute", "wait", "wait_cached", "wait_conc"}


@pytest.mark.usefixtures("_storage_was_read")
def test_only_used_values_of_the_catalog_are_marked_stale(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    path = tmp_path / "jobs.db"
    one, other = fill_catalog(path, 1.0)
    # Only wait_conc comes from the catalog.
    wrong = "wait = 1.0\nwait_cached = 1.0"
    jobs = [write(tmp_path, name, data, train="compute_step = 1.0", stagger=wrong) for name in ("a", "b")]
    result, errors = virtual.run(*jobs, "--catalog", str(path), "--machine", "here")
    assert result["stands"] is False
    assert "marked stale" in errors
    with Catalog.open(path) as catalog:
        assert set(catalog.stale(one, beside=other)) == {"wait_conc"}


@pytest.mark.usefixtures("_storage_was_read")
def test_values_of_the_job_file_are_not_judged(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    path = tmp_path / "jobs.db"
    one, other = fill_catalog(path, 0.03)
    wrong = "wait = 1.0\nwait_cached = 1.0\nwait_conc = 1.0"
    jobs = [write(tmp_path, name, data, train="compute_step = 1.0", stagger=wrong) for name in ("a", "b")]
    result, _ = virtual.run(*jobs, "--catalog", str(path), "--machine", "here")
    assert result["predicted"]["makespan"] == pytest.approx(80)
    assert result["stands"] is None
    with Catalog.open(path) as catalog:
        assert not catalog.stale(one, beside=other)


def test_a_run_with_cached_data_marks_nothing_stale(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    one, other = fill_catalog(path, 1.0)
    data.write_bytes(bytes(512))
    with Catalog.open(path, write=True) as catalog:
        catalog.put_places("here", "sleepy", [str(data)])
    # As the kernel reports a file in memory.
    monkeypatch.setattr(page_cache, "_resident", lambda file, path: 512)
    virtual.storage.memory = {(str(data), step) for step in range(40)}
    jobs = [write(tmp_path, name, data, train="", stagger="") for name in ("a", "b")]
    result, errors = virtual.run(*jobs, "--catalog", str(path), "--machine", "here")
    (doubt,) = result["doubts"]
    assert doubt.startswith("100 % of the data are in memory already")
    assert doubt in errors
    assert result["stands"] is None
    with Catalog.open(path) as catalog:
        assert not catalog.stale(one, beside=other)


@pytest.mark.usefixtures("_storage_was_read")
def test_a_report_is_written_without_the_catalog(
    tmp_path: pathlib.Path, data: pathlib.Path, virtual: Virtual
) -> None:
    catalog = tmp_path / "jobs.db"
    fill_catalog(catalog, 0.03)
    jobs = [write(tmp_path, name, data, train="", stagger="") for name in ("a", "b")]

    def damage() -> None:
        catalog.write_bytes(b"no catalog any more, and long enough to be looked at as one")

    virtual.clock.after(1.0, damage)
    out, errors = virtual.command(
        "run",
        *jobs,
        "--catalog",
        str(catalog),
        "--machine",
        "here",
        "--folder",
        str(tmp_path / "run"),
        "--json",
    )
    assert "the catalog was not updated: " in errors
    assert json.loads(out)["stands"] is None
    assert (tmp_path / "run" / "stagger.json").exists()


def run_arguments(**more: object) -> argparse.Namespace:
    return argparse.Namespace(**{"slurm": False, "running": None, "steps": None, **more})


@pytest.mark.usefixtures("_storage_was_read")
def test_values_within_ten_percent_are_confirmed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "jobs.db"
    one, other = fill_catalog(path, 1.0)
    used = [UsedValue(one, "wait"), UsedValue(other, "wait")]
    options = run_arguments(catalog=str(path))
    result = {"measured": {"makespan": 100.0}, "predicted_at_starts": {"makespan": 92.0}, "doubts": []}
    assert run._judge_catalog(options, used, [], result) is True
    # Other jobs and incomplete runs are no basis for a judgment.
    assert run._judge_catalog(options, used, [], {**result, "doubts": ["another order"]}) is None
    assert run._judge_catalog(options, used, [], {**result, "measured": {"makespan": None}}) is None
    assert run._judge_catalog(options, used, [], {**result, "predicted_at_starts": None}) is None
    with Catalog.open(path) as catalog:
        assert not catalog.stale(one, beside=other)


def test_jobs_that_read_nothing_judge_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    one, other = fill_catalog(path, 1.0)
    used = [UsedValue(one, "wait"), UsedValue(other, "wait")]
    far = {"measured": {"makespan": 100.0}, "predicted_at_starts": {"makespan": 50.0}, "doubts": []}
    chunks = tmp_path / "chunks.bin"
    chunks.write_bytes(bytes(40 * 512))

    def read(blocks: int) -> None:
        monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_inblock=blocks))

    read(0)
    assert run._judge_catalog(run_arguments(catalog=str(path)), used, [], far) is None
    read(2)
    assert run._judge_catalog(run_arguments(catalog=str(path)), used, [str(chunks)], far) is None
    with Catalog.open(path) as catalog:
        assert not catalog.stale(one, beside=other)
    # Reads of jobs on other hosts are not counted.
    read(0)
    assert run._judge_catalog(run_arguments(catalog=str(path), slurm=True), used, [], far) is False
    read(3)
    assert run._judge_catalog(run_arguments(catalog=str(path)), used, [str(chunks)], far) is False
