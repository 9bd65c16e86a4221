# SPDX-License-Identifier: Apache-2.0
"""One word per idea: retired words and identifiers are refused, with their replacement.

Words are searched in prose: comments, docstrings, documents, and messages (strings with a space in them), outside of
backticks. Identifiers are searched where types, functions, fields and modules are defined. A public type name is
unique in its family of crates.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pytest
from support.house import files, shown


@dataclass(frozen=True)
class Word:
    """A retired word."""

    pattern: str
    """Pattern of the word, matched as a whole word in any case."""
    replacement: str
    """What to write instead."""
    where: str = ""
    """Prefix of the paths that are searched."""
    exceptions: tuple[tuple[str, str], ...] = ()
    """Prefixes of paths where it is allowed, each with the reason."""


WORDS = (
    # The noun alone: `record` is a verb of the ledger and the metrics.
    Word(
        "(?:an?|the|each|every|per|one|no|next|last|first) record"
        r"|(?:the|all|no|of|many|few|several|two|\d+) records",
        "sample (or entry, of the ledger)",
    ),
    Word("items?", "sample (or entry, member)"),
    Word("iterations?", "step"),
    Word("data ?points?", "sample"),
    # Worker processes are those of torch's DataLoader.
    Word(
        "workers?(?! process)",
        "rank",
        where="crates/",
        exceptions=(
            ("crates/foresee-data-order/src/sampler.rs", "the same"),
            ("crates/foresee-data-loader/src/errors.rs", "the same, in the advice about fork"),
        ),
    ),
)

SOURCES = (".rs", ".py", ".pyi", ".md", ".toml", "Makefile")
#: These files name retired words in order to refuse them, or describe pytest's own terms.
APART = ("tests/unit/house/test_words.py", "tests/conftest.py")

#: Matches any text with a retired word; most files have none and need not be tokenized.
ANY = re.compile(rf"\b(?:{'|'.join(word.pattern for word in WORDS)})\b", flags=re.IGNORECASE)
RUST = re.compile(r'//[/!]?(?P<comment>.*)|"(?P<string>(?:[^"\\]|\\.)*)"')
CODE = re.compile(r"```.*?```", flags=re.DOTALL)
#: Replacement fields of an f-string are code.
FIELD = re.compile(r"\{[^{}\n]*\}")
QUOTED = re.compile(r"`[^`\n]*`")


def prose(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the prose of the file ``name``: line number and text."""
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
        without_code = CODE.sub(lambda block: "\n" * block[0].count("\n"), text)
        yield from enumerate(without_code.splitlines(), 1)


def _message(string: str) -> str:
    words = FIELD.sub("", string)
    return words if " " in words else ""


def retired_words(name: str, text: str) -> list[str]:
    """Return each retired word of the file ``name``, with its replacement."""
    if not ANY.search(text):
        return []
    words = [
        word
        for word in WORDS
        if name.startswith(word.where)
        and not name.startswith(tuple(path for path, _ in word.exceptions) or ("\0",))
    ]
    return [
        f"{name}:{number}: {found[0]!r}; our word is {word.replacement}"
        for number, line in prose(name, text)
        for word in words
        for found in re.finditer(rf"\b(?:{word.pattern})\b", QUOTED.sub("", line), flags=re.IGNORECASE)
    ]


PARTS = ("crates/", "python/", "tests/")


@pytest.mark.parametrize("part", [*PARTS, ""])
def test_prose_uses_one_word_per_idea(part: str) -> None:
    faults = [
        fault
        for path in files(*SOURCES)
        if next((each for each in PARTS if shown(path).startswith(each)), "") == part
        if shown(path) not in APART
        for fault in retired_words(shown(path), path.read_text())
    ]
    assert not faults, "\n".join(["retired words (put quoted names into backticks):", *faults])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("crates/a/src/lib.rs", "/// Reads the next record.\n"),
        ("crates/a/src/lib.rs", 'let text = "no such item";\n'),
        ("crates/a/src/lib.rs", "// One of four workers.\n"),
        ("python/a.py", '"""Once per iteration."""\n'),
        ("python/a.py", "x = 1  # items\n"),
        ("README.md", "Every record comes once.\n"),
        ("README.md", "A batch of records.\n"),
    ],
)
def test_a_retired_word_is_found(name: str, text: str) -> None:
    (fault,) = retired_words(name, text)
    assert f"{name}:1: " in fault


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("crates/a/src/lib.rs", "type Item = u64; // a `RecordBatch`\n"),
        ("python/a.py", "for key, value in items.items(): record = key\n"),
        ("python/a.py", 'print(f"loss {loss.item():.3f} after all")\n'),
        ("python/foresee/torch/a.py", "# one of the loader's workers\n"),
        ("crates/a/src/lib.rs", "// One of four worker processes.\n"),
        ("python/a.py", '"""Record the waits of a rank, as the ledger records them."""\n'),
        ("README.md", "`TensorFlow`'s TFRecord\n```\nfor item in items: ...\n```\n"),
    ],
)
def test_names_in_code_and_in_backticks_are_allowed(name: str, text: str) -> None:
    assert retired_words(name, text) == []


# ---- identifiers


@dataclass(frozen=True)
class Retired:
    """A word that no identifier contains any more."""

    word: str
    """Pattern of one or more words of a snake-case identifier; matched whole."""
    replacement: str
    """What to write instead."""
    exceptions: tuple[tuple[str, str], ...] = ()
    """Identifiers in which it is allowed, each with the reason."""


