# SPDX-License-Identifier: Apache-2.0
"""The job catalog with real files: stored values are read back, and errors name the damage."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import pathlib
import sqlite3
from typing import Any

import pytest
from support.house import ROOT

from foresee.errors import CatalogBusy, CatalogInvalid, ConfigError, NotMeasured
from foresee.stagger import Catalog, Entry, Key
from foresee.stagger import catalog as module
from foresee.stagger.catalog_entry import UsedValue

FOLDER = ROOT / "testdata" / "jobs"
RESNET = Key(machine="node-1", data="TinyImageNet", model="resnet50", batch=64, loader="8 threads")
VGG = dataclasses.replace(RESNET, model="vgg16")
DAY = dt.date(2026, 11, 22)


def entry(seconds: float, **more: Any) -> Entry:
    return Entry(**{"seconds": seconds, "sd": 0.01, "steps": 100, "date": DAY, "program": "0.1.0", **more})


def fill(path: pathlib.Path) -> None:
    """Store two jobs, one with an estimate, and their concurrent waits."""
    with Catalog.open(path, write=True) as catalog:
        for key, compute, wait in ((RESNET, 0.3036, 0.4493), (VGG, 0.4622, 0.2788)):
            catalog.put(key, "compute", entry(compute))
            catalog.put(key, "wait", entry(wait))
            catalog.put(key, "wait_cached", entry(0.04, sd=None, steps=None))
        catalog.put(RESNET, "wait_conc", entry(0.6), beside=VGG)
        catalog.put(VGG, "wait_conc", entry(0.5, stale="a reason"), beside=RESNET)
        catalog.put_places("node-1", "TinyImageNet", ["/data/tiny", "/data/more"])


def test_the_golden_catalog_is_read() -> None:
    path = FOLDER / "catalog.db"
    if os.environ.get("UPDATE_GOLDEN"):
        path.unlink(missing_ok=True)
        fill(path)
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA page_size = 512")
            database.execute("VACUUM")
        database.close()
        with Catalog.open(path) as catalog:
            (FOLDER / "catalog.json").write_text(json.dumps(catalog.facts(), indent=2) + "\n")
    with Catalog.open(path) as catalog:
        assert catalog.facts() == json.loads((FOLDER / "catalog.json").read_text())
        assert catalog.keys() == [RESNET, VGG]


def test_the_page_has_the_schema() -> None:
    page = (ROOT / "docs" / "formats" / "catalog.md").read_text()
    assert page.split("```sql\n")[1].split("```")[0].strip() == module._SCHEMA.strip()
    assert f"0x{module._APPLICATION:X}" in page


def test_stored_values_are_read_back_and_the_latest_replaces_earlier_ones(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "catalog.db"
    fill(path)
    with Catalog.open(path, write=True) as catalog:
        assert catalog.get(RESNET, "compute") == entry(0.3036)
        assert catalog.get(RESNET, "wait_conc", beside=VGG) == entry(0.6)
        assert catalog.get(RESNET, "wait_conc", beside=RESNET) is None
        assert catalog.get(dataclasses.replace(RESNET, batch=32), "compute") is None
        unknown = dataclasses.replace(RESNET, machine="other")
        assert catalog.get(RESNET, "wait_conc", beside=unknown) is None
        catalog.put(RESNET, "compute", entry(0.25, steps=200))
        catalog.put(RESNET, "wait_conc", entry(0.7), beside=VGG)
    with Catalog.open(path) as catalog:
        assert catalog.get(RESNET, "compute") == entry(0.25, steps=200)
        assert catalog.get(RESNET, "wait_conc", beside=VGG) == entry(0.7)


def test_times_for_predictions_mark_estimated_values(tmp_path: pathlib.Path) -> None:
    fill(tmp_path / "catalog.db")
    with Catalog.open(tmp_path / "catalog.db") as catalog:
        times = catalog.times(RESNET, steps=1560, epochs=2, beside=VGG)
        assert (times.name, times.compute, times.wait, times.wait_cached) == (
            "resnet50",
            0.3036,
            0.4493,
            0.04,
        )
        assert (times.wait_conc, times.steps, times.epochs) == (0.6, 1560, 2)
        assert times.estimated == {"wait_cached"}
        assert catalog.times(RESNET, steps=1, name="a").wait_conc is None
        with pytest.raises(NotMeasured, match="compute of resnet50, batch 1, of TinyImageNet on node-1"):
            catalog.times(dataclasses.replace(RESNET, batch=1), steps=1)


def test_only_missing_or_stale_values_are_measured_again(tmp_path: pathlib.Path) -> None:
    fill(tmp_path / "catalog.db")
    alexnet = dataclasses.replace(RESNET, model="alexnet")
    with Catalog.open(tmp_path / "catalog.db", write=True) as catalog:
        assert catalog.missing(RESNET, beside=VGG) == ()
        assert catalog.missing(VGG, beside=RESNET) == ("wait_conc",)
        assert catalog.stale(VGG, beside=RESNET) == {"wait_conc": "a reason"}
        assert catalog.stale(VGG) == {}
        assert catalog.missing(alexnet) == ("compute", "wait", "wait_cached")
        assert catalog.missing(RESNET, beside=alexnet) == ("wait_conc",)
        assert catalog.mark_stale(alexnet, "never seen") == 0
        assert catalog.mark_stale(RESNET, "another kernel") == 3
        assert catalog.mark_stale(RESNET, "another reason") == 0
        assert catalog.missing(RESNET, beside=VGG) == ("compute", "wait", "wait_cached")
        assert catalog.stale(RESNET)["compute"] == "another kernel"
        catalog.put(RESNET, "compute", entry(0.3))
        assert catalog.missing(RESNET) == ("wait", "wait_cached")


def test_derived_values_count_as_missing_for_measurements(tmp_path: pathlib.Path) -> None:
    fill(tmp_path / "catalog.db")
    with Catalog.open(tmp_path / "catalog.db") as catalog:
        assert catalog.missing(RESNET, beside=VGG) == ()
        assert catalog.missing(RESNET, beside=VGG, measured=True) == ("wait_cached",)


def test_a_makespan_far_from_its_prediction_marks_the_used_values_as_stale(
    tmp_path: pathlib.Path,
) -> None:
    fill(tmp_path / "catalog.db")
    used = [
        UsedValue(RESNET, "compute"),
        UsedValue(RESNET, "wait_conc", VGG),
        UsedValue(VGG, "wait"),
        UsedValue(VGG, "wait_conc", RESNET),
        UsedValue(dataclasses.replace(VGG, batch=1), "wait"),
    ]
    with Catalog.open(tmp_path / "catalog.db", write=True) as catalog:
        assert catalog.judge(used, predicted=1090.0, measured=1000.0)
        assert catalog.stale(RESNET) == {}
        assert not catalog.judge(used, predicted=880.0, measured=1000.0)
        reason = "predicted 880 s for a makespan of 1000 s (-12.0 %)"
        assert catalog.stale(RESNET, beside=VGG) == {"compute": reason, "wait_conc": reason}
        assert catalog.stale(VGG, beside=RESNET) == {"wait": reason, "wait_conc": "a reason"}
        with pytest.raises(ConfigError, match="measured is 0"):
            catalog.judge(used, predicted=1.0, measured=0)
        with pytest.raises(ConfigError, match="reason is empty"):
            catalog.mark_stale(RESNET, "")


def test_an_unknown_version_is_refused_with_its_number(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "catalog.db"
    fill(path)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 3")
    database.close()
    for write in (False, True):
        with pytest.raises(
            CatalogInvalid, match=r"catalog\.db: version 3; this program reads versions 1 and 2"
        ):
            Catalog.open(path, write=write)


def test_a_catalog_of_the_previous_version_is_readable_and_upgraded_by_writers(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "catalog.db"
    fill(path)
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE place")
        database.execute("PRAGMA user_version = 1")
    database.close()
    with Catalog.open(path) as catalog:
        assert catalog.get(RESNET, "compute") == entry(0.3036)
        assert catalog.places("node-1", "TinyImageNet") == ()
    for _ in range(2):
        with Catalog.open(path, write=True) as catalog:
            catalog.put_places("node-1", "TinyImageNet", ["/data"])
    with Catalog.open(path) as catalog:
        assert catalog.get(RESNET, "compute") == entry(0.3036)
        assert catalog.places("node-1", "TinyImageNet") == ("/data",)


def test_data_paths_are_stored_per_machine_and_the_latest_replaces_earlier_ones(
    tmp_path: pathlib.Path,
) -> None:
    fill(tmp_path / "catalog.db")
    with Catalog.open(tmp_path / "catalog.db", write=True) as catalog:
        assert catalog.places("node-1", "TinyImageNet") == ("/data/more", "/data/tiny")
        assert catalog.places("node-2", "TinyImageNet") == ()
        catalog.put_places("node-2", "TinyImageNet", ["/elsewhere", "/elsewhere"])
        catalog.put_places("node-1", "TinyImageNet", [])
        assert catalog.places("node-1", "TinyImageNet") == ()
        assert catalog.places("node-2", "TinyImageNet") == ("/elsewhere",)


def test_a_database_of_another_program_is_refused_and_not_changed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "bookmarks.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE bookmark (uri TEXT)")
    database.close()
    before = path.read_bytes()
    for write in (False, True):
        with pytest.raises(CatalogInvalid, match="of another program"):
            Catalog.open(path, write=write)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_not_changed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database at all, whatever its length may be\n" * 100)
    for write in (False, True):
        with pytest.raises(CatalogInvalid, match="no SQLite file"):
            Catalog.open(path, write=write)
    assert path.read_text().startswith("not a database")
    (tmp_path / "empty.db").touch()
    with pytest.raises(CatalogInvalid, match="no SQLite file"):
        Catalog.open(tmp_path / "empty.db")
    Catalog.open(tmp_path / "empty.db", write=True).close()
    Catalog.open(tmp_path / "empty.db").close()


@pytest.mark.parametrize("damage", ["half", "header"])
def test_an_error_names_the_damaged_file(tmp_path: pathlib.Path, damage: str) -> None:
    path = tmp_path / "catalog.db"
    fill(path)
    content = path.read_bytes()
    size = len(content)
    damaged = content[: size // 2] if damage == "half" else content[:100] + b"\xff" * (size - 100)
    path.write_bytes(damaged)
    with pytest.raises(CatalogInvalid, match=r"catalog\.db: damaged"), Catalog.open(path) as catalog:
        catalog.facts()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("UPDATE figure SET seconds = 9e999 WHERE name = 'wait'", "seconds is inf"),
        ("UPDATE figure SET seconds = 'fast' WHERE name = 'wait'", "seconds is 'fast'"),
        ("UPDATE figure SET date = 'yesterday' WHERE name = 'wait'", "yesterday"),
        ("UPDATE figure SET date = x'00' WHERE name = 'wait'", "damaged"),
        ("UPDATE figure SET steps = 1.5 WHERE name = 'wait'", "steps is 1.5"),
        ("UPDATE job SET batch = 1e300 WHERE model = 'vgg16'", "batch is 1e+300"),
        ("UPDATE job SET model = '' WHERE model = 'vgg16'", "model is ''"),
        ("DROP TABLE figure", "no such table"),
    ],
)
def test_invalid_stored_values_are_reported_as_damage(
    tmp_path: pathlib.Path, change: str, expected: str
) -> None:
    path = tmp_path / "catalog.db"
    fill(path)
    with sqlite3.connect(path) as database:
        database.execute(change)
    database.close()
    with Catalog.open(path) as catalog, pytest.raises(CatalogInvalid) as raised:
        catalog.facts()
    assert expected in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_catalog_locked_by_another_program_is_busy_until_the_lock_is_released(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "catalog.db"
    fill(path)
    # SQLite treats two connections of one process like those of two processes.
    locker = sqlite3.connect(path, isolation_level=None)
    locker.execute("BEGIN EXCLUSIVE")
    try:
        for write in (False, True):
            with pytest.raises(CatalogBusy, match=r"catalog\.db: locked by another program"):
                Catalog.open(path, write=write, wait=0.0)
    finally:
        locker.close()
    with Catalog.open(path, write=True, wait=0.0) as catalog:
        catalog.put(RESNET, "compute", entry(0.2))


def test_a_failed_transaction_changes_nothing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "catalog.db"
    fill(path)
    with Catalog.open(path) as catalog, pytest.raises(CatalogInvalid, match="readonly"):
        catalog.put(RESNET, "compute", entry(0.2))
    with Catalog.open(path) as catalog:
        assert catalog.get(RESNET, "compute") == entry(0.3036)


def test_a_missing_file_is_reported_as_missing(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        Catalog.open(tmp_path / "nowhere.db")
    with pytest.raises(IsADirectoryError):
        Catalog.open(tmp_path, write=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: dataclasses.replace(RESNET, machine=""), "machine is ''"),
        (lambda: dataclasses.replace(RESNET, loader="a\nb"), "loader is"),
        (lambda: dataclasses.replace(RESNET, batch=0), "batch is 0; a whole number from 1 to 2**32 - 1"),
        (lambda: dataclasses.replace(RESNET, batch=True), "batch is True"),
        (lambda: entry(-1.0), "seconds is -1.0"),
        (lambda: entry(float("nan")), "seconds is nan"),
        (lambda: entry(1.0, sd=-1.0), "sd is -1.0"),
        (lambda: entry(1.0, steps=0), "steps is 0"),
        (lambda: entry(1.0, date="today"), "date is 'today'"),
        (lambda: entry(1.0, program=""), "program is ''"),
        (lambda: entry(1.0, stale=""), "stale is ''"),
    ],
)
def test_each_invalid_value_is_named(make: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make()
    assert expected in str(raised.value)


def test_only_the_concurrent_wait_depends_on_another_job(tmp_path: pathlib.Path) -> None:
    with Catalog.open(tmp_path / "catalog.db", write=True) as catalog:
        with pytest.raises(ConfigError, match="beside is missing"):
            catalog.put(RESNET, "wait_conc", entry(0.1))
        with pytest.raises(ConfigError, match="wait depends on no other job"):
            catalog.get(RESNET, "wait", beside=VGG)
        with pytest.raises(ConfigError, match="figure is 'speed'"):
            catalog.get(RESNET, "speed")  # type: ignore[arg-type]
