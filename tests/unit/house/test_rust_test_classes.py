# SPDX-License-Identifier: Apache-2.0
"""Classes of the Rust tests: which test code may use sockets, processes and clocks.

Unit tests are in source files, or in programs of ``tests`` without prefix. Programs and folders named ``process_*`` and
``soak_*``, and modules named ``process_tests`` next to private code, may open sockets and start processes. No test reads
a clock or sleeps itself: ``foresee-testkit`` does, where each wait has a watchdog.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from support.house import files, shown

#: Refused in every test, with the helper to use.
CLOCKS = re.compile(
    r"thread::sleep|\bsleep_ms\b|time::sleep|park_timeout|\bInstant::now\b|\bSystemTime::now\b|\.elapsed\(\)"
)
#: Refused in unit tests.
OUTSIDE = re.compile(
    r"\b(?:Tcp(?:Listener|Stream)|UdpSocket|Unix(?:Listener|Stream|Datagram)|Command)\b"
    r"|\bforesee_testkit::.*\b(?:pause|takes_at_least)\b|\bprocess_tests::"
)
#: The only crate whose tests and helpers may read a clock.
TESTKIT = "foresee-testkit"
#: Literals and comments, which name things without using them.
WORDS = re.compile(r'r(#*)".*?"\1|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'|//[^\n]*', re.DOTALL)
TEST_ITEM = re.compile(r"^( *)#\[cfg\(test\)\]\n(?:\1#\[[^\n]*\n)*\1([^\n]*)", re.MULTILINE)


def blank(text: str) -> str:
    """Return ``text`` without the contents of its literals and comments; line numbers do not change."""
    return WORDS.sub(lambda found: "\n" * found[0].count("\n"), text)


def files_of_tests(sources: dict[str, str]) -> set[str]:
    """Return the files that only tests use, by folder or by a ``#[cfg(test)]`` module without a body."""
    found = set()
    for name, text in sources.items():
        path = PurePosixPath(name)
        if {"tests", "process_tests"} & {*path.parts, path.stem}:
            found.add(name)
        inside = path.parent if path.stem in {"lib", "main", "mod"} else path.with_suffix("")
        for item in TEST_ITEM.finditer(text):
            if module := re.fullmatch(r"(?:pub(?:\(\w+\))? )?mod (\w+);", item[2]):
                found |= {f"{inside}/{module[1]}.rs", f"{inside}/{module[1]}/mod.rs"} & sources.keys()
    return found


def lines_of_tests(text: str, *, whole: bool) -> Iterator[tuple[int, str]]:
    """Return numbered lines of test code: all lines, or those of definitions below ``#[cfg(test)]``."""
    lines = blank(text).split("\n")
    if whole:
        yield from enumerate(lines, 1)
        return
    for item in TEST_ITEM.finditer(text):
        first = text.count("\n", 0, item.start(2))
        last = first
        if not item[2].endswith((";", "}")):
            last = next(at for at in range(first, len(lines)) if lines[at] == f"{item[1]}}}")
        yield from ((at + 1, lines[at]) for at in range(first, last + 1))


def is_unit(name: str) -> bool:
    """Whether the test code of the file ``name`` belongs to the class unit."""
    parts = PurePosixPath(name).with_suffix("").parts
    return not any(part == "process_tests" or part.startswith(("process_", "soak_")) for part in parts[2:])


def faults(sources: dict[str, str]) -> list[str]:
    """Return uses in test code that its class does not allow, by file name and line."""
    whole = files_of_tests(sources)
    found = []
    for name, text in sorted(sources.items()):
        if PurePosixPath(name).parts[1] == TESTKIT:
            continue
        for number, line in lines_of_tests(text, whole=name in whole):
            if clock := CLOCKS.search(line):
                found.append(
                    f"{name}:{number}: `{clock[0]}` in a test; use `wait_until`, `pause` or `takes_at_least`"
                )
            if (outside := OUTSIDE.search(line)) and is_unit(name):
                found.append(
                    f"{name}:{number}: `{outside[0].removesuffix('::')}` in a unit test; "
                    "move it to tests/process_NAME.rs or to a module `process_tests`"
                )
    return found


