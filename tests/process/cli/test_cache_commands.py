# SPDX-License-Identifier: Apache-2.0
"""``foresee cache``: a directory that a real loader fills, damaged, linked and in use."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support.processes import Child, plain_environment
from support.waiting import WATCHDOG

import foresee

HOLDER = """
    import signal
    import sys
    import foresee
    from support.processes import print_json
    cache = foresee.Cache(ram=0, disk=sys.argv[2], disk_size="64MB")
    loader = foresee.Loader(sys.argv[1], batch_size=8, cache=cache)
    assert sum(len(batch) for batch in loader) == 96
    print_json(is_open=True)
    signal.pause()
"""


def cache_(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `foresee cache`."""
    return subprocess.run(
        [sys.executable, "-m", "foresee", "cache", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        env=plain_environment(environment),
        check=False,
    )


def facts(*arguments: object, code: int = 0) -> dict[str, Any]:
    """Run `foresee cache ... --json`; return its object."""
    ended = cache_(*arguments, "--json")
    assert ended.returncode == code, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.fixture
def filled(folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A cache directory with all 96 samples of `folder`."""
    place = tmp_path / "cache"
    cache = foresee.Cache(ram=0, disk=place, disk_size="64MB")
    with foresee.Loader(folder, batch_size=8, cache=cache) as loader:
        for _ in range(2):
            assert sum(len(batch) for batch in loader) == 96
    return place


def segment(place: pathlib.Path) -> pathlib.Path:
    """Return the first segment."""
    return min(place.rglob("*.seg"))


def test_a_filled_cache_is_listed_verified_and_deleted(filled: pathlib.Path, sizes: list[int]) -> None:
    listed = facts("ls", filled)
    (source,) = listed["sources"]
    assert (source["entries"], source["entry_bytes"]) == (96, sum(sizes))
    assert (source["partitions"], source["partitions_in_use"], source["version"]) == (1, 0, 2)
    assert source["disk_bytes"] >= source["entry_bytes"]
    assert 0 < listed["file_system"]["free_bytes"] <= listed["file_system"]["total_bytes"]
    verified = facts("verify", filled)
    assert (verified["entries"], verified["entry_bytes"], verified["corrupt_entries"]) == (96, sum(sizes), 0)
    trial = facts("rm", filled, source["source"], "--dry-run")
    assert trial["freed_bytes"] == source["disk_bytes"]
    assert segment(filled).exists()
    assert facts("rm", filled, source["source"])["freed_bytes"] > sum(sizes)
    assert facts("ls", filled)["sources"] == []


def test_the_environment_names_the_directory(filled: pathlib.Path) -> None:
    source = facts("ls", filled)["sources"][0]["source"]
    environment = {"FORESEE_CACHE_DIR": str(filled), "FORESEE_DISK_SIZE": "64MB"}
    listed = cache_("ls", **environment)
    assert listed.returncode == 0, listed.stderr
    assert source in listed.stdout
    deleted = cache_("rm", source, **environment)
    assert deleted.returncode == 0, deleted.stderr
    assert "freed" in deleted.stdout
    assert not (filled / source).exists()
    unnamed = cache_("ls")
    assert unnamed.returncode == 2
    assert "FORESEE_CACHE_DIR" in unnamed.stderr


def test_a_flipped_byte_is_found_and_the_loader_fetches_its_sample_again(
    filled: pathlib.Path, folder: pathlib.Path
) -> None:
    with segment(filled).open("r+b") as file:
        file.seek(70)
        byte = file.read(1)[0]
        file.seek(70)
        file.write(bytes([byte ^ 1]))
    verified = facts("verify", filled, code=1)
    (corrupt,) = verified["partitions"][0]["corrupt"]
    assert (corrupt["segment"], corrupt["offset"], corrupt["fault"]) == (0, 0, "payload")
    assert verified["corrupt_bytes"] == corrupt["bytes"] > 0
    shown = cache_("verify", filled)
    assert shown.returncode == 1
    assert "partition-0/00000000.seg, offset 0" in shown.stdout
    cache = foresee.Cache(ram=0, disk=filled, disk_size="64MB")
    with foresee.Loader(folder, batch_size=8, cache=cache) as loader:
        assert sum(len(batch) for batch in loader) == 96
    assert facts("verify", filled)["corrupt_entries"] == 0


def test_a_cache_in_use_is_neither_verified_nor_deleted(
    folder: pathlib.Path, tmp_path: pathlib.Path, started: Callable[[Child], Child]
) -> None:
    place = tmp_path / "cache"
    holder = started(Child(HOLDER, str(folder), str(place)))
    assert holder.line() == {"is_open": True}
    (source,) = facts("ls", place)["sources"]
    assert (source["partitions_in_use"], source["entries"]) == (1, None)
    assert source["declared_bytes"] == 64_000_000
    # The kernel does not report the holder's process on every file system.
    assert source["processes"] in ([holder.pid], [])
    verified = facts("verify", place)
    assert (verified["not_verified"], verified["entries"]) == (1, 0)
    refused = cache_("rm", place, "--all")
    assert refused.returncode == 1
    assert "in use by" in refused.stderr
    if source["processes"]:
        assert f"process {holder.pid};" in refused.stderr
    assert segment(place).exists()
    assert facts("rm", place, "--older-than", "0s")["partitions"] == []


def test_links_and_foreign_files_stay(filled: pathlib.Path, tmp_path: pathlib.Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "00000000.seg").write_bytes(b"mine")
    (filled / "notes.txt").write_bytes(b"mine")
    (filled / "planted-0123456789abcdef").symlink_to(mine)
    (fault,) = facts("ls", filled)["faults"]
    assert "planted-0123456789abcdef is a link" in fault
    assert facts("verify", filled, code=1)["corrupt_entries"] == 0
    link = segment(filled).with_name("00000009.seg")
    link.symlink_to(mine / "00000000.seg")
    refused = cache_("rm", filled, "--all")
    assert refused.returncode == 1
    assert "00000009.seg is a link" in refused.stderr
    assert segment(filled).exists()
    link.unlink()
    facts("rm", filled, "--all")
    assert sorted(os.listdir(filled)) == ["lock", "notes.txt", "planted-0123456789abcdef"]
    assert (mine / "00000000.seg").read_bytes() == b"mine"


def test_only_partitions_of_the_given_age_are_deleted(filled: pathlib.Path) -> None:
    assert facts("rm", filled, "--older-than", "7d")["freed_bytes"] == 0
    lock = segment(filled).with_name("lock")
    os.utime(lock, (1_000_000_000, 1_000_000_000))
    assert facts("rm", filled, "--older-than", "7d")["freed_bytes"] > 0


def test_an_older_format_version_is_listed_and_deleted(tmp_path: pathlib.Path) -> None:
    old = tmp_path / "cache" / "0123456789abcdef0123456789abcdef" / "lane-0"
    old.mkdir(parents=True)
    (old / "00000000.seg").write_bytes(bytes(100_000))
    (source,) = facts("ls", tmp_path / "cache")["sources"]
    assert (source["version"], source["entries"]) == (1, None)
    assert facts("verify", tmp_path / "cache")["partitions"] == []
    assert facts("rm", tmp_path / "cache", "--all")["freed_bytes"] >= 100_000
    assert not old.parent.exists()


def test_an_empty_directory_has_no_cache_and_stays_empty(tmp_path: pathlib.Path) -> None:
    place = tmp_path / "empty"
    place.mkdir()
    for action in (["ls"], ["verify"], ["rm", "--all"]):
        ended = cache_(action[0], place, *action[1:])
        assert ended.returncode == 0, ended.stderr
    assert os.listdir(place) == []


@pytest.mark.parametrize("action", ["ls", "verify", "rm"])
def test_a_missing_directory_is_named_and_not_created(tmp_path: pathlib.Path, action: str) -> None:
    place = tmp_path / "absent"
    ended = cache_(action, place)
    assert ended.returncode == 2
    assert f"{place}: no such directory" in ended.stderr
    assert not place.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing is chosen"),
        (["gone-0123456789abcdef"], "gone-0123456789abcdef: no source"),
        (["gone-0123456789abcdef", "--all"], "give one of them"),
        (["--older-than", "soon"], "--older-than 'soon'"),
    ],
)
def test_a_wrong_argument_deletes_nothing(filled: pathlib.Path, arguments: list[str], message: str) -> None:
    ended = cache_("rm", filled, *arguments)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert segment(filled).exists()
