# SPDX-License-Identifier: Apache-2.0
"""The measurement of ``foresee bench storage``: orders, the modelled origin, files and processes, without its command."""

from __future__ import annotations

import errno
import os
import pathlib
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.properties import properties

from foresee.errors import ConfigError, PageCacheKept
from foresee.storage import bench
from foresee.storage.bench import files, loop, measurement, result
from foresee.storage.bench.throttle import Throttle, TokenBucket


class Value:
    """A stand-in for a shared value of processes."""

    def __init__(self) -> None:
        self.value = 0

    def get_lock(self) -> Value:
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@properties()
@given(
    st.sampled_from(bench.SHUFFLES),
    st.integers(1, 9),
    st.integers(0, 60),
    st.integers(0, 5),
    st.integers(0, 1 << 31),
)
def test_in_every_epoch_each_file_is_read_once_by_one_rank(
    shuffle: str, ranks: int, more: int, epoch: int, seed: int
) -> None:
    orders = measurement.rank_orders(shuffle, ranks + more, ranks, seed, epoch)
    assert sorted(np.concatenate(orders).tolist()) == list(range(ranks + more))
    assert max(map(len, orders)) - min(map(len, orders)) <= 1


def test_only_the_local_shuffle_retains_shards() -> None:
    first, second = (measurement.rank_orders("local", 100, 4, 7, epoch) for epoch in (0, 1))
    assert [set(part.tolist()) for part in first] == [set(part.tolist()) for part in second]
    assert any(one.tolist() != other.tolist() for one, other in zip(first, second, strict=True))
    first, second = (measurement.rank_orders("global", 100, 4, 7, epoch) for epoch in (0, 1))
    assert [set(part.tolist()) for part in first] != [set(part.tolist()) for part in second]


@properties()
@given(st.integers(1, 9), st.integers(0, 60), st.floats(0, 1), st.integers(0, 100))
def test_a_growing_cache_has_the_same_share_of_each_shard(
    ranks: int, more: int, rate: float, seed: int
) -> None:
    count = ranks + more
    held = set(measurement.cache_order(count, seed)[: round(rate * count)].tolist())
    parts = measurement.rank_shares(count, ranks, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(count))
    shares = [sum(number in held for number in part.tolist()) for part in parts]
    assert max(shares) - min(shares) <= 1


@properties()
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=20))
def test_a_token_bucket_limits_the_rate_without_bursts(requested: list[tuple[int, int]]) -> None:
    now = 0
    bucket = TokenBucket(Value(), lambda: now)
    before = 0
    for idle, cost in requested:
        now += idle
        done = bucket.take(cost)
        assert done == max(now, before) + cost
        before = done


def test_files_are_created_in_new_folders_and_removed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine").write_text("stays")
    errors: list[str] = []
    with files.create_files([str(tmp_path), str(tmp_path)], [range(3), [2]], 100, errors.append) as (
        one,
        other,
    ):
        assert sorted(os.listdir(one)) == ["00000000", "00000001", "00000002"]
        assert os.listdir(other) == ["00000002"]
        content = pathlib.Path(files.file_path(one, 2)).read_bytes()
        assert len(content) == 100
        assert int.from_bytes(content[: files.HEAD_BYTES], "little") == 2
        assert len({pathlib.Path(files.file_path(one, at)).read_bytes()[8:] for at in range(3)}) == 3
    assert os.listdir(tmp_path) == ["mine"]
    assert errors[0] == "making files: 0 of 4"


def test_a_full_disk_is_named_and_created_files_are_removed(tmp_path: pathlib.Path, monkeypatch) -> None:
    real = files._write

    def full(where: str, head: bytes, rest: bytes) -> None:
        if where.endswith("2"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), where)
        real(where, head, rest)

    monkeypatch.setattr(files, "_write", full)
    with (
        pytest.raises(OSError, match=r"No space left on device: .*00000002"),
        files.create_files([str(tmp_path)], [range(3)], 100, str),
    ):
        raise AssertionError
    assert os.listdir(tmp_path) == []


def test_a_folder_without_the_right_to_write_is_named(tmp_path: pathlib.Path, monkeypatch) -> None:
    def refused(**_: object) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(files.tempfile, "mkdtemp", refused)
    with (
        pytest.raises(ConfigError, match=re.escape(f"{tmp_path}: cannot be written to (Permission denied)")),
        files.create_files([str(tmp_path)], [range(3)], 100, str),
    ):
        raise AssertionError


