# SPDX-License-Identifier: Apache-2.0
"""Data that are in memory before a run are not cold: they cause a warning, and no value is outcome."""

from __future__ import annotations

import argparse
import pathlib

import pytest

from foresee import jobspec
from foresee._native import Index
from foresee.cli.stagger import run
from foresee.stagger import Catalog, Key
from foresee.stagger.catalog_entry import UsedValue
from foresee.storage import page_cache

CHUNK = 1 << 16
KEY = Key(machine="here", data="files", model="a", batch=4, loader="default")


def test_cached_data_cause_a_warning_and_mark_nothing_stale(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for at in range(8):
        (folder / f"{at}.bin").write_bytes(bytes(CHUNK))
    Index.build(str(folder), layout="flat").save(tmp_path / "files.fidx")
    toml = f'version = 1\n[data]\nindex = "{tmp_path / "files.fidx"}"\n'
    jobs = [jobspec.loads(toml, str(tmp_path)) for _ in range(2)]
    files = [str(path) for path in folder.iterdir()]
    # As the kernel reports files that are fully in memory.
    monkeypatch.setattr(page_cache, "_resident", lambda file, path: CHUNK)
    result = run._warn_if_cached(run._data_places(jobs, None, None, "files"))
    assert result is not None
    assert result.startswith("100 % of the data are in memory already")
    assert page_cache.has_resident(files)
    used = [UsedValue(KEY, "wait")]
    outcome = {"measured": {"makespan": 9.0}, "predicted_at_starts": {"makespan": 1.0}, "doubts": [result]}
    options = argparse.Namespace(catalog="jobs.db", slurm=False, running=None, steps=None)
    assert run._judge_catalog(options, used, [str(folder)], outcome) is None
    # As it reports files that are not in memory.
    monkeypatch.setattr(page_cache, "_resident", lambda file, path: 0)
    assert not page_cache.has_resident(files)
    assert run._warn_if_cached([str(folder)]) is None


def test_places_come_from_the_catalog_or_the_index(tmp_path: pathlib.Path) -> None:
    nowhere = jobspec.loads('version = 1\n[data]\nname = "files"\n', str(tmp_path))
    lost = jobspec.loads('version = 1\n[data]\nindex = "no.fidx"\n', str(tmp_path))
    with Catalog.open(tmp_path / "jobs.db", write=True) as catalog:
        assert run._data_places([nowhere], catalog, "here", "files") == []
        assert run._warn_if_cached([]) is None
        catalog.put_places("here", "files", [str(tmp_path), str(tmp_path / "gone")])
        assert run._data_places([nowhere], catalog, "here", "files") == [str(tmp_path)]
        assert run._data_places([nowhere], catalog, "elsewhere", "files") == []
        assert run._data_places([lost], catalog, "elsewhere", "files") == []


def test_an_index_shows_whether_data_are_local(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed = jobspec.loads('version = 1\n[data]\nindex = "no.fidx"\n', str(tmp_path))
    assert page_cache.is_local([jobspec.loads('version = 1\n[data]\nname = "files"\n', str(tmp_path))])
    for place, files in (("/data", True), (None, False)):
        monkeypatch.setattr(page_cache, "_index_place", lambda index, place=place: place)
        assert page_cache.is_local([indexed]) is files


def test_bytes_at_places_are_counted_as_far_as_needed(tmp_path: pathlib.Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.bin").write_bytes(bytes(1000))
    places = [str(tmp_path / "one" / "0.bin"), str(tmp_path / "two")]
    assert page_cache.has_bytes(places, 2000)
    assert not page_cache.has_bytes(places, 2001)
    assert not page_cache.has_bytes([], 1)
