# SPDX-License-Identifier: Apache-2.0
"""Mutants: small changes of the source of a crate or of the Python models, and their application to a text.

cargo-mutants lists those of a crate. Those of Python come from the syntax tree: another operator, another number, a
negated condition; messages, decorators and annotations are unchanged.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import json
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from steps import ROOT

if TYPE_CHECKING:
    from pathlib import Path

#: Name of the Python models in results, and their places.
MODELS = "Python models"
MODEL_PLACES = (
    "python/foresee/network",
    "python/foresee/planning",
    "python/foresee/stagger/model",
    "python/foresee/storage/goal.py",
    "python/foresee/storage/model.py",
    "python/foresee/storage/purchases.py",
    "python/foresee/storage/smallest_sets.py",
)
#: Lines around a change that find its place in a later tree.
CONTEXT = 8
#: Python operators and what replaces them.
SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is",
    "in": "not in", "not in": "in", "+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "**": "*",
    "and": "or", "or": "and",
}  # fmt: skip


@dataclass
class Mutant:
    """One change, with the result of the tests."""

    package: str
    file: str
    function: str
    change: str
    diff: str
    #: "", caught, survived, timeout (counts as caught), unviable (does not compile), absent (not in this tree).
    outcome: str = ""
    #: Packages whose tests passed with the change, and the first failed tests.
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0


class PythonChanges(ast.NodeVisitor):
    """Changes of one Python file as (function, start, end, replacement), with byte offsets."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
        self.names: list[str] = []
        self.found: list[tuple[str, int, int, str]] = []
        self.visit(ast.parse(source))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        """Visit the body only, without decorators and annotations."""
        self.names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self.names.pop()

    visit_ClassDef = visit_FunctionDef  # noqa: N815 - named by ast

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Visit the value only."""
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip a message: its parts have no positions before Python 3.12."""

    def generic_visit(self, node: ast.AST) -> None:
        """List the changes of a node."""
        if isinstance(node, ast.Compare):
            self._operators([node.left, *node.comparators])
        elif isinstance(node, ast.BinOp):
            self._operators([node.left, node.right])
        elif isinstance(node, ast.BoolOp):
            self._operators(node.values)
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            start, end = self._span(node.test)
            self._record(start, end, f"(not ({self.source[start:end].decode()}))")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            value = node.value
            self._record(*self._span(node), repr(not value if isinstance(value, bool) else value + 1))
        super().generic_visit(node)

    def _operators(self, operands: list[ast.expr]) -> None:
        for left, right in itertools.pairwise(operands):
            start, end = self._span(left)[1], self._span(right)[0]
            between = self.source[start:end].decode()
            operator = between.strip("() \n")
            if operator in SWAPS:
                self._record(start, end, between.replace(operator, SWAPS[operator], 1))

    def _span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def _record(self, start: int, end: int, replacement: str) -> None:
        self.found.append((".".join(self.names), start, end, replacement))


def rust_mutants(crate: str, program: str) -> list[Mutant]:
    """Return all mutants that cargo-mutants lists for a crate."""
    listed = json.loads(run([program, "mutants", "--list", "--json", "--diff", "--package", crate]))
    return [
        Mutant(
            crate,
            one["file"],
            (one["function"] or {}).get("function_name", ""),
            one["name"].split(": ", 1)[1],
            one["diff"],
        )
        for one in listed
    ]


def python_mutants() -> list[Mutant]:
    """Return all mutants of the Python models."""
    mutants = []
    for path in sorted(each for place in MODEL_PLACES for each in _sources(ROOT / place)):
        source, name = path.read_bytes(), str(path.relative_to(ROOT))
        for function, start, end, new in PythonChanges(source).found:
            changed = (source[:start] + new.encode() + source[end:]).decode()
            change = f"replace {source[start:end].decode().strip()} with {new.strip()}"
            lines = difflib.unified_diff(
                source.decode().splitlines(keepends=True),
                changed.splitlines(keepends=True),
                name,
                change.replace("\n", " "),
                n=CONTEXT,
            )
            mutants.append(Mutant(MODELS, name, function, change, "".join(lines)))
    return mutants


def _sources(place: Path) -> list[Path]:
    """Return the Python files of a place: the file itself, or all in the folder."""
    return [place] if place.is_file() else list(place.rglob("*.py"))


def apply(diff: str, text: str) -> str | None:
    """Apply a diff's only hunk where its lines occur once, with as much context as matches; None: nowhere."""
    hunk = [line for line in diff.split("@@\n", 1)[1].splitlines(keepends=True) if line[0] in " +-"]
    marked = [number for number, line in enumerate(hunk) if line[0] != " "]
    for context in range(CONTEXT, -1, -1):
        lines = hunk[max(0, marked[0] - context) : marked[-1] + 1 + context]
        old, new = ("".join(line[1:] for line in lines if line[0] in kinds) for kinds in (" -", " +"))
        if text.count(old) == 1:
            return text.replace(old, new)
    return None


def run(command: list[str]) -> str:
    """Run a command that must succeed, and return its output."""
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
