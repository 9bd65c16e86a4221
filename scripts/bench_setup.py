#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Install the peers of the benchmarks into .bench-venv, and build Foresee with the release profile.

.bench-venv is separate from .venv because some peers pin other versions of numpy. It takes missing packages from .venv,
so torch is installed once. The extension module in .venv and the testbed are built with the release profile; `make
setup` restores the development build. Run `scripts/setup.py` first. Exit status: 0 ready, 3 a step failed (its name,
its command and a remedy are printed).
"""

from __future__ import annotations

import platform
import sys
import sysconfig
from pathlib import Path

from setup import install_extension, install_testbed
from steps import BIN, NO_INDEX, ROOT, RUST, Failed, install_tool, run, step

VENV = ROOT / ".bench-venv"
PYTHON = VENV / "bin" / "python"
REQUIREMENTS = ROOT / "benchmarks" / "requirements.txt"


def main() -> int:
    """Run the steps in order."""
    this_python = platform.python_version()
    if not (ROOT / ".venv" / "bin" / "python").exists():
        print("bench-setup: .venv is missing; run `make setup` first", file=sys.stderr)
        return 3
    try:
        step("bench-venv", make_venv, settings=[this_python], outputs=[PYTHON])
        install_extension("dist")
        install_testbed("dist")
        step("sum-bench", build_sum_bench, inputs=RUST, outputs=[BIN / "foresee-sum-bench"])
        step("peers", install_peers, inputs=[REQUIREMENTS], settings=[this_python], outputs=[PYTHON])
    except Failed as failed:
        print(f"bench-setup: {failed}", file=sys.stderr)
        return 3
    print("bench-setup: ready", file=sys.stderr)
    return 0


def make_venv() -> None:
    """Create .bench-venv, with .venv's packages after its own on the path."""
    run([sys.executable, "-m", "venv", "--clear", VENV])
    packages, shared = (
        sysconfig.get_path("purelib", "venv", vars={"base": str(venv), "platbase": str(venv)})
        for venv in (VENV, ROOT / ".venv")
    )
    # `addsitedir` also follows .venv's own .pth files, so a package installed in place is found too.
    Path(packages, "venv.pth").write_text(f"import site; site.addsitedir({shared!r})\n", encoding="utf-8")


def build_sum_bench() -> None:
    """Build the benchmark of the servers' sum, and install it among the tools."""
    package = ["-p", "foresee-grad-queue", "--example", "sum_rate"]
    run(["cargo", "build", "--profile", "dist", "--locked", *package])
    install_tool(ROOT / "target" / "dist" / "examples" / "sum_rate", "foresee-sum-bench")


def install_peers() -> None:
    """Install the pinned packages."""
    pip: list[str | Path] = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    run(
        [*pip, "-r", REQUIREMENTS],
        remedy=NO_INDEX,
    )


if __name__ == "__main__":
    sys.exit(main())
