# SPDX-License-Identifier: Apache-2.0
"""Each crate of the wheel has a licence that `deny.toml` allows.

`cargo deny` checks more, but takes minutes to install; this takes a second and runs with every change.
"""

from __future__ import annotations

import re

import pytest
from support.house import ROOT
from test_crate_layers import metadata


def allowed() -> set[str]:
    """Return the allowed licences of `deny.toml`."""
    block = re.search(
        r"^allow = \[(.*?)^\]", (ROOT / "deny.toml").read_text(), flags=re.DOTALL | re.MULTILINE
    )
    assert block, "deny.toml has no list of licences"
    return set(re.findall(r'"([^"]+)"', block[1]))


def permitted(expression: str, licences: set[str]) -> bool:
    """Whether an SPDX expression can be satisfied by ``licences``.

    Supports ``AND``, ``OR``, parentheses and, as older crates write for ``OR``, ``/``.
    """
    words = re.findall(r"\(|\)|[\w.+-]+(?: WITH [\w.+-]+)?", expression.replace("/", " OR "))
    terms = [
        {"AND": "and", "OR": "or"}.get(word, word if word in "()" else str(word in licences))
        for word in words
    ]
    return bool(eval(" ".join(terms)))  # noqa: S307 - of True, False, and, or, parentheses


def test_every_crate_has_an_allowed_licence() -> None:
    licences = allowed()
    faults = [
        f"{package['name']} {package['version']}: {package['license'] or 'no licence'}"
        for package in metadata()["packages"]
        if not permitted(package["license"] or "none", licences)
    ]
    assert not faults, "\n".join(["licences that deny.toml does not allow:", *faults])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT", True),
        ("GPL-3.0", False),
        ("MIT OR GPL-3.0", True),
        ("MIT AND GPL-3.0", False),
        ("(MIT OR GPL-3.0) AND Unicode-3.0", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("MIT/Apache-2.0", True),
        ("none", False),
    ],
)
def test_expressions_follow_spdx(expression: str, expected: bool) -> None:
    assert permitted(expression, allowed()) is expected


def test_banned_licences_do_not_occur() -> None:
    names = {package["name"] for package in metadata()["packages"]}
    banned = set(re.findall(r'crate = "([^"]+)"', (ROOT / "deny.toml").read_text()))
    assert banned
    assert not names & banned
