# SPDX-License-Identifier: Apache-2.0
"""The cache of compiled third-party crates, with folders of the layout that Cargo uses."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest
from support.house import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import crates
from crates import CACHES_MAX, restore, store


def build(target: pathlib.Path, crate: str, hash_: str, *, written: int) -> None:
    """Create the outputs of a crate's build, with this time in seconds."""
    debug = target / "debug"
    library = f"lib{crate.replace('-', '_')}-{hash_}"
    paths = [
        debug / "deps" / f"{library}.rlib",
        debug / "deps" / f"{library}.rmeta",
        debug / "build" / f"{crate}-{hash_}" / "out" / "private.rs",
        debug / ".fingerprint" / f"{crate}-{hash_}" / "lib",
    ]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{crate} {written}")
        os.utime(path, (written, written))


def files(target: pathlib.Path) -> dict[str, tuple[str, float]]:
    """Return contents and times of all files below a folder."""
    found = [path for path in target.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(target)): (path.read_text(), path.stat().st_mtime)
        for path in found
        if path.name != "lock"
    }


@pytest.fixture
def caches(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "caches"


@pytest.fixture
def built(tmp_path: pathlib.Path) -> pathlib.Path:
    """A checkout that has compiled two third-party crates and one of its own."""
    target = tmp_path / "one" / "target"
    build(target, "serde", "11aa", written=100)
    build(target, "tokio", "22bb", written=200)
    build(target, "foresee-wire", "33cc", written=300)
    return target


def test_a_new_checkout_gets_the_third_party_crates_that_another_has_compiled(
    tmp_path, caches, built
) -> None:
    assert store(built, "c-target-1", caches) == 2
    other = tmp_path / "other" / "target"
    assert restore(other, "c-target-1", caches) == 2
    expected = {name: at for name, at in files(built).items() if "foresee" not in name}
    assert files(other) == expected
    # Cargo compares times: no file of a crate may be newer than those of the crates that use it.
    assert all(time in (100, 200) for _, time in files(other).values())


def test_a_checkout_with_a_build_is_not_changed(caches, built) -> None:
    assert store(built, "c-target-1", caches) == 2
    before = files(built)
    assert restore(built, "c-target-1", caches) == 0
    assert files(built) == before


def test_without_a_cache_everything_is_compiled(tmp_path, caches) -> None:
    assert restore(tmp_path / "target", "c-target-1", caches) == 0
    assert not (tmp_path / "target").exists()


def test_after_a_change_of_the_lock_file_the_last_cache_of_the_same_compiler_is_used(
    tmp_path, caches, built
) -> None:
    store(built, "c-target-1", caches)
    assert restore(tmp_path / "other", "d-target-2", caches) == 0, "of another compiler"
    assert restore(tmp_path / "other", "c-target-2", caches) == 2


def test_crates_that_are_compiled_later_are_added(tmp_path, caches, built) -> None:
    store(built, "c-target-1", caches)
    other = tmp_path / "other" / "target"
    restore(other, "c-target-1", caches)
    build(other, "rand", "44dd", written=400)
    assert store(other, "c-target-1", caches) == 1
    third = tmp_path / "third"
    assert restore(third, "c-target-1", caches) == 3
    assert store(third, "c-target-1", caches) == 0


def test_outputs_of_two_checkouts_are_never_mixed(tmp_path, caches, built) -> None:
    store(built, "c-target-1", caches)
    # It compiled the same crate before there was a cache, so that its other outputs do not fit another copy.
    other = tmp_path / "other" / "target"
    build(other, "serde", "11aa", written=150)
    build(other, "rand", "44dd", written=400)
    assert store(other, "c-target-1", caches) == 0
    assert restore(tmp_path / "third", "c-target-1", caches) == 2


def test_crates_that_each_checkout_compiles_itself_are_not_stored_and_block_no_other(
    tmp_path, caches, built
) -> None:
    build(built, "pyo3", "55ee", written=300)
    assert store(built, "c-target-1", caches) == 2
    other = tmp_path / "other" / "target"
    assert restore(other, "c-target-1", caches) == 2
    build(other, "pyo3", "55ee", written=350)
    build(other, "pyo3-macros", "66ff", written=360)
    assert store(other, "c-target-1", caches) == 1


def test_a_crate_with_an_interrupted_copy_does_not_exist_in_the_cache(tmp_path, caches, built) -> None:
    store(built, "c-target-1", caches)
    prints = caches / "c-target-1" / ".fingerprint"
    (prints / "serde-11aa").rename(prints / "serde-11aa.new")
    assert restore(tmp_path / "other", "c-target-1", caches) == 1
    assert store(built, "c-target-1", caches) == 1
    assert restore(tmp_path / "third", "c-target-1", caches) == 2


def test_the_oldest_caches_are_removed(caches, built) -> None:
    for number in range(CACHES_MAX + 2):
        store(built, f"c-target-{number}", caches)
        os.utime(caches / f"c-target-{number}", (number, number))
    store(built, f"c-target-{CACHES_MAX + 1}", caches)
    assert sorted(each.name for each in caches.iterdir() if each.is_dir()) == [
        f"c-target-{number}" for number in range(2, CACHES_MAX + 2)
    ]


def test_each_compiler_lock_file_profile_and_target_folder_has_its_own_cache(tmp_path) -> None:
    def key(compiler: str, lock: str, settings: str, target: str = "target") -> str:
        (tmp_path / "Cargo.lock").write_text(lock)
        (tmp_path / "Cargo.toml").write_text(settings)
        return crates.key(compiler, target, tmp_path)

    one = key("rustc 1.95.0", "serde 1", "opt-level = 3")
    assert one == key("rustc 1.95.0", "serde 1", "opt-level = 3")
    others = [
        key("rustc 1.88.0", "serde 1", "opt-level = 3"),
        key("rustc 1.95.0", "serde 2", "opt-level = 3"),
        key("rustc 1.95.0", "serde 1", "opt-level = 2"),
        key("rustc 1.95.0", "serde 1", "opt-level = 3", "check"),
    ]
    assert len({one, *others}) == 5
    alike = [other.rpartition("-")[0] == one.rpartition("-")[0] for other in others]
    assert alike == [False, True, True, False]


def test_a_failing_cache_ends_no_build(tmp_path, monkeypatch, capsys, built) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(crates, "cache_folder", lambda: tmp_path / "file" / "crates")
    monkeypatch.setattr(crates, "_compiler", lambda: "rustc 1.95.0")
    crates.prepare(tmp_path / "target")
    crates.save(built)
    assert "all will be compiled, as the cache fails" in capsys.readouterr().err
