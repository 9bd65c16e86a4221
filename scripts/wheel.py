#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the released wheel, and try it in an empty environment.

zig links against glibc 2.28 on any host, and auditwheel checks the symbols. Then a new environment gets the wheel
with numpy alone: the package, its command line and its core must start there without torch. Exit status: 0 good, 3 a
step failed (its name, its command and a remedy are printed).
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
#: Oldest supported C library.
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
        flags = ["--profile", "dist", "--locked", "--zig", "--compatibility", "manylinux_2_28"]
        # maturin finds zig, a Python package, through the first interpreter on PATH.
        path = f"{BUILD_BIN}{os.pathsep}{os.environ.get('PATH', '')}"
        run([BUILD_BIN / "maturin", "build", *flags, "--out", DIST], env={"PATH": path})
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
    """Raise ``Failed`` for a wheel that needs a newer C library, or another library that is not part of manylinux."""
    command = [str(BUILD_BIN / "auditwheel"), "show", str(wheel)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    text = " ".join(shown.stdout.split())
    found = re.search(r'consistent with the following platform tag: "manylinux_(\d+)_(\d+)_', text)
    if shown.returncode != 0 or found is None:
        raise Failed(f"auditwheel finds no manylinux tag: {text or shown.stderr}")
    oldest = (int(found[1]), int(found[2]))
    if oldest > GLIBC:
        raise Failed(f"the wheel needs glibc {oldest[0]}.{oldest[1]}: {text}")


def start(wheel: Path, venv: Path) -> None:
    """Install the wheel into an empty environment, and start the package and its command there."""
    make_venv(venv)
    run(
        [BUILD_BIN / "uv", "pip", "install", "--quiet", "--python", venv / "bin" / "python", wheel],
        remedy=NO_INDEX,
    )
    run([venv / "bin" / "python", "-I", "-c", TRY])
    run([venv / "bin" / "foresee", "--version"])


if __name__ == "__main__":
    sys.exit(main())
