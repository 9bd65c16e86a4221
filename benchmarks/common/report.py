# SPDX-License-Identifier: Apache-2.0
"""Result files of a benchmark, and its output: progress, acceptance lines, raw lines."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.verdicts import Line, markdown


def show(text: str) -> None:
    """Print progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def add_options(parser: ArgumentParser, quick: str, seed: str = "seed of data and order") -> None:
    """Add the options of every benchmark: ``--quick``, with what that measures, ``--json`` and ``--seed``."""
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true", help="print one object with all acceptance lines")
    parser.add_argument("--seed", type=int, default=20_000, help=f"{seed} (default %(default)s)")


def raw_lines(options: Namespace, folder: Path, theme: str, machine: Mapping[str, Any]) -> Path | None:
    """Return the file for raw lines: that of ``--save``, or of the full run; None for a quick run without one."""
    if options.save is not None or options.quick:
        save: Path | None = options.save
        return save
    return results_file(folder / "results", theme, machine)


def results_file(folder: Path, theme: str, machine: Mapping[str, Any]) -> Path:
    """Return the file for raw lines: one per kind of host and month."""
    hardware = f"{machine['cores']}core-{machine['memory_bytes'] >> 30}gib"
    return folder / f"{theme}_{hardware}_{time.strftime('%Y%m')}.jsonl"


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Read raw lines."""
    return map(json.loads, path.read_text(encoding="utf-8").splitlines())


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


def remove_part(path: Path, part: str) -> None:
    """Remove the lines of a part that is measured again."""
    remove_lines(path, lambda line: bool(line["part"] == part))


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
    options: Namespace,
    *,
    began: float,
    machine: Mapping[str, Any],
) -> None:
    """Print the acceptance lines and the ``details``, or with ``--json`` one object with the lines.

    ``began`` is the start of the benchmark on the monotonic clock, and ``options`` are those of the command line.
    """
    if not options.json:
        print(markdown(lines), details, sep="\n", end="")
        return
    document = {
        "theme": theme,
        "lines": [asdict(line) for line in lines],
        "measured": sum(line.value is not None for line in lines),
        "seconds": round(time.monotonic() - began, 1),
        "seed": options.seed,
        "machine": machine,
    }
    print(json.dumps(document))
