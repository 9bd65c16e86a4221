# SPDX-License-Identifier: Apache-2.0
"""The tables of the README are those of the raw lines beside the benchmarks, whose own programs make them."""

from __future__ import annotations

import sys

import pytest
from support.house import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import readme


@pytest.mark.parametrize("theme", readme.THEMES, ids=lambda theme: theme.name)
def test_a_table_is_made_from_the_newest_results(theme: readme.Theme) -> None:
    text = readme.README.read_text()
    lines = theme.newest()
    inner = text.partition(theme.begin)[2].partition(theme.end)[0]
    if lines is None:
        assert "|" not in inner, "a table without raw lines: run the benchmark"
    else:
        assert inner == theme.block(lines), "the table is not that of the results: run scripts/readme.py"
