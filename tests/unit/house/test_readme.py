# SPDX-License-Identifier: Apache-2.0
"""The README is short, its table and examples are checked, and generated tables keep their markers."""

from __future__ import annotations

import ast
import inspect
import re
import sys

import pytest
from support.house import ROOT

import foresee
import foresee.torch as ft

sys.path.insert(0, str(ROOT / "scripts"))

import readme
from steps import Failed

BEGIN, END = "<!-- loading:begin -->\n", "<!-- loading:end -->\n"
TABLE = readme.Table("loading", readme.README)


def test_the_readme_has_at_most_150_lines() -> None:
    assert len(readme.README.read_text().splitlines()) <= 150


def test_inserting_a_table_twice_changes_nothing() -> None:
    text = f"before\n{BEGIN}old\n{END}after\n"
    once = TABLE.replaced(text, "new\n")
    assert once == f"before\n{BEGIN}new\n{END}after\n"
    assert TABLE.replaced(once, "new\n") == once


@pytest.mark.parametrize("text", ["", BEGIN, END + BEGIN, BEGIN * 2 + END])
def test_missing_markers_are_named(text: str) -> None:
    with pytest.raises(Failed, match="loading:begin"):
        TABLE.replaced(text, "new\n")


def test_arguments_in_the_examples_exist() -> None:
    known = {"ft": ft, "foresee": foresee}
    pages = [readme.README, *(ROOT / "docs" / "guides").glob("*.md")]
    text = "".join(page.read_text() for page in pages)
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    calls = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
    checked = 0
    for call in calls:
        function = call.func
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id in known
        ):
            target = getattr(known[function.value.id], function.attr)
            inspect.signature(target).bind(*call.args, **{one.arg: None for one in call.keywords if one.arg})
            checked += 1
    assert checked >= 15
