# SPDX-License-Identifier: Apache-2.0
"""One word per idea: finds the words that lost, and names the winner.

Looks at prose: comments, docstrings, documents, and messages (strings with a space in them). Names in code are left
to the compiler and to reading, and so is whatever stands in backticks: a quoted name of somebody else's.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from support.house import files, shown


@dataclass(frozen=True)
class Word:
    """A word that lost."""

    losers: str
    """Pattern of the word, matched as a whole word in any case."""
    winner: str
    """What to write instead."""
    where: str = ""
    """Prefix of the paths in which it is looked for."""
    but: tuple[tuple[str, str], ...] = ()
    """Prefixes of paths in which it is right, each with the reason."""


WORDS = (
    Word("records?", "sample (or entry, of the ledger)"),
    Word("items?", "sample (or entry, member)"),
    Word("iterations?", "step"),
    Word("data ?points?", "sample"),
    Word(
        "workers?",
        "rank",
        where="crates/",
        but=(
            ("crates/foresee-data-order/src/sampler.rs", "torch's DataLoader has worker processes"),
            ("crates/foresee-data-loader/src/errors.rs", "the same, in the advice about fork"),
        ),
    ),
)

SOURCES = (".rs", ".py", ".pyi", ".md", ".toml", "Makefile")
#: They name the losers in order to refuse them, or speak of pytest's own.
APART = ("tests/unit/test_words.py", "tests/conftest.py")

#: Found somewhere in a text that has a word that lost; most have none, and need not be taken apart.
ANY = re.compile(rf"\b(?:{'|'.join(word.losers for word in WORDS)})\b", flags=re.IGNORECASE)
RUST = re.compile(r'//[/!]?(?P<comment>.*)|"(?P<string>(?:[^"\\]|\\.)*)"')
CODE = re.compile(r"```.*?```", flags=re.DOTALL)
#: What an f-string puts in is code.
FIELD = re.compile(r"\{[^{}\n]*\}")
QUOTED = re.compile(r"`[^`\n]*`")


def prose(name: str, text: str) -> Iterator[tuple[int, str]]:
    """What a reader reads in the file ``name``: line number and text."""
    if name.endswith(".rs"):
        for number, line in enumerate(text.splitlines(), 1):
            for found in RUST.finditer(line):
                yield number, found["comment"] or _message(found["string"] or "")
    elif name.endswith((".py", ".pyi")):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
            elif token.type == tokenize.STRING or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
                for i, line in enumerate(_message(token.string).splitlines()):
                    yield token.start[0] + i, line
    else:
        kept = CODE.sub(lambda block: "\n" * block[0].count("\n"), text)
        yield from enumerate(kept.splitlines(), 1)


def _message(string: str) -> str:
    words = FIELD.sub("", string)
    return words if " " in words else ""


def losers(name: str, text: str) -> list[str]:
    """Each losing word of the file ``name``, with the winner."""
    if not ANY.search(text):
        return []
    words = [
        word
        for word in WORDS
        if name.startswith(word.where) and not name.startswith(tuple(path for path, _ in word.but) or ("\0",))
    ]
    return [
        f"{name}:{number}: {found[0]!r}; our word is {word.winner}"
        for number, line in prose(name, text)
        for word in words
        for found in re.finditer(rf"\b(?:{word.losers})\b", QUOTED.sub("", line), flags=re.IGNORECASE)
    ]


PARTS = ("crates/", "python/", "tests/")


@pytest.mark.parametrize("part", [*PARTS, ""])
def test_prose_uses_one_word_per_idea(part: str) -> None:
    faults = [
        fault
        for path in files(*SOURCES)
        if next((each for each in PARTS if shown(path).startswith(each)), "") == part
        if shown(path) not in APART
        for fault in losers(shown(path), path.read_text())
    ]
    assert not faults, "\n".join(["words that lost (a quoted name goes into backticks):", *faults])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("crates/a/src/lib.rs", "/// Reads the next record.\n"),
        ("crates/a/src/lib.rs", 'let text = "no such item";\n'),
        ("crates/a/src/lib.rs", "// One of four workers.\n"),
        ("python/a.py", '"""Once per iteration."""\n'),
        ("python/a.py", "x = 1  # items\n"),
        ("README.md", "Every record comes once.\n"),
    ],
)
def test_a_planted_loser_is_found(name: str, text: str) -> None:
    (fault,) = losers(name, text)
    assert f"{name}:1: " in fault


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("crates/a/src/lib.rs", "type Item = u64; // a `RecordBatch`\n"),
        ("python/a.py", "for key, value in items.items(): record = key\n"),
        ("python/a.py", 'print(f"loss {loss.item():.3f} after all")\n'),
        ("python/foresee/torch/a.py", "# one of the loader's workers\n"),
        ("README.md", "`TensorFlow`'s TFRecord\n```\nfor item in items: ...\n```\n"),
    ],
)
def test_names_in_code_and_quotes_are_free(name: str, text: str) -> None:
    assert losers(name, text) == []
