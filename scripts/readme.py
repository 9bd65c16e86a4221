#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generate the tables of docs/benchmarks and the table of the README from the newest benchmark results.

Each benchmark makes its tables from raw lines, so no number is typed by hand. A table is between two markers of a page.
Exit status: 0 done, 3 a page lacks its markers or a table cannot be made.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from steps import ROOT, Failed

README = ROOT / "README.md"
PAGES = ROOT / "docs" / "benchmarks"


@dataclass(frozen=True)
class Table:
    """A generated table of a page."""

    name: str
    """Name of its markers."""
    page: Path

    def replaced(self, text: str, inner: str) -> str:
        """Return ``text`` with ``inner`` between the markers.

        Raises:
            Failed: a marker is missing or occurs twice.
        """
        begin, end = f"<!-- {self.name}:begin -->\n", f"<!-- {self.name}:end -->\n"
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            raise Failed(
                f"{self.page.name} needs one line {begin.strip()} and after it one line {end.strip()}"
            )
        head, _, rest = text.partition(begin)
        return head + begin + inner + end + rest.partition(end)[2]

    def updated(self) -> str:
        """Return the page with the table of the newest results.

        Raises:
            Failed: a marker is missing, or a benchmark cannot make its table.
        """
        return self.replaced(self.page.read_text(encoding="utf-8"), self.inner())

    def inner(self) -> str:
        """Return the text between the markers."""
        lines = newest(self.name)
        link = os.path.relpath(lines, self.page.parent)
        return f"Generated from [{lines.name}]({link}).\n\n{printed(self.name, 'table', lines).strip()}\n"


class Summary(Table):
    """The table of the README: one row per condition, of several benchmarks."""

    def inner(self) -> str:
        """Return the text between the markers."""
        rows = "".join(printed(name, "summary", newest(name)) for name in ("loading", "gradients"))
        return f"| condition | unit | Foresee | best peer with the same order | limit |\n|---|---|---|---|---|\n{rows}"


TABLES = (
    Table("loading", PAGES / "loading.md"),
    Table("gradients", PAGES / "gradients.md"),
    Table("stagger", PAGES / "stagger.md"),
    Table("node", PAGES / "node.md"),
    Table("bucket", PAGES / "bucket.md"),
    Summary("summary", README),
)


def newest(benchmark: str) -> Path:
    """Return the file of the last full run, by the month in its name.

    Raises:
        Failed: there is none.
    """
    results = ROOT / "benchmarks" / benchmark / "results"
    found = sorted(results.glob(f"{benchmark}_*.jsonl"), key=lambda path: path.stem.rpartition("_")[2])
    if not found:
        raise Failed(f"no results of {benchmark}: run benchmarks/{benchmark}/run.py")
    return found[-1]


def printed(benchmark: str, what: str, lines: Path) -> str:
    """Return the output of a benchmark for these raw lines.

    Raises:
        Failed: the benchmark cannot read them.
    """
    command = [sys.executable, str(ROOT / "benchmarks" / benchmark / "run.py"), f"--{what}", str(lines)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise Failed(f"no {what} of {lines.relative_to(ROOT)}: {made.stderr.strip()}")
    return made.stdout


def main() -> int:
    """Update each page with an outdated table."""
    for table in TABLES:
        try:
            text = table.updated()
        except Failed as failed:
            print(f"readme: {failed}", file=sys.stderr)
            return 3
        if text != table.page.read_text(encoding="utf-8"):
            table.page.write_text(text, encoding="utf-8")
            print(f"readme: {table.page.relative_to(ROOT)} updated", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
