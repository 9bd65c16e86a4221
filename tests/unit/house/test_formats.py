# SPDX-License-Identifier: Apache-2.0
"""The page of the ledger format lists exactly the columns and words that the code writes."""

from __future__ import annotations

import re

from support.house import ROOT

PAGE = ROOT / "docs" / "formats" / "ledger.md"
SOURCE = ROOT / "crates" / "foresee-ledger" / "src"
UNITS = ROOT / "crates" / "foresee-units" / "src"


def quoted(text: str) -> set[str]:
    """Return the names in backticks."""
    return set(re.findall(r"`([a-z][a-z_]*)`", text))


def test_the_page_of_the_ledger_has_every_column() -> None:
    columns = set(re.findall(r'\("(\w+)", (?:true|false), ', (SOURCE / "table.rs").read_text()))
    table = re.search(r"^\| column \|.*?^$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert table
    documented = {name for line in table[0].splitlines()[2:] for name in quoted(line.split("|")[1])}
    assert documented == columns


def test_the_page_of_the_ledger_has_exactly_the_words_of_the_code() -> None:
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
