# SPDX-License-Identifier: Apache-2.0
"""Generated tables of the README and of docs/benchmarks equal those of the newest raw lines."""

from __future__ import annotations

import sys

import pytest
from support.house import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import readme


@pytest.mark.parametrize("table", readme.TABLES, ids=lambda table: table.name)
def test_a_table_is_made_from_the_newest_results(table: readme.Table) -> None:
    assert table.page.read_text() == table.updated(), (
        "the table is not that of the results: run scripts/readme.py"
    )
