# SPDX-License-Identifier: Apache-2.0
"""Imports of the package, and its use without torch or numpy; each case needs a new interpreter."""

from __future__ import annotations

import subprocess
import sys

from support.house import ROOT

VGG = str(ROOT / "testdata" / "network" / "vgg16.json")


def test_the_command_line_imports_neither_torch_nor_numpy_for_help():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "from foresee.cli import main\n"
        "try: main(['index', '--help'])\n"
        "except SystemExit as end: sys.exit(end.code)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "URI" in run.stdout


def test_foresee_network_imports_no_torch() -> None:
    program = f"import sys; from foresee.cli import main; main(['network', {VGG!r}, '--json']); assert 'torch' not in sys.modules"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_command_imports_matplotlib_only_for_a_figure() -> None:
    program = (
        "import sys; from foresee.cli import main\n"
        f"main(['network', {VGG!r}, '--bandwidth', '1gbit/s']); assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)


def test_a_figure_without_matplotlib_exits_with_3_before_any_computation(tmp_path) -> None:
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from foresee.cli import main\n"
        f"sys.exit(main(['network', {VGG!r}, '--plot', {str(tmp_path / 'curves.svg')!r}]))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (3, "")
    assert "install matplotlib, or foresee[plot]" in run.stderr


def test_reading_a_job_imports_neither_numpy_nor_the_native_module() -> None:
    program = (
        "import sys, foresee.jobspec\nforesee.jobspec.scenario('thesis_1')\n"
        "assert not {'numpy', 'torch', 'foresee._native'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
