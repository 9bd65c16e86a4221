# SPDX-License-Identifier: Apache-2.0
"""Steps that are skipped when nothing they depend on has changed.

A step's stamp is a hash over its name, its settings and the files it reads. It is written after the
step has succeeded, so a step that broke off runs again. Only the standard library: this runs before anything
is installed.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools"
BIN = TOOLS / "bin"
#: What a build of the crates depends on.
RUST = [ROOT / name for name in ("Cargo.toml", "Cargo.lock", "rust-toolchain.toml", "crates")]

#: Folders that a build writes, never an input.
_NOT_SOURCE = {"target", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}


class Failed(Exception):
    """A step that did not succeed; the message says what to do."""


def run(command: Iterable[str | Path], *, env: Mapping[str, str] | None = None, remedy: str = "") -> None:
    """Run a command in the checkout's root and show what it prints.

    Raises:
        Failed: it ended with another status than 0; ``remedy`` ends the message.
    """
    words = [str(word) for word in command]
    print(f"  $ {shlex.join(words)}", file=sys.stderr, flush=True)
    ended = subprocess.run(words, cwd=ROOT, env={**os.environ, **(env or {})}, check=False)
    if ended.returncode != 0:
        message = f"`{shlex.join(words)}` ended with status {ended.returncode}"
        raise Failed(f"{message}; {remedy}" if remedy else message)


def install_tool(built: Path, name: str) -> None:
    """Put a program among the tools. One that runs keeps its file; the new one takes the name."""
    BIN.mkdir(parents=True, exist_ok=True)
    fresh = BIN / f"{name}.new"
    shutil.copy2(built, fresh)
    fresh.replace(BIN / name)


def step(
    name: str,
    action: Callable[[], None],
    *,
    inputs: Iterable[Path] = (),
    settings: Iterable[str] = (),
    outputs: Iterable[Path] = (),
    stamps: Path = TOOLS / "stamps",
) -> None:
    """Run ``action`` unless it already succeeded with the same inputs and settings and its outputs exist."""
    stamp = stamps / name
    wanted = _digest(inputs, [name, *settings])
    if all(path.exists() for path in outputs) and stamp.is_file() and stamp.read_text() == wanted:
        print(f"{name}: up to date", file=sys.stderr, flush=True)
        return
    print(f"{name}: ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    stamp.unlink(missing_ok=True)
    action()
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(wanted)
    print(f"{name}: done in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _digest(inputs: Iterable[Path], settings: Iterable[str]) -> str:
    """A hash over settings, names and contents; folders count with all files below them."""
    digest = hashlib.blake2b(digest_size=16)
    for setting in settings:
        digest.update(setting.encode() + b"\0")
    for path in sorted({file for given in inputs for file in _files(given)}):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0")
        digest.update(hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()


def _files(path: Path) -> Iterable[Path]:
    if path.is_file():
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if name not in _NOT_SOURCE]
        for name in files:
            if not name.endswith((".so", ".pyc")):
                yield Path(folder) / name
