# SPDX-License-Identifier: Apache-2.0
"""The test runner of the scripts: failed, flaky and crashed tests, from given reports."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Mapping, Sequence

import pytest
from support.house import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import durations
from durations import Result, RunLog
from reports import junit_results, report_log_results
from runner import FLAKY_LIMIT, RERUN_LIMIT, Runner
from steps import Failed

JUNIT = """<?xml version="1.0"?>
<testsuites><testsuite name="foresee-wire::process_loopback" tests="2">
<testcase name="a_frame_arrives" classname="foresee-wire::process_loopback" time="0.25"/>
<testcase name="a_stranger_is_refused" classname="foresee-wire::process_loopback" time="1.5">
<failure message="panicked">at loopback.rs:7</failure><system-err>left 1, right 2</system-err>
</testcase></testsuite></testsuites>
"""


def report(nodeid: str, *outcomes: str, seconds: float = 0.1) -> str:
    """Return the lines of a report log: set-up, call and tear-down of one test, one per outcome."""
    lines = []
    for when, outcome in zip(("setup", "call", "teardown"), outcomes, strict=False):
        crash = {"reprcrash": {"path": "test_a.py", "lineno": 3, "message": "assert 1 == 2"}}
        entry = {"nodeid": nodeid, "when": when, "outcome": outcome, "duration": seconds}
        longrepr = crash if outcome == "failed" else None
        lines.append(json.dumps({"$report_type": "TestReport", "longrepr": longrepr, **entry}) + "\n")
    return "".join(lines)


class Machine:
    """A stand-in for the test runners that writes the given reports and stores the commands.

    ``python`` and ``rust`` are the reports of the first, second and later invocations.
    """

    def __init__(
        self, root: pathlib.Path, python: Sequence[str] = (), rust: Sequence[str] = (), status: int = 0
    ):
        self.root, self.status = root, status
        self.python, self.rust = list(python), list(rust)
        self.commands: list[list[str]] = []
        self.runner = Runner(
            RunLog(),
            self.invoke,
            oldest_torch=root / "oldest" / "pytest",
            root=root,
            folder=root / "reports",
        )

    def invoke(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        self.commands.append(list(command))
        if "--doc" in command:
            return self.status
        if "nextest" in command:
            if "--no-run" in command or not self.rust:
                return self.status
            text, at = self.rust.pop(0), command.index("--profile") + 1
            path = self.root / "target" / "nextest" / command[at] / "junit.xml"
            status = 100
        elif command[0].startswith(str(self.root / "oldest")):
            return self.status
        else:
            if not self.python:
                return self.status
            text = self.python.pop(0)
            path = pathlib.Path(
                next(word for word in command if word.startswith("--report-log")).split("=")[1]
            )
            status = 1
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return status if "fail" in text else 0


def test_a_junit_file_gives_binary_test_seconds_and_failure(tmp_path: pathlib.Path) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT)
    good, bad = junit_results(tmp_path / "junit.xml", "process")
    assert good == Result("foresee-wire::process_loopback a_frame_arrives", "process", "rust", 0.25, "passed")
    assert (bad.outcome, bad.seconds) == ("failed", 1.5)
    assert "left 1, right 2" in bad.failure


def test_a_report_log_gives_one_result_for_set_up_call_and_tear_down(tmp_path: pathlib.Path) -> None:
    text = report("a", "passed", "passed", "passed") + report("b", "passed", "skipped", "passed")
    (tmp_path / "log").write_text(text + report("c", "passed", "passed", "failed"))
    results = {each.test: each for each in report_log_results(tmp_path / "log", "unit")}
    assert [each.outcome for each in results.values()] == ["passed", "skipped", "failed"]
    assert results["a"].seconds == pytest.approx(0.3)
    assert results["c"].failure == "test_a.py:3: assert 1 == 2"


def test_a_process_test_that_passes_alone_is_flaky_and_the_run_passes(tmp_path: pathlib.Path) -> None:
    first, second = report("t", "passed", "failed"), report("t", "passed", "passed")
    machine = Machine(tmp_path, python=[first, second])
    machine.runner.run("process")
    assert not machine.runner.failed()
    summary = "\n".join(machine.runner.summary())
    assert "1 flaky: failed, then passed alone\n  process python t\n    test_a.py:3: assert 1 == 2" in summary
    assert "1 passed, 0 failed, 0 skipped" in summary
    assert machine.commands[-1][-1] == "t", "the second invocation has the failed tests alone"
    assert "-n" not in machine.commands[-1]


def test_a_rust_process_test_is_repeated_by_its_own_name(tmp_path: pathlib.Path) -> None:
    passed = JUNIT.replace('<failure message="panicked">at loopback.rs:7</failure>', "")
    machine = Machine(tmp_path, rust=[JUNIT, passed])
    machine.runner.run("process")
    again = machine.commands[-1]
    assert again[-1] == "(binary_id(=foresee-wire::process_loopback) & test(=a_stranger_is_refused))"
    assert not machine.runner.failed()
    assert "1 flaky" in "\n".join(machine.runner.summary())


def test_a_process_test_that_fails_twice_fails_the_run(tmp_path: pathlib.Path) -> None:
    machine = Machine(tmp_path, python=[report("t", "passed", "failed")] * 2)
    machine.runner.run("process")
    assert machine.runner.failed()
    assert "0 passed, 1 failed, 0 skipped" in "\n".join(machine.runner.summary())


def test_a_unit_test_is_never_repeated(tmp_path: pathlib.Path) -> None:
    machine = Machine(tmp_path, python=[report("t", "passed", "failed"), report("t", "passed", "passed")])
    machine.runner.run("unit")
    assert machine.runner.failed()
    assert len(machine.commands) == 4


@pytest.mark.parametrize("flaky", [FLAKY_LIMIT - 1, FLAKY_LIMIT])
def test_three_flaky_tests_fail_the_run(tmp_path: pathlib.Path, flaky: int) -> None:
    tests = [f"t{i}" for i in range(flaky)]
    first = "".join(report(each, "passed", "failed") for each in tests)
    second = "".join(report(each, "passed", "passed") for each in tests)
    machine = Machine(tmp_path, python=[first, second])
    machine.runner.run("process")
    assert machine.runner.failed() == (flaky >= FLAKY_LIMIT)


def test_many_failures_are_not_run_twice(tmp_path: pathlib.Path) -> None:
    first = "".join(report(f"t{i}", "passed", "failed") for i in range(RERUN_LIMIT + 1))
    machine = Machine(tmp_path, python=[first])
    machine.runner.run("process")
    assert machine.runner.failed()
    assert len(machine.commands) == 3


def test_a_crashed_test_runner_fails_the_run(tmp_path: pathlib.Path) -> None:
    machine = Machine(tmp_path, status=3)
    machine.runner.run("unit")
    assert machine.runner.failed()
    assert "ended with status 3" in "\n".join(machine.runner.summary())


def test_tests_that_do_not_compile_end_the_run(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Failed, match="do not compile"):
        Machine(tmp_path, status=101).runner.build()


def test_the_record_is_read_back_as_written(tmp_path: pathlib.Path) -> None:
    results = [
        Result("a", "unit", "rust", 0.5, "passed"),
        Result("b", "unit", "python", 1.25, "failed", "why"),
    ]
    log = RunLog([("setup", 2.0)], results)
    log.save(tmp_path / "log.json")
    assert RunLog.load(tmp_path / "log.json") == log
    assert [each.test for each in log.over_limit()] == ["b"]
    lines = list(durations.tables(log))
    assert lines[1].split() == ["unit", "python", "1", "1.2", "1.25"]
    assert any(line.split()[:3] == ["1.25", "s", "unit"] for line in lines)


def test_a_record_of_another_version_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "log.json").write_text('{"version": 0}')
    with pytest.raises(ValueError, match="version 0, 1 expected"):
        RunLog.load(tmp_path / "log.json")