def test_every_rust_test_follows_the_rules_of_its_class() -> None:
    sources = {shown(path): path.read_text() for path in files(".rs")}
    found = faults({name: text for name, text in sources.items() if name.startswith("crates/")})
    assert not found, "\n".join(["tests outside their class:", *found])


IN_FILE = "fn f() {}\n\n#[cfg(test)]\nmod tests {\n    fn t() {\n        %s\n    }\n}\n"


@pytest.mark.parametrize(
    "use",
    [
        'std::net::TcpListener::bind("127.0.0.1:0");',
        'TcpStream::connect("127.0.0.1:1");',
        "std::os::unix::net::UnixStream::pair();",
        'UdpSocket::bind("127.0.0.1:0");',
        'Command::new("true").status();',
        "foresee_testkit::pause(Duration::from_millis(1));",
        "use foresee_testkit::{seeds, takes_at_least};",
        "let pair = crate::socket::process_tests::pair();",
    ],
)
def test_sockets_processes_and_pauses_are_refused_in_unit_tests_and_allowed_in_process_tests(
    use: str,
) -> None:
    inside = IN_FILE % use
    for name in (
        "crates/a/src/b.rs",
        "crates/a/tests/b.rs",
        "crates/a/tests/b/main.rs",
        "crates/a/src/b/tests.rs",
    ):
        assert faults({name: inside}), name
    for name in (
        "crates/a/tests/process_b.rs",
        "crates/a/tests/process_b/c.rs",
        "crates/a/tests/soak_b.rs",
        "crates/a/src/b/process_tests.rs",
        "crates/a/src/process_tests/b.rs",
    ):
        assert not faults({name: inside}), name


@pytest.mark.parametrize(
    "use",
    [
        "std::thread::sleep(Duration::from_secs(1));",
        "tokio::time::sleep(time).await;",
        "let start = Instant::now();",
        "let now = std::time::SystemTime::now();",
        "assert!(start.elapsed() < LONG);",
        "thread::park_timeout(time);",
    ],
)
def test_a_clock_is_refused_in_every_test_except_those_of_the_testkit(use: str) -> None:
    for name in ("crates/a/src/b.rs", "crates/a/tests/process_b.rs", "crates/a/src/process_tests.rs"):
        assert faults({name: IN_FILE % use}), name
    assert not faults({"crates/foresee-testkit/src/lib.rs": IN_FILE % use})


def test_product_code_has_no_such_limits() -> None:
    product = "fn f() {\n    std::thread::sleep(time);\n    TcpStream::connect(address);\n}\n"
    assert not faults({"crates/a/src/b.rs": product})
    assert not faults({"crates/a/src/b.rs": product + IN_FILE % "let words = 1;"})


def test_a_file_declared_only_by_tests_is_test_code() -> None:
    sources = {
        "crates/a/src/b.rs": "#[cfg(test)]\npub(crate) mod fake;\n",
        "crates/a/src/b/fake.rs": "pub(crate) struct Server(TcpListener);\n",
    }
    assert faults(sources)
    sources["crates/a/src/b.rs"] = "pub(crate) mod fake;\n"
    assert not faults(sources)


def test_a_definition_below_a_test_attribute_is_test_code_up_to_its_end() -> None:
    text = "#[cfg(test)]\n#[allow(dead_code)]\nfn helper() {\n    %s\n}\n\nfn f() {\n    TcpStream::connect(a);\n}\n"
    assert not faults({"crates/a/src/b.rs": text % "work();"})
    assert faults({"crates/a/src/b.rs": text % "TcpStream::connect(a);"})


def test_names_in_literals_and_comments_do_not_count_as_use() -> None:
    for words in (
        'let text = "a Command of TcpStream";',
        "// Instead of Instant::now().",
        'let c = r#"TcpStream"#;',
    ):
        assert not faults({"crates/a/src/b.rs": IN_FILE % words}), words
