# SPDX-License-Identifier: Apache-2.0
"""Data that are in memory before a run, which is no cold start: seen, told, and no figure is judged by it."""

from __future__ import annotations

import argparse
import pathlib

import pytest

from foresee import job
from foresee._native import Index
from foresee.cli import _stagger_run
from foresee.jobs import Catalog, Key, cold
from foresee.jobs.entry import Used

CHUNK = 1 << 16
KEY = Key(machine="here", data="files", model="a", batch=4, loader="default")


def test_data_that_are_in_memory_are_told_of_and_mark_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for at in range(8):
        (folder / f"{at}.bin").write_bytes(bytes(CHUNK))
    Index.build(str(folder), layout="flat").save(tmp_path / "files.fidx")
    toml = f'version = 1\n[data]\nindex = "{tmp_path / "files.fidx"}"\n'
    jobs = [job.loads(toml, str(tmp_path)) for _ in range(2)]
    files = [str(path) for path in folder.iterdir()]
    # As the kernel says of files of which all is in memory.
    monkeypatch.setattr(cold, "_in_memory", lambda file, path: CHUNK)
    told = _stagger_run._warm(_stagger_run._places(jobs, None, None, "files"))
    assert told is not None
    assert told.startswith("100 % of the data are in memory already")
    assert cold.touched(files)
    used = [Used(KEY, "wait")]
    judged = {"measured": {"makespan": 9.0}, "predicted_at_starts": {"makespan": 1.0}, "doubts": [told]}
    options = argparse.Namespace(catalog="jobs.db", slurm=False, running=None, steps=None)
    assert _stagger_run._judged(options, used, [str(folder)], judged) is None
    # And of files of which nothing is.
    monkeypatch.setattr(cold, "_in_memory", lambda file, path: 0)
    assert not cold.touched(files)
    assert _stagger_run._warm([str(folder)]) is None


def test_data_lie_where_the_catalog_or_the_index_has_them(tmp_path: pathlib.Path) -> None:
    nowhere = job.loads('version = 1\n[data]\nname = "files"\n', str(tmp_path))
    lost = job.loads('version = 1\n[data]\nindex = "no.fidx"\n', str(tmp_path))
    with Catalog.open(tmp_path / "jobs.db", write=True) as catalog:
        assert _stagger_run._places([nowhere], catalog, "here", "files") == []
        assert _stagger_run._warm([]) is None
        catalog.put_places("here", "files", [str(tmp_path), str(tmp_path / "gone")])
        assert _stagger_run._places([nowhere], catalog, "here", "files") == [str(tmp_path)]
        assert _stagger_run._places([nowhere], catalog, "elsewhere", "files") == []
        assert _stagger_run._places([lost], catalog, "elsewhere", "files") == []


def test_where_an_index_says_whether_data_are_files(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed = job.loads('version = 1\n[data]\nindex = "no.fidx"\n', str(tmp_path))
    assert cold.in_files([job.loads('version = 1\n[data]\nname = "files"\n', str(tmp_path))])
    for place, files in (("/data", True), (None, False)):
        monkeypatch.setattr(cold, "_place", lambda index, place=place: place)
        assert cold.in_files([indexed]) is files


def test_bytes_at_places_are_counted_as_far_as_needed(tmp_path: pathlib.Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.bin").write_bytes(bytes(1000))
    places = [str(tmp_path / "one" / "0.bin"), str(tmp_path / "two")]
    assert cold.holds(places, 2000)
    assert not cold.holds(places, 2001)
    assert not cold.holds([], 1)
