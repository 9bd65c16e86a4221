#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check for the tools that a build needs, and print each missing one with its remedy.

Runs on any Python since 3.7 with the standard library alone, so that an old one gets a message, not a traceback.
Exit status: 0 all tools exist, 3 one is missing.
"""

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

PYTHON_OLDEST = (3, 10)
RUST_OLDEST = (1, 88)
#: For torch with its CUDA packages, build folder and peers of the benchmarks.
DISK_FREE_GB = 14

ROOT = Path(__file__).resolve().parent.parent

EXPECTED = """\
Expected on two cores, the first time (later runs skip what has not changed):
  make setup         5 to 10 minutes: 5 GB of Python packages, 300 crates, S3 server (Go)
  make demo          2 to 4 minutes after setup
  make test          13 to 25 minutes; 7 when everything is built
  make bench-setup   2 to 10 minutes: the peers
"""


def version_of(command, pattern):
    """Return the version that a command prints, as numbers; None if it is missing or prints something else."""
    if shutil.which(command[0]) is None:
        return None
    try:
        ended = subprocess.run(
            command, cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(pattern, ended.stdout.decode(errors="replace"))
    return tuple(int(part) for part in found.groups()) if found else None


def dotted(version):
    """Return 3.10 for (3, 10)."""
    return ".".join(str(part) for part in version)


def check_python():
    """Check Python, with venv and pip."""
    have = sys.version_info[:2]
    if have < PYTHON_OLDEST:
        needed = f"Python {dotted(have)} is too old, {dotted(PYTHON_OLDEST)} or later is needed"
        return f"{needed}: install one and run `make PYTHON=python3.11 ...`"
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return "Python has no venv: `apt-get install python3-venv` (Debian, Ubuntu)"
    return None


def check_rust():
    """Check Cargo and rustc; rustup downloads the pinned ones."""
    for tool in ("cargo", "rustc"):
        have = version_of([tool, "--version"], r"(\d+)\.(\d+)\.\d+")
        if have is None:
            return (
                f"{tool} is missing: install Rust from https://rustup.rs, which downloads the pinned version"
            )
        if have < RUST_OLDEST:
            return (
                f"{tool} {dotted(have)} is too old, {dotted(RUST_OLDEST)} or later is needed: `rustup update`"
            )
    return None


def check_linker():
    """Check for a C compiler driver, which rustc links with."""
    if any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        return None
    return "no C linker: `apt-get install gcc` (Debian, Ubuntu) or `dnf install gcc` (Fedora, RHEL)"


def check_git():
    """Check for git, whose list of files the house tests use."""
    return None if shutil.which("git") else "git is missing: `apt-get install git` or `dnf install git`"


def check_platform():
    """Check for Linux on a 64-bit host."""
    system, machine = platform.system(), platform.machine()
    if system == "Linux" and machine in ("x86_64", "aarch64"):
        return None
    return f"{system} on {machine} is not supported: Linux on x86_64 or aarch64 is"


def check_disk():
    """Check the disk space for packages and builds, unless they exist."""
    if (ROOT / ".tools" / "stamps" / "extension").exists():
        return None
    free = shutil.disk_usage(str(ROOT)).free / 1e9
    if free >= DISK_FREE_GB:
        return None
    return (
        f"{free:.0f} GB are free here, {DISK_FREE_GB} GB are needed: free some, or check out on another disk"
    )


CHECKS = (
    ("platform", check_platform),
    ("Python >= " + dotted(PYTHON_OLDEST), check_python),
    ("Rust >= " + dotted(RUST_OLDEST), check_rust),
    ("C linker", check_linker),
    ("git", check_git),
    ("disk space", check_disk),
)


def main():
    """Print one line per check, then the expected durations."""
    missing = 0
    for name, check in CHECKS:
        problem = check()
        missing += problem is not None
        print("{:<8} {}{}".format("missing" if problem else "ok", name, ": " + problem if problem else ""))
    if missing:
        return 3
    print(EXPECTED, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
