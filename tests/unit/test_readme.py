# SPDX-License-Identifier: Apache-2.0
"""The README's figures are those of the raw lines beside the benchmark, and its examples name what is there."""

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

THEME = readme.Theme("loading")
BEGIN, END = THEME.begin, THEME.end


def test_putting_a_table_in_twice_changes_nothing() -> None:
    text = f"before\n{BEGIN}old\n{END}after\n"
    once = THEME.replaced(text, "new\n")
    assert once == f"before\n{BEGIN}new\n{END}after\n"
    assert THEME.replaced(once, "new\n") == once


@pytest.mark.parametrize("text", ["", BEGIN, END + BEGIN, BEGIN * 2 + END])
def test_lost_markers_are_named(text: str) -> None:
    with pytest.raises(Failed, match="loading:begin"):
        THEME.replaced(text, "new\n")


def test_the_examples_name_arguments_that_exist() -> None:
    known = {"ft": ft, "foresee": foresee}
    blocks = re.findall(r"```python\n(.*?)```", readme.README.read_text(), flags=re.DOTALL)
    calls = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
    seen = 0
    for call in calls:
        function = call.func
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id in known
        ):
            target = getattr(known[function.value.id], function.attr)
            inspect.signature(target).bind(*call.args, **{one.arg: None for one in call.keywords if one.arg})
            seen += 1
    assert seen >= 5
