# SPDX-License-Identifier: Apache-2.0
"""Every source file begins with its licence and a header that describes it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support.house import files, shown

LICENCE = "SPDX-License-Identifier: Apache-2.0"


def fault(name: str, text: str) -> str | None:
    """Return the fault of the header of the file ``name``, or None."""
    lines = text.splitlines()
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    comment = "//" if name.endswith(".rs") else "#"
    if not lines or lines[0] != f"{comment} {LICENCE}":
        return f"{name}: begin with `{comment} {LICENCE}`"
    if name.endswith(".rs"):
        if len(lines) < 2 or not lines[1].startswith("//! "):
            return f"{name}: after the licence say what the file owns: `//! ...`"
    elif not lines[1:2] or not (lines[1].startswith('"""') or ast.get_docstring(ast.parse(text))):
        return f"{name}: after the licence say what the file owns, as the module's docstring"
    return None


def test_every_source_file_has_a_header() -> None:
    faults = [fault(shown(path), path.read_text()) for path in files(".rs", ".py", ".pyi")]
    assert not any(faults), "\n".join(["files without header:", *filter(None, faults)])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.rs", ""),
        ("a.rs", "//! What it owns.\n"),
        ("a.rs", f"// {LICENCE}\nuse std::io;\n"),
        ("a.py", '"""What it owns."""\n'),
        ("a.py", f"# {LICENCE}\nimport io\n"),
        ("a.pyi", f"# {LICENCE}\n# What it owns.\n"),
    ],
)
def test_an_example_without_header_is_refused(name: str, text: str) -> None:
    assert fault(name, text)


def test_a_script_may_begin_with_its_interpreter() -> None:
    assert fault("a.py", f'#!/usr/bin/env python3\n# {LICENCE}\n"""What it does."""\n') is None


def test_every_page_of_a_format_and_of_a_note_has_a_title() -> None:
    for path in files(".md"):
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("<!--")]
        assert lines, f"{shown(path)} is empty"
        assert lines[0].startswith("# "), f"{shown(path)}: begin with a title, `# ...`"


def test_no_python_folder_lacks_its_init() -> None:
    folders = {path.parent for path in files(".py") if "foresee" in Path(shown(path)).parts[:2]}
    for folder in folders:
        assert (folder / "__init__.py").is_file(), f"{folder.name} has modules but no __init__.py"
