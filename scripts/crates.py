#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run a build with a cache of compiled third-party crates, which all checkouts of this host share.

``crates.py TARGET COMMAND...``: an empty target folder gets copies from the user's cache, and after the build the cache
gets copies of the newly compiled crates. Cargo checks the copies as its own results, and rebuilds those that it does
not accept. A shared target folder would need no copies, but a checkout could use the program or the extension module of
another one, and would wait for its lock. Exit status: the command's.

Each compiler, ``Cargo.lock``, ``Cargo.toml`` and target folder has its own cache. The results of a crate whose build
script writes a source file (such as serde) contain the path of its checkout, and dependent crates accept no other copy.
So a cache accepts nothing from a checkout whose results differ from its own.
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

#: Number of caches, of which the least recently used are removed; each has up to 1 GB.
CACHES_MAX = 6
#: Prefix of this workspace's crates, which are not cached.
OWN = "foresee-"
#: Crates to which maturin gives a path in the checkout, and those that use them: each checkout compiles them.
NOT_SHARED = {"pyo3-ffi", "pyo3", "numpy"}
#: Suffix of a file or folder that is being copied.
_NEW = ".new"


def cache_folder() -> Path:
    """Return the parent folder of the caches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foresee" / "crates"


def key(compiler: str, target: str, root: Path = ROOT) -> str:
    """Return the name of a cache, from the compiler's version, the target folder, and the manifest and lock file."""
    manifest = hashlib.sha256()
    for name in ("Cargo.toml", "Cargo.lock"):
        manifest.update((root / name).read_bytes())
    return f"{hashlib.sha256(compiler.encode()).hexdigest()[:8]}-{target}-{manifest.hexdigest()[:8]}"


def prepare(target: Path = ROOT / "target") -> None:
    """Fill an empty target folder before a build."""
    with _report_errors():
        if count := restore(target, key(_compiler(), target.name), cache_folder()):
            print(f"crates: {count} restored from {cache_folder()}", file=sys.stderr)


def save(target: Path = ROOT / "target") -> None:
    """Add newly compiled crates to the cache after a successful build."""
    with _report_errors():
        if count := store(target, key(_compiler(), target.name), cache_folder()):
            print(f"crates: {count} stored in {cache_folder()}", file=sys.stderr)


@contextmanager
def _report_errors() -> Iterator[None]:
    """Report an error of the cache, which the build does not need."""
    try:
        yield
    except OSError as error:
        print(f"crates: all will be compiled, as the cache fails: {error}", file=sys.stderr)


def _compiler() -> str:
    return subprocess.run(["rustc", "-vV"], cwd=ROOT, capture_output=True, text=True, check=False).stdout


def restore(target: Path, name: str, caches: Path) -> int:
    """Fill an empty target folder from a cache, and return the number of crates.

    Without a cache of this name, take the most recently used one of the same compiler and target folder.
    """
    if (target / "debug" / ".fingerprint").exists():
        return 0
    candidates = [caches / name, *_by_age(caches, name.rpartition("-")[0] + "-")]
    cache = next((each for each in candidates if each.is_dir()), None)
    if cache is None:
        return 0
    # A concurrent ``store`` writes the fingerprint of a crate last, and Cargo rebuilds crates without one.
    units = _units(cache)
    for each in units:
        _copy_unit(cache, each, target / "debug")
    os.utime(cache)
    return len(units)


def store(target: Path, name: str, caches: Path) -> int:
    """Add missing crates to the cache of this name, return their number, and remove old caches."""
    built, cache = target / "debug", caches / name
    caches.mkdir(parents=True, exist_ok=True)
    with _locked(caches / "lock"):
        cached = _units(cache)
        compiled = _units(built)
        if any(_differ(built, cache, each) for each in cached & compiled):
            return 0
        for each in compiled - cached:
            _copy_unit(built, each, cache)
        if cache.is_dir():
            os.utime(cache)
        for old in _by_age(caches, "")[CACHES_MAX:]:
            shutil.rmtree(old, ignore_errors=True)
    return len(compiled - cached)


def _by_age(caches: Path, start: str) -> list[Path]:
    """Return the caches whose name has this prefix, the most recently used first."""
    found = [each for each in caches.glob(f"{start}*") if each.is_dir()] if caches.is_dir() else []
    return sorted(found, key=lambda each: each.stat().st_mtime, reverse=True)


def _units(folder: Path) -> set[str]:
    """Return the third-party crates with results in a folder, by name and hash."""
    prints = folder / ".fingerprint"
    names = os.listdir(prints) if prints.is_dir() else []
    return {
        name
        for name in names
        if not name.startswith(OWN) and name.rpartition("-")[0] not in NOT_SHARED and not name.endswith(_NEW)
    }


def _files(folder: Path, unit: str) -> list[Path]:
    """Return the compiled files of a crate, which have its hash in their names."""
    return sorted((folder / "deps").glob(f"*-{unit.rpartition('-')[2]}*"))


def _differ(one: Path, other: Path, unit: str) -> bool:
    """Whether two folders have results of different builds; a copy has the same modification time."""

    def written(folder: Path) -> list[tuple[str, int]]:
        return [(path.name, path.stat().st_mtime_ns) for path in _files(folder, unit)]

    return written(one) != written(other)


def _copy_unit(source: Path, unit: str, destination: Path) -> None:
    """Copy a crate's results with their modification times, which Cargo compares; its fingerprint last."""
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
    """Restore, run the command, store."""
    target, command = ROOT / arguments[0], arguments[1:]
    prepare(target)
    status = subprocess.run(command, cwd=ROOT, env=build_environment(), check=False).returncode
    if status == 0:
        save(target)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
