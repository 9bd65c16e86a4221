# SPDX-License-Identifier: Apache-2.0
"""Links in the documents have targets: relative links, their anchors, and paths of documents named in code.

Links to other sites are not checked, since a test must not depend on them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.house import ROOT, files, shown

#: Absolute links to this repository, which the README needs as the package's description, are checked in this tree.
OWN = re.compile(
    r"https://(?:github|raw\.githubusercontent)\.com/foresee-train/foresee/(?:blob/|tree/)?main/"
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PAGE = re.compile(r"\b(?:docs|testdata|examples|benchmarks)/[\w./-]+\.md\b")
BLOCK = re.compile(r"```.*?```", flags=re.DOTALL)
QUOTE = re.compile(r"`[^`\n]*`")


def anchor(title: str) -> str:
    """Return the anchor that GitHub gives a title."""
    words = re.sub(r"[^\w\- ]", "", re.sub(r"`|\*", "", title).strip().lower())
    return words.replace(" ", "-")


def anchors(text: str) -> set[str]:
    """Return every anchor of a document."""
    return {anchor(title) for title in re.findall(r"^#+ +(.+)$", BLOCK.sub("", text), flags=re.MULTILINE)}


def broken(path: Path, text: str) -> list[str]:
    """Return the broken links of ``text``, a document at ``path``."""
    faults = []
    for link in LINK.findall(QUOTE.sub("", BLOCK.sub("", text))):
        own = OWN.match(link)
        target, _, fragment = (str(ROOT / link[own.end() :]) if own else link).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        target_path = (path.parent / target).resolve() if target else path
        if target and not target_path.exists():
            faults.append(f"{path.name}: {link} leads nowhere")
        elif fragment and target_path.suffix == ".md":
            titles = anchors(target_path.read_text() if target else text)
            faults += [] if fragment in titles else [f"{path.name}: {link}: no such title there"]
    return faults


def test_every_link_of_every_document_has_a_target() -> None:
    faults = [fault for path in files(".md") for fault in broken(path, path.read_text())]
    assert not faults, "\n".join(faults)


def test_every_document_named_in_code_exists() -> None:
    faults = [
        f"{shown(path)} names {page}, which does not exist"
        for path in files(".rs", ".py", ".pyi", ".toml", ".md")
        for page in sorted(set(PAGE.findall(path.read_text())))
        if path.name != "test_links.py" and not (ROOT / page).exists() and not (path.parent / page).exists()
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "text", ["[a](gone.md)", "![a](gone.svg)", "[a](#no-such-title)", "[a](page.md#gone)"]
)
def test_a_broken_link_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "page.md").write_text("# There\n")
    assert len(broken(tmp_path / "one.md", text)) == 1


def test_valid_links_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# It `is` here\n")
    text = "# Title\n[a](page.md#it-is-here) [b](#title) [c](https://example.org/x) `[d](gone.md)`\n"
    assert broken(tmp_path / "one.md", text) == []
