# SPDX-License-Identifier: Apache-2.0
"""Tables from Darshan logs, each read by a separate process, and refused logs."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from foresee import storage
from foresee.errors import ConfigError, NotMeasured
from foresee.storage.analysis import answers, darshan


def example(name: str) -> str:
    """Return the path of an example log of PyDarshan."""
    found = importlib.util.find_spec("darshan")
    assert found is not None, "PyDarshan is missing: make setup"
    assert found.origin is not None
    return str(Path(found.origin).parent / "examples" / "example_logs" / f"{name}.darshan")


_load = darshan._load


@pytest.fixture(autouse=True)
def _logs_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(darshan, "_load", lambda path: _once(path) if "example_logs" in path else _load(path))


@functools.cache
def _once(path: str) -> dict:
    return _load(path)


def test_a_log_has_the_seconds_of_each_rank() -> None:
    result = darshan.read(example("sample-badost"), {"/scratch1": "gfs"})
    assert result.classes == (*storage.CLASSES, "GFS-WRITE")
    assert result.seconds.shape == (2048, 5)
    assert result.known
    slowest = storage.slowest(result.seconds)
    assert result.processes[slowest.process] == "rank 1507"
    assert slowest.seconds == pytest.approx(778.494, abs=1e-3)
    assert result.seconds[0] == pytest.approx([0, 0.537971, 0, 0, 8.587706], abs=1e-6)
    assert any("left out, 299.8" in limit for limit in result.limits)


def test_the_longest_prefix_decides_the_tier_of_a_path() -> None:
    both = darshan.read(example("dxt"), {"/": "gfs", "/blues": "lfs"})
    one = darshan.read(example("dxt"), {"/blues": "lfs"})
    at = both.column("lfs-read")
    assert both.seconds[0, at] == one.seconds[0, at] > 0
    assert both.seconds[0, both.column("GFS-READ")] > 0


def test_other_tiers_are_separate_classes() -> None:
    result = darshan.read(example("dxt"), {"/blues": "burst"})
    assert result.classes == (*storage.CLASSES, "BURST-META", "BURST-READ")


def test_dxt_gives_reads_of_an_interval_but_no_metadata() -> None:
    whole = darshan.read(example("dxt"), {"/blues": "gfs"})
    parts = [darshan.read(example("dxt"), {"/blues": "gfs"}, between=span) for span in ((0, 50), (50, 1e6))]
    column = whole.column("gfs-read")
    assert sum(part.seconds[0, column] for part in parts) == pytest.approx(whole.seconds[0, column], rel=0.05)
    assert all(math.isnan(part.seconds[0, part.column("gfs-meta")]) for part in parts)
    assert any("DXT has reads and writes only" in limit for limit in parts[0].limits)


def test_an_entry_of_all_ranks_is_not_assigned_to_one() -> None:
    result = darshan.read(example("example"), {"/scratch2": "gfs"})
    assert not result.known
    assert np.isnan(result.seconds[:, result.column("gfs-meta")]).all()
    assert (
        result.seconds[:, result.column("gfs-read")].max() == 0
    )  # without reads, no rank has to be distinguished
    assert result.shared[result.column("gfs-meta")] == pytest.approx(11.3008, abs=1e-4)
    assert any("one entry for all of them" in limit for limit in result.limits)
    with pytest.raises(NotMeasured, match="GFS-META, GFS-WRITE of each process is not known"):
        answers.answer({0.0: result}, answers.Question(goal=1.0))
    plain = answers.answer({0.0: result}, answers.Question())["tables"][0]
    assert plain["slowest"] is None
    assert plain["sums_of_all_ranks"]["GFS-META"] == pytest.approx(11.3008, abs=1e-4)


def test_dxt_assigns_reads_of_a_shared_file_to_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    log = {
        "modules": np.array(["POSIX", "DXT_POSIX"]),
        "partial": np.array(["POSIX"]),
        "mounts": np.array(["/"]),
        "nprocs": np.array(2),
        "ids": np.array([7], np.uint64),
        "names": np.array(["/l/a"]),
        "module": np.array(["POSIX"]),
        "id": np.array([7], np.uint64),
        "rank": np.array([-1]),
        "read": np.array([3.0]),
        "write": np.array([0.0]),
        "meta": np.array([0.0]),
        "dxt_id": np.array([7, 7], np.uint64),
        "dxt_rank": np.array([0, 1]),
        "dxt_write": np.array([False, False]),
        "dxt_start": np.array([0.0, 1.0]),
        "dxt_end": np.array([1.0, 3.0]),
    }
    monkeypatch.setattr(darshan, "_load", lambda path: log)
    result = darshan.read("a.darshan", {"/l": "gfs"})
    assert result.seconds.tolist() == [[1, 0, 0, 0], [2, 0, 0, 0]]
    assert any("POSIX: the log is marked as partial" in limit for limit in result.limits)


@pytest.mark.parametrize(
    "name", ["read_id71317", "read_id71344", "write_id71296", "write_id71303", "write_id71310"]
)
def test_entries_of_all_ranks_belong_to_rank_0_of_a_single_process_job(name: str) -> None:
    [path] = Path(example("dxt")).parent.with_name("darshan-graph").glob(f"pq_app_{name}_*.darshan")
    found = darshan.read(path, {"/": "gfs"})
    assert found.known
    assert found.processes == ("rank 0",)
    assert found.seconds[0, found.column("GFS-META")] > 0
    assert answers.answer({0.0: found}, answers.Question(goal=1.0))["goal"]["met"]
    assert not any("all ranks" in limit for limit in found.limits)


def test_a_few_negative_times_do_not_hide_the_other_seconds() -> None:
    found = darshan.read(example("dxt"), {"/": "gfs"})
    assert found.known
    assert found.seconds[0, found.column("GFS-META")] == pytest.approx(11217.796, abs=1e-3)
    assert any("5 negative times, -0.0008545 s in sum, count as 0" in limit for limit in found.limits)


def negative_log(**columns: list) -> dict:
    """A log of two ranks, a file for each entry."""
    count = len(columns["rank"])
    return {
        "modules": np.array(["POSIX"]),
        "partial": np.array([], str),
        "mounts": np.array(["/"]),
        "nprocs": np.array(2),
        "ids": np.arange(count, dtype=np.uint64),
        "names": np.array([f"/l/{at}" for at in range(count)]),
        "module": np.array(["POSIX"] * count),
        "id": np.arange(count, dtype=np.uint64),
        **{f"dxt_{name}": np.array([]) for name in ("id", "rank", "write", "start", "end")},
        **{name: np.array(columns.get(name, [0.0] * count)) for name in ("rank", "read", "write", "meta")},
    }


def test_large_negative_times_make_their_class_unknown_but_not_its_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = negative_log(rank=[0, 0, 1, -1, -1], read=[-3.0, 5.0, 2.0, 0, 0], meta=[0, 0, 1.0, 4.0, -0.5])
    monkeypatch.setattr(darshan, "_load", lambda path: log)
    found = darshan.read("a.darshan", {"/l": "gfs"})
    assert math.isnan(found.seconds[0, 0])
    assert found.seconds[1, 0] == 2
    result = answers.answer({0.0: found}, answers.Question())["tables"][0]
    assert result["sums_of_all_ranks"] == {
        "GFS-READ": 7,
        "GFS-META": 5,
    }  # the sum includes the seconds of one rank
    assert any("GFS-META, GFS-READ of rank 0: negative times are above 1%" in limit for limit in found.limits)
    with pytest.raises(NotMeasured, match="negative times are above"):
        answers.answer({0.0: found}, answers.Question(goal=1.0))


def test_a_negative_interval_in_dxt_counts_as_0(monkeypatch: pytest.MonkeyPatch) -> None:
    log = negative_log(rank=[0])
    traced = {"id": [0, 0], "rank": [0, 0], "write": [False, False], "start": [1.0, 4.0], "end": [3.0, 3.999]}
    log |= {f"dxt_{name}": np.array(values) for name, values in traced.items()}
    monkeypatch.setattr(darshan, "_load", lambda path: log)
    found = darshan.read("a.darshan", {"/l": "gfs"}, between=(0.0, 9.0))
    assert found.seconds[0, 0] == 2
    assert any("1 negative times, -0.001 s" in limit for limit in found.limits)


def test_without_a_tier_the_error_lists_the_paths_of_the_log() -> None:
    with pytest.raises(
        ConfigError,
        match=r"assign its files to tiers with --tier gfs=PREFIX .* 69,715\.181 s below /scratch1",
    ):
        darshan.read(example("sample-badost"), {})
    with pytest.raises(ConfigError, match="no I/O below /nowhere; it has"):
        darshan.read(example("dxt"), {"/nowhere": "gfs"})


@pytest.mark.parametrize("part", [0, 9899, 98008])
def test_a_truncated_log_is_refused_and_unchanged(tmp_path: Path, part: int) -> None:
    whole = Path(example("dxt")).read_bytes()
    path = tmp_path / "cut.darshan"
    path.write_bytes(whole[:part])
    with pytest.raises(
        ConfigError, match=r"cut\.darshan: not a Darshan log, or a truncated or damaged one: \w+"
    ):
        darshan.read(path, {"/blues": "gfs"})
    assert path.read_bytes() == whole[:part]


@pytest.mark.parametrize("content", [b"PK\x03\x04" + bytes(999)])
def test_a_file_that_is_no_darshan_log_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.darshan"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not a Darshan log"):
        darshan.read(path, {"/": "gfs"})


def test_damage_in_the_middle_is_refused(tmp_path: Path) -> None:
    content = bytearray(Path(example("dxt")).read_bytes())
    content[5000:5100] = bytes(100)
    path = tmp_path / "a.darshan"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="truncated or damaged"):
        darshan.read(path, {"/": "gfs"})


def test_arbitrary_bytes_of_the_reader_are_accepted_in_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a damaged log, PyDarshan's C library reports arbitrary bytes of its memory."""
    reader = tmp_path / "reader"
    reader.write_text("#!/bin/sh\nprintf 'Error: unlinking \\221\\177\\n' >&2\nkill -ABRT $$\n")
    reader.chmod(0o755)
    monkeypatch.setattr(darshan.sys, "executable", str(reader))
    (tmp_path / "a.darshan").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"a\.darshan: not a Darshan log, .*: unlinking"):
        darshan.read(tmp_path / "a.darshan", {"/": "gfs"})