def test_files_that_stay_in_memory_are_a_share_and_no_failure(tmp_path: pathlib.Path, monkeypatch) -> None:
    from foresee.storage import page_cache

    path = tmp_path / "a"
    path.write_bytes(bytes(8192))
    share = files.evict_files([str(path)], machine=False)
    assert share is None or 0 <= share <= 1

    def stored(_: object) -> None:
        raise PageCacheKept("a tmpfs")

    monkeypatch.setattr(page_cache, "evict", stored)
    monkeypatch.setattr(page_cache, "resident_bytes", lambda _: (6000, 8000))
    assert files.evict_files([str(path)], machine=False) == 0.75
    monkeypatch.setattr(page_cache, "resident_bytes", lambda _: (None, 0))
    assert files.evict_files([str(path)], machine=False) is None


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"origins": []}, "--origin: one folder or more expected"),
        ({"origins": ["/nowhere"]}, "--origin /nowhere: no such folder"),
        ({"origins": ["a=", "/"]}, "--origin a=: [NAME=] and a value expected"),
        ({"origins": ["a b=/"]}, "--origin a b=/: [NAME=] and a value expected"),
        ({"origins": ["a=/", "a=/tmp"]}, "--origin a=/tmp: 'a' is given twice"),
        ({"cache": "/nowhere"}, "--cache /nowhere: no such folder"),
        ({"files": []}, "--files: one SIZE:COUNT or more expected"),
        ({"files": ["128KiB"]}, "--files 128KiB: SIZE:COUNT expected"),
        ({"files": ["7:3"]}, "--files 7:3: SIZE:COUNT expected, such as 128KiB:2048; 8 bytes or more"),
        ({"files": ["128KiB:0"]}, "--files 128KiB:0: SIZE:COUNT expected"),
        ({"files": ["128KiB:-3"]}, "--files 128KiB:-3: SIZE:COUNT expected"),
        ({"files": ["nan:3"]}, "--files nan:3: SIZE:COUNT expected"),
        ({"files": ["1KiB:4", "1KiB:8"]}, "--files 1KiB: is given twice"),
        ({"rates": "0,1.5"}, "--rates '1.5': cache rates from 0 to 1 expected"),
        ({"rates": "nan"}, "--rates 'nan': cache rates from 0 to 1 expected"),
        ({"rates": ""}, "--rates '': cache rates from 0 to 1 expected"),
        ({"throttles": ["0MB/s"]}, "--throttle 0MB/s: a rate above 0 and maybe opens per second"),
        ({"throttles": ["nanMB/s"]}, "--throttle nanMB/s: a rate above 0"),
        ({"throttles": ["1MB/s,nan/s"]}, "--throttle 1MB/s,nan/s: a rate above 0"),
        ({"throttles": ["1MB/s,0"]}, "--throttle 1MB/s,0: a rate above 0"),
        ({"throttles": ["1MB/s,inf"]}, "--throttle 1MB/s,inf: a rate above 0"),
        ({"throttles": ["1MB"]}, "--throttle 1MB: a rate above 0"),
        ({"processes": 0}, "--processes 0: a whole number from 1 to 1,024 expected"),
        ({"processes": 5000}, "--processes 5000: a whole number from 1 to 1,024 expected"),
        ({"processes": 9}, "--processes 9: more than the 8 files of 1KiB, so some would read nothing"),
        ({"epochs": 0}, "--epochs 0: a whole number from 1 to 10,000 expected"),
        ({"seed": -1}, "--seed -1: a whole number from 0 to 4,294,967,295 expected"),
        ({"shuffles": ["none"]}, "--shuffle none: global or local expected"),
    ],
)
def test_bad_input_is_refused_with_the_expected_value(
    tmp_path: pathlib.Path, more: dict, expected: str
) -> None:
    given_ = {"origins": [str(tmp_path)], "cache": str(tmp_path), "files": ["1KiB:8"], **more}
    with pytest.raises(ConfigError) as result:
        bench.check(**given_)
    assert any(fault.startswith(expected) for fault in result.value.faults), result.value


def test_all_faults_are_reported_at_once(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError) as result:
        bench.check(origins=["/nowhere"], cache="/nowhere", files=["x"], processes=0, epochs=0, rates="2")
    assert len(result.value.faults) == 6


