# SPDX-License-Identifier: Apache-2.0
"""Result files of a benchmark, and its output: progress, acceptance lines, raw lines."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.verdicts import Line, markdown


def show(text: str) -> None:
    """Print progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def results_file(folder: Path, theme: str, machine: Mapping[str, Any]) -> Path:
    """Return the file for raw lines: one per kind of host and month."""
    hardware = f"{machine['cores']}core-{machine['memory_bytes'] >> 30}gib"
    return folder / f"{theme}_{hardware}_{time.strftime('%Y%m')}.jsonl"


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Append the raw line of one run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line) + "\n")


def remove_lines(path: Path, is_old: Callable[[Mapping[str, Any]], bool]) -> None:
    """Remove the lines for which ``is_old`` is true, before they are measured again."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not is_old(json.loads(line))), encoding="utf-8")


def draw(folder: Path) -> None:
    """Draw a benchmark's figures in docs/figures from its raw lines; report why if that is impossible."""
    python = folder.parents[1] / ".bench-venv" / "bin" / "python"
    if not python.exists():
        show(
            f"figures were not drawn: {python} is missing; run `make bench-setup`, then {folder / 'figures.py'}"
        )
    elif subprocess.run([python, folder / "figures.py"], stdout=sys.stderr, check=False).returncode:
        show(f"figures were not drawn: {folder / 'figures.py'} failed")


def print_report(
    theme: str,
    lines: Sequence[Line],
    details: str,
    *,
    as_json: bool,
    began: float,
    seed: int,
    machine: Mapping[str, Any],
) -> None:
    """Print the acceptance lines and the ``details``, or with ``as_json`` one object with the lines.

    ``began`` is the start of the benchmark on the monotonic clock.
    """
    if not as_json:
        print(markdown(lines), details, sep="\n", end="")
        return
    document = {
        "theme": theme,
        "lines": [asdict(line) for line in lines],
        "measured": sum(line.value is not None for line in lines),
        "seconds": round(time.monotonic() - began, 1),
        "seed": seed,
        "machine": machine,
    }
    print(json.dumps(document))