#: Offset and size of the entries for the modules in the header of a Darshan 3.1 or 3.2 log, and numbers of modules.
MODULES_AT, MODULE_BYTES = 40, 16


POSIX, LUSTRE, STDIO, DXT = 1, 6, 7, 8


def log_without(tmp_path: Path, name: str, *modules: int) -> Path:
    """Remove modules from the header of an example log of PyDarshan.

    PyDarshan has no example without POSIX and STDIO. A job without such calls has the same header, because the library
    writes the entry of a module only if the module has data.
    """
    content = bytearray(Path(example(name)).read_bytes())
    for module in modules:
        at = MODULES_AT + MODULE_BYTES * module
        assert any(content[at : at + MODULE_BYTES]), "the log has no such module"
        content[at : at + MODULE_BYTES] = bytes(MODULE_BYTES)
    path = tmp_path / f"{name}.darshan"
    path.write_bytes(content)
    return path


def test_a_log_without_posix_is_read_from_stdio() -> None:
    result = darshan.read(example("noposix"), {"/global": "gfs"})
    assert result.shared[result.column("gfs-read")] > 0
    with pytest.raises(ConfigError, match="no DXT in this log"):
        darshan.read(example("noposix"), {"/global": "gfs"}, between=(0, 1))


@pytest.mark.parametrize(
    ("name", "missing", "has"),
    [
        ("noposix", (STDIO,), "LUSTRE"),
        ("dxt", (POSIX, STDIO), "DXT_POSIX"),
        ("noposix", (LUSTRE, STDIO), "no module"),
        ("dxt", (POSIX, STDIO, DXT), "no module"),
    ],
)
def test_a_log_without_posix_and_stdio_is_refused(
    tmp_path: Path, name: str, missing: tuple[int, ...], has: str
) -> None:
    path = log_without(tmp_path, name, *missing)
    with pytest.raises(ConfigError) as result:
        darshan.read(path, {"/": "gfs"})
    assert result.value.faults == [
        f"{path}: neither POSIX nor STDIO in this log, which has {has}; trace with one of them"
    ]


def test_a_log_without_dxt_is_read(tmp_path: Path) -> None:
    """``log_without`` removes only the given modules."""
    whole = darshan.read(example("dxt"), {"/blues": "gfs"})
    part = darshan.read(log_without(tmp_path, "dxt", DXT), {"/blues": "gfs"})
    assert part.seconds.tolist() == whole.seconds.tolist()
