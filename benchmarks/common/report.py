# SPDX-License-Identifier: Apache-2.0
"""Where a benchmark's results go and what it prints: progress, one object, raw lines by part."""

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
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def results_file(folder: Path, theme: str, machine: Mapping[str, Any]) -> Path:
    """Where raw lines go: one file per kind of machine and month."""
    hardware = f"{machine['cores']}core-{machine['memory_bytes'] >> 30}gib"
    return folder / f"{theme}_{hardware}_{time.strftime('%Y%m')}.jsonl"


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Write down one run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line) + "\n")


def forget(path: Path, is_old: Callable[[Mapping[str, Any]], bool]) -> None:
    """Drop the lines of what is measured anew."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not is_old(json.loads(line))), encoding="utf-8")


def draw(folder: Path) -> None:
    """Draw a benchmark's figures anew, into docs/figures, from its raw lines; says what is missing where that cannot be."""
    python = folder.parents[1] / ".bench-venv" / "bin" / "python"
    if not python.exists():
        show(
            f"figures stay as they were: {python} is missing; run `make bench-setup`, then {folder / 'figures.py'}"
        )
    elif subprocess.run([python, folder / "figures.py"], stdout=sys.stderr, check=False).returncode:
        show(f"figures stay as they were: {folder / 'figures.py'} failed")


def tell(
    theme: str,
    lines: Sequence[Line],
    details: str,
    *,
    as_json: bool,
    began: float,
    seed: int,
    machine: Mapping[str, Any],
) -> None:
    """Print the acceptance lines, and below them the ``details``; with ``as_json`` one object with the lines instead.

    ``began``: by the monotonic clock.
    """
    if not as_json:
        print(markdown(lines), details, sep="\n", end="")
        return
    told = {
        "theme": theme,
        "lines": [asdict(line) for line in lines],
        "measured": sum(line.value is not None for line in lines),
        "seconds": round(time.monotonic() - began, 1),
        "seed": seed,
        "machine": machine,
    }
    print(json.dumps(told))
