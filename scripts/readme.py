#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Put the tables of the newest benchmark results between the README's markers, a pair for each benchmark.

A table is made from raw lines, by the benchmark itself, so no figure in the README was typed. Exit status: 0 done
(or nothing to do: no results yet), 3 the README has lost its markers or a table cannot be made.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from steps import ROOT, Failed

README = ROOT / "README.md"


@dataclass(frozen=True)
class Theme:
    """A benchmark, and its place in the README."""

    name: str

    @property
    def begin(self) -> str:
        """The line before its table."""
        return f"<!-- {self.name}:begin -->\n"

    @property
    def end(self) -> str:
        """The line after it."""
        return f"<!-- {self.name}:end -->\n"

    def newest(self) -> Path | None:
        """The raw lines of the last full run by the month in their name; None if there are none."""
        results = ROOT / "benchmarks" / self.name / "results"
        found = sorted(results.glob(f"{self.name}_*.jsonl"), key=lambda path: path.stem.rpartition("_")[2])
        return found[-1] if found else None

    def block(self, lines: Path) -> str:
        """What stands between the markers for these raw lines."""
        command = [sys.executable, str(ROOT / "benchmarks" / self.name / "run.py"), "--table", str(lines)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise Failed(f"no table of {lines.relative_to(ROOT)}: {made.stderr.strip()}")
        return f"Generated from [{lines.name}]({lines.relative_to(ROOT)}).\n\n{made.stdout.strip()}\n"

    def replaced(self, text: str, inner: str) -> str:
        """``text`` with ``inner`` between the markers.

        Raises:
            Failed: a marker is missing or there twice.
        """
        begin, end = self.begin, self.end
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            raise Failed(f"README.md needs one line {begin.strip()} and after it one line {end.strip()}")
        head, _, rest = text.partition(begin)
        return head + begin + inner + end + rest.partition(end)[2]


THEMES = (Theme("loading"), Theme("gradients"), Theme("stagger"))


def main() -> int:
    """Write the README anew where a table is not that of the newest results."""
    before = text = README.read_text(encoding="utf-8")
    for theme in THEMES:
        lines = theme.newest()
        if lines is None:
            print(f"readme: no results of {theme.name} yet, its place stays as it is", file=sys.stderr)
            continue
        try:
            text = theme.replaced(text, theme.block(lines))
        except Failed as failed:
            print(f"readme: {failed}", file=sys.stderr)
            return 3
        print(f"readme: the table of {theme.name} is that of {lines.relative_to(ROOT)}", file=sys.stderr)
    if text != before:
        README.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
