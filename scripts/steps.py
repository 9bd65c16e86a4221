# SPDX-License-Identifier: Apache-2.0
"""Steps that are skipped if their inputs have not changed.

A step's stamp is a hash over its name, its settings and its input files. It is written after the step has succeeded, so
an interrupted step runs again. Only the standard library, because this runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import platform
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
#: Programs that build and test: uv, maturin, cargo-nextest. `prepare_build_tools` installs them.
BUILD_TOOLS = TOOLS / "build-tools"
BUILD_BIN = BUILD_TOOLS / "bin"
#: Remedies of steps in several scripts.
NO_INDEX = "is a Python package index reachable? Behind a mirror set PIP_INDEX_URL"
NO_VENV = "`apt-get install python3-venv` on Debian"
#: Inputs of a build of the crates.
RUST = [ROOT / name for name in ("Cargo.toml", "Cargo.lock", "rust-toolchain.toml", "crates")]

#: Folders that a build writes, never an input.
_NOT_SOURCE = {"target", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}


class Failed(Exception):
    """A failed step; the message has the remedy."""


def run(command: Iterable[str | Path], *, env: Mapping[str, str] | None = None, remedy: str = "") -> None:
    """Run a command in the checkout's root.

    Raises:
        Failed: its status is not 0; ``remedy`` ends the message.
    """
    words = [str(word) for word in command]
    print(f"  $ {shlex.join(words)}", file=sys.stderr, flush=True)
    ended = subprocess.run(words, cwd=ROOT, env={**build_environment(), **(env or {})}, check=False)
    if ended.returncode != 0:
        message = f"`{shlex.join(words)}` ended with status {ended.returncode}"
        raise Failed(f"{message}; {remedy}" if remedy else message)


def build_environment() -> dict[str, str]:
    """Return the environment of builds, with the build tools last on PATH, and the target folder of this checkout."""
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}{os.pathsep}{BUILD_BIN}"}
    # The steps take programs from there.
    environment["CARGO_TARGET_DIR"] = str(ROOT / "target")
    # uv does not read PIP_ variables.
    if "PIP_INDEX_URL" in os.environ:
        environment.setdefault("UV_DEFAULT_INDEX", os.environ["PIP_INDEX_URL"])
    return environment


def prepare_build_tools() -> None:
    """Install uv, maturin and cargo-nextest into an environment of their own."""
    pinned = ROOT / "scripts" / "requirements-build.txt"

    def make() -> None:
        run([sys.executable, "-m", "venv", "--clear", BUILD_TOOLS], remedy=NO_VENV)
        pip: list[str | Path] = [BUILD_BIN / "python", "-m", "pip", "--disable-pip-version-check"]
        run([*pip, "install", "--quiet", "-r", pinned], remedy=NO_INDEX)

    step(
        "build-tools",
        make,
        inputs=[pinned],
        settings=[platform.python_version()],
        outputs=[BUILD_BIN / name for name in ("uv", "maturin", "cargo-nextest")],
    )


def install_packages(venv: Path, *requirements: Path, compiles: bool = True) -> None:
    """Install pinned packages with uv; those of ``*-no-deps.txt`` without dependencies.

    Packages are linked from uv's cache, so each is downloaded and stored once for all environments of this host.
    With ``compiles`` they are compiled at once; otherwise each process that imports torch compiles it where bytecode
    cannot be written.
    """
    for pinned in requirements:
        alone = ["--no-deps"] if pinned.stem.endswith("-no-deps") else []
        pip: list[str | Path] = [BUILD_BIN / "uv", "pip", "install", "--quiet"]
        bytecode = ["--compile-bytecode"] if compiles else []
        run([*pip, *bytecode, "--python", venv / "bin" / "python", *alone, "-r", pinned], remedy=NO_INDEX)


def make_venv(venv: Path) -> None:
    """Create an environment with this Python, or replace that of another one."""
    python = venv / "bin" / "python"
    if python.exists():
        found = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
        if found.stdout.split() == ["Python", platform.python_version()]:
            return
    run([BUILD_BIN / "uv", "venv", "--quiet", "--seed", "--clear", "--python", sys.executable, venv])


def install_tool(built: Path, name: str) -> None:
    """Install a program among the tools, without changing the file of a running one."""
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
    """Return a hash over settings, names and contents of files, and of all files in folders."""
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