RETIRED = (
    Retired("couriers?", "transfer, device staging"),
    Retired("foretold", "prediction file"),
    Retired("thawed", "unfrozen"),
    Retired("one_storage", "pooling"),
    Retired("local_average", "hierarchical"),
    Retired("park_bytes", "early_buffer_bytes"),
    Retired("handovers?", "batch queue"),
    Retired("bells?", "waker"),
    Retired("seats?", "connection, member"),
    Retired("ears?|hear|heard", "reader, receive"),
    Retired("news", "progress, membership change"),
    Retired("stay|farewell", "linger"),
    Retired("hubs?", "leader"),
    Retired("landings?|lands?|landed", "receive buffer, received"),
    Retired("parks?|parked", "early buffer"),
    Retired("ease|paces?|hurry", "fair share, consumer rate, prioritize"),
    Retired("rooms?", "capacity, free bytes"),
    Retired("deals?|dealt", "shard, rank share"),
    Retired("deeds?", "action"),
    Retired("asked", "request, arguments"),
    Retired("elsewhere|foretell", "transfer"),
    Retired("lanes?", "partition, fetch slot, packet stream, bucket"),
    Retired("shelf|shelves", "test support"),
    Retired("away|toll", "disconnected, metering"),
)

#: One search for all of them, as most identifiers have none.
_ANY_RETIRED = re.compile(rf"(?:^|_)(?:{'|'.join(each.word for each in RETIRED)})(?:_|$)")
#: A name with this many underscores is the sentence of a test.
_SENTENCE = 4
_RUST_DEFINITION = re.compile(
    r"^\s*(?:pub(?:\([^)]*\))?\s+)?"
    r"(?:(?:const |async |unsafe )*fn|struct|enum|trait|union|type|mod|const|static)\s+(?P<item>\w+)"
    r"|^\s+(?:pub(?:\([^)]*\))?\s+)?(?P<field>[a-z_]\w*): ",
    flags=re.MULTILINE,
)
#: Types that are defined once for each platform.
_OF_PLATFORMS = frozenset({"Poller"})
_RUST_PUBLIC_TYPE = re.compile(r"^\s*pub (?:struct|enum|trait|union|type) (\w+)", flags=re.MULTILINE)


def definitions(name: str, text: str) -> Iterator[str]:
    """Yield the identifiers that the file ``name`` defines, and its own name."""
    yield name.rpartition("/")[2].partition(".")[0]
    if name.endswith(".rs"):
        for found in _RUST_DEFINITION.finditer(text):
            yield found["item"] or found["field"]
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def snake(identifier: str) -> str:
    """Return ``identifier`` in lower case, its words joined by ``_``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).lower()


def retired(name: str, text: str) -> list[str]:
    """Return each definition of the file ``name`` with a retired word, and the replacement."""
    return [
        f"{name}: `{identifier}`; our word is {each.replacement}"
        for identifier in sorted(set(definitions(name, text)))
        if identifier.count("_") < _SENTENCE and _ANY_RETIRED.search(snake(identifier))
        for each in RETIRED
        if re.search(rf"(?:^|_)(?:{each.word})(?:_|$)", snake(identifier))
        if identifier not in dict(each.exceptions)
    ]


def test_no_definition_has_a_retired_word() -> None:
    faults = [
        fault
        for path in files(".rs", ".py", ".pyi")
        if shown(path) not in APART
        for fault in retired(shown(path), path.read_text())
    ]
    assert not faults, "\n".join(["retired identifiers:", *faults])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("crates/a/src/courier.rs", ""),
        ("crates/a/src/lib.rs", "pub(crate) struct StagedCourier;\n"),
        ("crates/a/src/lib.rs", "struct A {\n    pub courier: u8,\n}\n"),
        ("python/a.py", "def start_courier(): ...\n"),
        ("python/a.py", "class A:\n    courier: int\n"),
        ("python/a.py", "def f(courier): ...\n"),
    ],
)
def test_a_retired_identifier_is_found(name: str, text: str) -> None:
    (fault,) = retired(name, text)
    assert fault.startswith(f"{name}: ")


def test_a_word_inside_of_another_word_is_allowed() -> None:
    assert retired("python/a.py", "def couriered(): return courier\n") == []


def family(name: str) -> str:
    """Return the family of the file's crate: all of the data path, all of the gradient path, or the crate itself."""
    crate = name.split("/")[1]
    return next((each for each in ("foresee-data-", "foresee-grad-") if crate.startswith(each)), crate)


def duplicates(sources: Iterable[tuple[str, str]]) -> list[str]:
    """Return public type names with more than one definition in a family of crates, with the files."""
    found = defaultdict(set)
    for name, text in sources:
        for type_name in _RUST_PUBLIC_TYPE.findall(text.partition("#[cfg(test)]")[0]):
            if type_name not in _OF_PLATFORMS:
                found[family(name), type_name].add(name)
    return [f"{name}: {', '.join(sorted(where))}" for (_, name), where in found.items() if len(where) > 1]


def test_a_public_type_name_is_unique_in_its_family_of_crates() -> None:
    sources = [
        (shown(path), path.read_text())
        for path in files(".rs")
        if re.match(r"crates/[^/]+/src/(?!.*(?:tests|conformance))", shown(path))
    ]
    assert not duplicates(sources)


def test_a_duplicate_type_name_is_found() -> None:
    text = "pub struct Entry;\n"
    places = ["crates/foresee-data-index/src/a.rs", "crates/foresee-data-tier/src/b.rs"]
    assert duplicates((place, text) for place in places) == [f"Entry: {', '.join(places)}"]
    assert duplicates([(places[0], text), ("crates/foresee-wire/src/c.rs", text)]) == []
