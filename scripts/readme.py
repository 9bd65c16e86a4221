#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Put the table of the newest benchmark results between the README's two markers.

The table is made from raw lines, by the benchmark itself, so no figure in the README was typed. Exit status: 0 done
(or nothing to do: no results yet), 3 the README has lost its markers or the table cannot be made.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from steps import ROOT, Failed

README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "loading" / "results"
BEGIN, END = "<!-- results:begin -->\n", "<!-- results:end -->\n"


def main() -> int:
    """Write the README anew if its table is not that of the newest results."""
    lines = newest()
    if lines is None:
        print("readme: no results yet, the README stays as it is", file=sys.stderr)
        return 0
    try:
        before = README.read_text(encoding="utf-8")
        after = replaced(before, block(lines))
    except Failed as failed:
        print(f"readme: {failed}", file=sys.stderr)
        return 3
    if after != before:
        README.write_text(after, encoding="utf-8")
    print(f"readme: the table is that of {lines.relative_to(ROOT)}", file=sys.stderr)
    return 0


def newest() -> Path | None:
    """The raw lines of the last full run by the month in their name; None if there are none."""
    found = sorted(RESULTS.glob("loading_*.jsonl"), key=lambda path: path.stem.rpartition("_")[2])
    return found[-1] if found else None


def block(lines: Path) -> str:
    """What stands between the markers for these raw lines."""
    command = [sys.executable, str(ROOT / "benchmarks" / "loading" / "run.py"), "--table", str(lines)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise Failed(f"no table of {lines.relative_to(ROOT)}: {made.stderr.strip()}")
    return f"Generated from [{lines.name}]({lines.relative_to(ROOT)}).\n\n{made.stdout.strip()}\n"


def replaced(text: str, inner: str) -> str:
    """``text`` with ``inner`` between the markers.

    Raises:
        Failed: a marker is missing or there twice.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise Failed(f"README.md needs one line {BEGIN.strip()} and after it one line {END.strip()}")
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + inner + END + rest.partition(END)[2]


if __name__ == "__main__":
    sys.exit(main())
