# SPDX-License-Identifier: Apache-2.0
"""The pages of the formats say what the code writes: every column and every word of the ledger, and nothing else."""

from __future__ import annotations

import re

from support.house import ROOT

PAGE = ROOT / "docs" / "formats" / "ledger.md"
SOURCE = ROOT / "crates" / "foresee-ledger" / "src"
UNITS = ROOT / "crates" / "foresee-units" / "src"


def quoted(text: str) -> set[str]:
    """Names in backticks."""
    return set(re.findall(r"`([a-z][a-z_]*)`", text))


def test_the_ledgers_page_has_every_column() -> None:
    columns = set(re.findall(r'\("(\w+)", (?:true|false), ', (SOURCE / "table.rs").read_text()))
    table = re.search(r"^\| column \|.*?^$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert table
    told = {name for line in table[0].splitlines()[2:] for name in quoted(line.split("|")[1])}
    assert told == columns


def test_the_ledgers_page_has_every_word_and_no_other() -> None:
    entry, read = (path.read_text() for path in (SOURCE / "entry.rs", UNITS / "read.rs"))
    text = PAGE.read_text()
    for code, start, column in (
        (entry, "Op", "op"),
        (read, "Source", "source"),
        (entry, "Cause", "cause"),
        (read, "pub const fn name(self) -> &'static str", "outcome"),
    ):
        block = re.search(rf"^    {re.escape(start)} \{{(.*?)^    \}}", code, flags=re.DOTALL | re.MULTILINE)
        assert block, column
        words = set(re.findall(r'=> "(\w+)"', block[1]))
        part = re.search(rf"^\*\*`{column}`\*\*:(.*?)(?=^\*\*`|\Z)", text, flags=re.DOTALL | re.MULTILINE)
        assert part, column
        assert quoted(part[1]) == words, f"docs/formats/ledger.md, {column}"
