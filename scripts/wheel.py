#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the wheel that is released, and try it where nothing else is installed.

zig links against glibc 2.28, whatever this machine has; auditwheel reads from the symbols whether that came true. Then
a fresh environment gets the wheel with numpy alone: the package, its command line and its core start there without
torch. Needs neither torch nor Go nor the environment of the tests.
Exit status: 0 good, 3 a step failed (its name, its command and a remedy are printed).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from steps import BUILD_BIN, NO_INDEX, ROOT, Failed, install_packages, make_venv, prepare_build_tools, run

DIST = ROOT / "dist"
#: Oldest C library that the wheel promises to run on.
GLIBC = (2, 28)

TRY = """
import sys, foresee
assert foresee.Loader and foresee.Index and foresee.Cache()
assert "torch" not in sys.modules
print("foresee", foresee.__version__, "without torch")
"""


def main() -> int:
    """Build, audit, install, start."""
    try:
        prepare_build_tools()
        install_packages(BUILD_BIN.parent, ROOT / "scripts" / "requirements-wheel.txt")
        shutil.rmtree(DIST, ignore_errors=True)
        flags = [
            "--profile",
            "dist",
            "--locked",
            "--zig",
            "--compatibility",
            "manylinux_2_28",
            "--out",
            str(DIST),
        ]
        # maturin finds zig, a Python package, through the first interpreter on PATH.
        path = f"{BUILD_BIN}{os.pathsep}{os.environ.get('PATH', '')}"
        run([BUILD_BIN / "maturin", "build", *flags], env={"PATH": path})
        (wheel,) = DIST.glob("*.whl")
        audit(wheel)
        with tempfile.TemporaryDirectory() as folder:
            start(wheel, Path(folder) / "venv")
    except Failed as failed:
        print(f"wheel: {failed}", file=sys.stderr)
        return 3
    print(f"wheel: {wheel.relative_to(ROOT)}, {wheel.stat().st_size / 1e6:.1f} MB", file=sys.stderr)
    return 0


def audit(wheel: Path) -> None:
    """Refuse a wheel that needs a newer C library than it says, or any library that Linux does not always have."""
    command = [str(BUILD_BIN / "auditwheel"), "show", str(wheel)]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    text = " ".join(asked.stdout.split())
    found = re.search(r'consistent with the following platform tag: "manylinux_(\d+)_(\d+)_', text)
    if asked.returncode != 0 or found is None:
        raise Failed(f"auditwheel finds no manylinux tag: {text or asked.stderr}")
    oldest = (int(found[1]), int(found[2]))
    if oldest > GLIBC:
        raise Failed(f"the wheel needs glibc {oldest[0]}.{oldest[1]}: {text}")


def start(wheel: Path, venv: Path) -> None:
    """Install the wheel into an empty environment and start what must start without torch."""
    make_venv(venv)
    install: list[str | Path] = [
        BUILD_BIN / "uv",
        "pip",
        "install",
        "--quiet",
        "--python",
        venv / "bin" / "python",
    ]
    run([*install, wheel], remedy=NO_INDEX)
    run([venv / "bin" / "python", "-I", "-c", TRY])
    run([venv / "bin" / "foresee", "--version"])


if __name__ == "__main__":
    sys.exit(main())
