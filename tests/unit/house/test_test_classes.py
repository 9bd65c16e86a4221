# SPDX-License-Identifier: Apache-2.0
"""The rules of the classes of Python tests.

Tests in `tests/unit` start no process, open no socket and start no thread of their own, and neither do the modules of
`tests/support` that they import. No test sleeps or reads a clock outside of `tests/support/waiting.py`, whose watchdog
is the only bound on time. `tests/support/alone.py` refuses the same while unit tests run.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Iterator

import pytest
from support.house import ROOT, files, shown

FOLDERS = ("tests/unit/", "tests/process/", "tests/soak/", "tests/support/")

#: Modules that start processes or threads, or open sockets.
REFUSED = (
    "asyncio",
    "concurrent",
    "multiprocessing",
    "selectors",
    "signal",
    "socket",
    "subprocess",
    "threading",
)
#: Names of these modules that start no thread and wait for none; a test that raises a signal receives it at once.
QUERIES = {
    "threading": re.compile("TIMEOUT_MAX|active_count|current_thread|enumerate|get_ident"),
    "signal": re.compile("SIG[A-Z0-9_]+|Signals|signal|getsignal|raise_signal"),
}
#: Functions of other modules that start processes.
STARTS = {"fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "popen", "Popen", "start_processes"}
#: Functions that sleep or read a clock. Methods of other objects with these names belong to a fake clock.
CLOCKS = {"sleep", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time"}
CLOCK_MODULES = {"time", "asyncio"}
#: Methods that wait, and accept a timeout.
WAITS = {"communicate", "join", "result", "wait"}

#: Found in any text with one of these faults; files without it need not be parsed.
TIMING = re.compile(
    rf"\b(?:import time|from time|{'|'.join(CLOCKS)})\b|\b(?:{'|'.join(WAITS)})\([^)]*\d",
)
STARTING = re.compile(rf"\b(?:{'|'.join([*REFUSED, *STARTS])})\b")

#: Files that may sleep and read a clock, each with the reason.
EXCEPTIONS = {
    "tests/support/waiting.py": "it is the only module that sleeps and reads a clock",
    "tests/unit/house/test_test_classes.py": "it has the planted examples",
}

#: Modules that unit tests share with process tests. Code there that starts a process is refused when a unit test runs it.
SHARED = {
    "tests/support/calibrations.py": "it writes job files for both, and starts calibrations for tests/process",
    "tests/support/stagger_runs.py": "it writes job files for both, and starts runs for tests/process",
    "tests/support/stagger_job.py": "it is the program of a job; unit tests read its constants",
}


@functools.cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def programs(tree: ast.Module) -> Iterator[ast.Module]:
    """Yield the tree itself, and those of the programs in its strings."""
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value:
            try:
                yield ast.parse(textwrap.dedent(node.value))
            except (SyntaxError, ValueError):
                continue


def modules(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield every imported module with its line, except imports for type checkers."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending += node.orelse
        elif not isinstance(node, ast.expr):
            pending += ast.iter_child_nodes(node)


def timing_faults(name: str, text: str) -> list[str]:
    """Return sleeps, clocks and own timeouts in the test file ``name``, and in programs in its strings."""
    if not TIMING.search(text):
        return []
    faults = []
    for tree in programs(parsed(text)):
        faults += [
            f"{name}:{line}: imports {module}; wait with tests/support/waiting.py"
            for module, line in modules(tree)
            if module.split(".")[0] == "time"
        ]
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Attribute, ast.Name)):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            bounds = [*node.args, *(word.value for word in node.keywords if word.arg == "timeout")]
            if called in CLOCKS and _is_real(node.func):
                faults.append(f"{name}:{node.lineno}: calls {called}; wait with tests/support/waiting.py")
            elif called in WAITS and any(map(_is_number, bounds)):
                faults.append(
                    f"{name}:{node.lineno}: {called} has a bound of its own; WATCHDOG is the only one"
                )
    return faults


def unit_faults(name: str, text: str) -> list[str]:
    """Return uses that a file of unit tests may not have, since they need process tests."""
    if not STARTING.search(text):
        return []
    tree = parsed(text)
    faults = [
        f"{name}:{line}: imports {module}; move the test to tests/process"
        for module, line in modules(tree)
        if module.split(".")[0] in REFUSED or module.startswith("torch.multiprocessing")
        if not _only_queries(tree, module)
    ]
    faults += [
        f"{name}:{node.lineno}: {node.attr} starts a process; move the test to tests/process"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in STARTS
    ]
    return faults


def _is_real(called: ast.Attribute | ast.Name) -> bool:
    """Whether a clock's function is Python's, and not a method of a fake clock."""
    return isinstance(called, ast.Name) or ast.unparse(called.value) in CLOCK_MODULES


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def _only_queries(tree: ast.Module, module: str) -> bool:
    """Whether all used names of a module only query."""
    used = [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == module
    ]
    queries = QUERIES.get(module)
    return (
        queries is not None
        and all(map(queries.fullmatch, used))
        and f"from {module} import" not in ast.unparse(tree)
    )


def used_by_unit_tests() -> dict[str, str]:
    """Return every file of `tests/unit`, and every module of `tests/support` that it imports, directly or not."""
    found = {shown(path): path.read_text() for path in files(".py") if shown(path).startswith("tests/unit/")}
    pending = list(found.values())
    while pending:
        for module, _ in modules(parsed(pending.pop())):
            path = ROOT / "tests" / (module.replace(".", "/") + ".py")
            if (
                module.startswith("support.")
                and path.is_file()
                and shown(path) not in found
                and shown(path) not in SHARED
            ):
                found[shown(path)] = path.read_text()
                pending.append(found[shown(path)])
    return found


def test_unit_tests_start_no_process_socket_or_thread() -> None:
    faults = [fault for name, text in used_by_unit_tests().items() for fault in unit_faults(name, text)]
    assert not faults, "\n".join(["these belong to tests/process:", *faults])


def test_no_test_sleeps_reads_a_clock_or_has_its_own_timeout() -> None:
    faults = [
        fault
        for path in files(".py")
        if shown(path).startswith(FOLDERS) and shown(path) not in EXCEPTIONS
        for fault in timing_faults(shown(path), path.read_text())
    ]
    assert not faults, "\n".join(["tests that depend on timing:", *faults])


def test_no_two_test_files_have_the_same_name() -> None:
    names = [path.name for path in files(".py") if re.match(r"tests/(?:\w+/)+test_", shown(path))]
    assert sorted(names) == sorted(set(names)), "pytest imports them by name alone"


@pytest.mark.parametrize(
    "text",
    [
        "import subprocess\n",
        "def test():\n    from subprocess import Popen\n",
        "import multiprocessing.pool\n",
        "import torch.multiprocessing\n",
        "from torch import multiprocessing\n",
        "import signal\nsignal.pause()\n",
        "import threading\nthreading.Thread(target=print).start()\n",
        "from threading import Event\n",
        "import os\nos.fork()\n",
        "import concurrent.futures\n",
    ],
)
def test_a_process_or_thread_in_a_unit_test_is_refused(text: str) -> None:
    assert unit_faults("tests/unit/test_a.py", text)


@pytest.mark.parametrize(
    "text",
    [
        "import threading\nassert threading.active_count() == 1\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import subprocess\n",
        "import os\nos.getpid()\n",
        "import signal\nassert ended == -signal.SIGINT\n",
    ],
)
def test_code_that_only_queries_is_allowed(text: str) -> None:
    assert unit_faults("tests/unit/test_a.py", text) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time\n",
        "from time import monotonic\n",
        "import asyncio\nasyncio.run(asyncio.sleep(1))\n",
        "PROGRAM = '''\n    import time\n    print(1)\n'''\n",
        "process.communicate(timeout=60)\n",
        "thread.join(0.1)\n",
    ],
)
def test_a_sleep_clock_or_timeout_in_a_test_is_refused(text: str) -> None:
    assert timing_faults("tests/process/test_a.py", text)


@pytest.mark.parametrize(
    "text",
    [
        "from support.waiting import WATCHDOG\nprocess.communicate(timeout=WATCHDOG)\n",
        "', '.join(names)\n",
        "run(['sleep', '60'])\n",
        "machine.clock.sleep(60)\n",
        "loader = Loader(timeout=0.5)\n",
    ],
)
def test_the_watchdog_and_the_limits_of_the_product_are_allowed(text: str) -> None:
    assert timing_faults("tests/process/test_a.py", text) == []