def test_missing_space_is_reported_before_a_file_is_created(tmp_path: pathlib.Path, monkeypatch) -> None:
    free = os.statvfs_result((4096, 4096, 1000, 1000, 1000, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: free)
    result = {"origins": [str(tmp_path)], "cache": str(tmp_path), "processes": 1}
    # Both folders share the free space, and the cache needs only its largest rate.
    bench.check(**result, files=["1MB:2"], rates="0,0.5")
    with pytest.raises(ConfigError, match=r"4 MB of files, and 4 MB are free; fewer files by --files"):
        bench.check(**result, files=["1MB:2"])


def test_dropping_all_caches_needs_root(tmp_path: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setattr("foresee.storage.page_cache.may_drop_machine_caches", lambda: False)
    with pytest.raises(ConfigError, match="--drop-caches: only root may drop"):
        bench.check(
            origins=[str(tmp_path)], cache=str(tmp_path), files=["1KiB:4"], processes=1, drop_caches=True
        )


@properties(soak=20)
@given(st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=3))
def test_data_that_stay_in_memory_are_a_limit(shares: list[float | None]) -> None:
    options = bench.check(origins=["/"], cache="/", files=["16:4"], processes=1)
    case = bench.cases(options)[0]
    measured = [measurement.RateResult(case, 0.0, 0, "", (1.0,), (share, None)) for share in shares]
    limits = [limit for limit in result._limits(options, measured) if limit.startswith("origin: ")]
    known = [share for share in shares if share is not None]
    if not known:
        assert "does not report" in limits[0]
    else:
        assert bool(limits) == (max(known) > 0.01)


def test_case_names_have_only_the_parts_that_differ(tmp_path: pathlib.Path) -> None:
    result = {"cache": str(tmp_path), "files": ["1KiB:4"], "processes": 1, "shuffles": ("global",)}
    place = str(tmp_path)

    def names(origins: list[str], *throttles: str) -> list[str]:
        return [
            case.name for case in bench.cases(bench.check(origins=origins, throttles=throttles, **result))
        ]

    assert names([place]) == ["1KiB-origin-global"]
    assert names([place], "none", "1MB/s", "fast=2MB/s") == [
        f"1KiB-{name}-global" for name in ("full", "throttled", "fast")
    ]
    assert names([f"a={place}", f"b={place}"], "1MB/s") == [
        "1KiB-a-throttled-global",
        "1KiB-b-throttled-global",
    ]


def cgroups(folder: pathlib.Path, *, new: bool) -> pathlib.Path:
    """A cgroup tree as the kernel shows it."""
    if new:
        folder.mkdir()
        (folder / "cgroup.controllers").write_text("cpu io memory\n")
        return folder
    (folder / "blkio").mkdir(parents=True)
    (folder / "blkio" / "cgroup.procs").write_text("")
    return folder / "blkio"


@pytest.mark.parametrize(
    ("new", "throttle", "words"),
    [
        (True, Throttle(6e7, 1500.0), {"io.max": "7:0 rbps=60000000 riops=1500"}),
        (True, Throttle(), {"io.max": "7:0 rbps=max riops=max"}),
        (False, Throttle(6e7), {"bps": "7:0 60000000", "iops": "7:0 0"}),
        (False, Throttle(0.5, 0.5), {"bps": "7:0 1", "iops": "7:0 1"}),
    ],
)
def test_limits_have_the_syntax_of_the_cgroup_version(
    tmp_path: pathlib.Path, new: bool, throttle: Throttle, words: dict[str, str]
) -> None:
    top = cgroups(tmp_path / "cgroup", new=new)
    group = loop.ControlGroup(str(tmp_path / "cgroup"))
    (mine,) = (each for each in top.iterdir() if each.is_dir())
    assert (top / "cgroup.subtree_control").exists() == new
    group.add([12, 13])
    assert (mine / "cgroup.procs").read_text() == "13"  # one write per process, as the kernel requires
    group.limit("7:0", throttle)
    for name, line in words.items():
        file = name if new else f"blkio.throttle.read_{name}_device"
        assert (mine / file).read_text() == line


def test_missing_requirements_of_a_loop_device_are_named(tmp_path: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "only root may attach a loop device" in (loop.missing_requirement() or "")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/loop-control")
    monkeypatch.setattr(loop.shutil, "which", lambda tool: None if tool == "losetup" else tool)
    assert (loop.missing_requirement() or "").startswith("losetup is not installed")
    monkeypatch.setattr(loop.shutil, "which", lambda tool: tool)
    assert "no cgroup controller blkio or io below" in (loop.missing_requirement(str(tmp_path)) or "")
    monkeypatch.setattr(loop, "missing_requirement", lambda: "no root")
    result = {
        "origins": [str(tmp_path)],
        "cache": str(tmp_path),
        "files": ["1KiB:4"],
        "throttle_by": "kernel",
    }
    with pytest.raises(ConfigError) as error:
        bench.check(**result)
    assert error.value.faults == [
        "--throttle-by kernel without a rate; add --throttle RATE",
        "--throttle-by kernel: no root",
    ]
    with pytest.raises(ConfigError, match="--throttle-by me: reader or kernel expected"):
        bench.check(**{**result, "throttle_by": "me"})
