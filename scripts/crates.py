#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run a build with what other checkouts of this machine have compiled of other people's crates.

``crates.py TARGET COMMAND...``: a target folder that has nothing yet begins with copies from the user's cache, and
afterwards the cache gets copies of what was compiled anew. Whether a copy can be used is Cargo's decision, as for its own
results: it builds what it does not trust. A folder that checkouts share would save the copies, but one could pick up the
program or the extension module of another, and would wait for its lock.
Exit status: the command's.

Each compiler, ``Cargo.lock``, ``Cargo.toml`` and target folder has a cache of its own. A crate whose build script writes a
source file (serde, for one) carries the path of its checkout in its results, and crates that were compiled with it accept
no other copy. So a cache takes nothing from a checkout whose results differ from its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steps import ROOT, build_environment

#: Caches that are kept, the last used ones; each has up to 1 GB.
KEPT = 6
#: Start of the names of this workspace's crates, whose results stay in the checkout.
OWN = "foresee-"
#: Crates that maturin gives a path in the checkout, and those that use them: each checkout compiles them anew.
BOUND = {"pyo3-ffi", "pyo3", "numpy"}
#: Ends the name of what is being copied.
_NEW = ".new"


def cache_folder() -> Path:
    """Where caches lie, one folder each."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foresee" / "crates"


def key(compiler: str, target: str, root: Path = ROOT) -> str:
    """Name of the cache for a compiler, which says this of itself, a target folder, and what this checkout asks for, which comes last."""
    asked = hashlib.sha256()
    for name in ("Cargo.toml", "Cargo.lock"):
        asked.update((root / name).read_bytes())
    return f"{hashlib.sha256(compiler.encode()).hexdigest()[:8]}-{target}-{asked.hexdigest()[:8]}"


def prepare(target: Path = ROOT / "target") -> None:
    """Before a build in a target folder: fill it, if it has nothing."""
    with _told():
        if count := borrow(target, key(_compiler(), target.name), cache_folder()):
            print(f"crates: {count} taken from {cache_folder()}", file=sys.stderr)


def save(target: Path = ROOT / "target") -> None:
    """After a build that succeeded: leave what was compiled for other checkouts."""
    with _told():
        if count := keep(target, key(_compiler(), target.name), cache_folder()):
            print(f"crates: {count} left in {cache_folder()}", file=sys.stderr)


@contextmanager
def _told() -> Iterator[None]:
    """Whatever a cache cannot do, a build can go on without."""
    try:
        yield
    except OSError as error:
        print(f"crates: all will be compiled, as the cache fails: {error}", file=sys.stderr)


def _compiler() -> str:
    return subprocess.run(["rustc", "-vV"], cwd=ROOT, capture_output=True, text=True, check=False).stdout


def borrow(target: Path, name: str, caches: Path) -> int:
    """Fill a target folder that has nothing from the cache of this name, else from the last used one that differs in what is asked for; how many crates."""
    if (target / "debug" / ".fingerprint").exists():
        return 0
    candidates = [caches / name, *_by_age(caches, name.rpartition("-")[0] + "-")]
    cache = next((each for each in candidates if each.is_dir()), None)
    if cache is None:
        return 0
    # A cache that grows meanwhile gets the fingerprint of a crate last, and Cargo builds what has none.
    units = _units(cache)
    for each in units:
        _copy_unit(cache, each, target / "debug")
    os.utime(cache)
    return len(units)


def keep(target: Path, name: str, caches: Path) -> int:
    """Add to the cache of this name what it lacks; how many crates. Old caches go."""
    built, cache = target / "debug", caches / name
    caches.mkdir(parents=True, exist_ok=True)
    with _locked(caches / "lock"):
        kept = _units(cache)
        here = _units(built)
        if any(_differ(built, cache, each) for each in kept & here):
            return 0
        for each in here - kept:
            _copy_unit(built, each, cache)
        if cache.is_dir():
            os.utime(cache)
        for old in _by_age(caches, "")[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
    return len(here - kept)


def _by_age(caches: Path, start: str) -> list[Path]:
    """Caches whose name starts so, the last used first."""
    found = [each for each in caches.glob(f"{start}*") if each.is_dir()] if caches.is_dir() else []
    return sorted(found, key=lambda each: each.stat().st_mtime, reverse=True)


def _units(folder: Path) -> set[str]:
    """Crates of others that have results in a folder, by name and hash."""
    prints = folder / ".fingerprint"
    names = os.listdir(prints) if prints.is_dir() else []
    return {
        name
        for name in names
        if not name.startswith(OWN) and name.rpartition("-")[0] not in BOUND and not name.endswith(_NEW)
    }


def _files(folder: Path, unit: str) -> list[Path]:
    """What the compiler made of a crate; the hash at the end is in the names of all."""
    return sorted((folder / "deps").glob(f"*-{unit.rpartition('-')[2]}*"))


def _differ(one: Path, other: Path, unit: str) -> bool:
    """Whether two folders have the results of two builds: a copy keeps the time of writing."""

    def written(folder: Path) -> list[tuple[str, int]]:
        return [(path.name, path.stat().st_mtime_ns) for path in _files(folder, unit)]

    return written(one) != written(other)


def _copy_unit(source: Path, unit: str, destination: Path) -> None:
    """Copy a crate's results, its fingerprint last; the times of writing go along, as Cargo compares them."""
    (destination / "deps").mkdir(parents=True, exist_ok=True)
    for path in _files(source, unit):
        new = destination / "deps" / (path.name + _NEW)
        shutil.copy2(path, new)
        new.replace(destination / "deps" / path.name)
    for part in ("build", ".fingerprint"):
        if (source / part / unit).is_dir():
            new = destination / part / (unit + _NEW)
            shutil.rmtree(new, ignore_errors=True)
            shutil.copytree(source / part / unit, new)
            shutil.rmtree(destination / part / unit, ignore_errors=True)
            new.replace(destination / part / unit)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> int:
    """Borrow, run, keep."""
    target, command = ROOT / arguments[0], arguments[1:]
    prepare(target)
    status = subprocess.run(command, cwd=ROOT, env=build_environment(), check=False).returncode
    if status == 0:
        save(target)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
