# SPDX-License-Identifier: Apache-2.0
"""Phases of a test run: commands of the test runners, and the meaning of their results.

Separate from `scripts/test.py` so that unit tests can pass results instead of processes.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from durations import LOG, Result, RunLog, phase_table, slowest_table
from reports import junit_results, report_log_results
from steps import ROOT, Failed

PYTEST = ROOT / ".venv" / "bin" / "pytest"
NEXTEST = ["cargo", "nextest", "run", "--workspace", "--locked", "--cargo-quiet"]
#: nextest runs no doctests.
DOCTESTS = ["cargo", "test", "--workspace", "--locked", "--quiet", "--doc"]
#: Exit status of a test runner after a complete run with failed tests.
NEXTEST_FAILED, PYTEST_FAILED = 100, 1
#: Tests that depend on torch's random numbers and shuffling, by class: they run on the oldest torch too.
ON_OLDEST_TORCH = {
    "unit": "tests/unit/torch_data/test_torch_orders.py",
    "process": "tests/process/loading/test_order_of_torch.py",
    "soak": "tests/soak/test_oldest_torch.py",
}
#: Number of flaky tests that fails the run, because some of them are then defects.
FLAKY_LIMIT = 3
#: With more failures than this the change is at fault, so there is no second run.
RERUN_LIMIT = 20
#: Lines of a failure in the summary.
SHOWN = 12


class Runner:
    """One test run.

    Args:
        log: for the phases and the results.
        invoke: runs a command with additional environment variables; returns its exit status.
        oldest_torch: pytest of the environment with the oldest supported torch.
        root: the checkout.
        folder: folder of the reports.
    """

    def __init__(
        self,
        log: RunLog,
        invoke: Callable[[Sequence[str], Mapping[str, str]], int],
        *,
        oldest_torch: Path,
        root: Path = ROOT,
        folder: Path = LOG.parent,
    ) -> None:
        self.log = log
        self._invoke = invoke
        self._oldest_torch = oldest_torch
        self._root, self._folder = root, folder
        self._broken: list[str] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to the log."""
        print(f"== {name}", file=sys.stderr, flush=True)
        began = time.monotonic()
        try:
            yield
        finally:
            self.log.phases.append((name, time.monotonic() - began))

    def build(self) -> None:
        """Compile all Rust tests.

        Raises:
            Failed: they do not compile.
        """
        with self.phase("rust build"):
            if self._run([*NEXTEST, "--no-run"]) != 0:
                raise Failed("the Rust tests do not compile")

    def run(self, kind: str) -> None:
        """Run the tests of one class, and those of ``process`` that failed once more."""
        with self.phase(f"rust {kind}"):
            self.log.results += self._nextest(kind)
        if kind == "unit":
            with self.phase("rust documents"):
                self._run(DOCTESTS)
        with self.phase(f"python {kind}"):
            # One more for process tests, which wait for other processes and for timeouts.
            count = (os.cpu_count() or 1) + (kind == "process")
            options = ["-n", str(count), "--dist", "worksteal"]
            if kind == "soak":
                # One at a time; one file is for the oldest torch alone.
                options = [f"--ignore={ON_OLDEST_TORCH[kind]}"]
            self.log.results += self._pytest(kind, [f"tests/{kind}", *options])
        if kind == "soak":
            with self.phase("python properties"):
                self.log.results += self._pytest(kind, ["tests/unit", "tests/process", "-m", "hypothesis"])
        with self.phase(f"oldest torch {kind}"):
            self.log.results += self._on_oldest_torch(kind)
        if kind == "process":
            self._repeat_failed(kind)

    def failed(self) -> bool:
        """Whether the run has failed."""
        return bool(self._broken or self._with("failed") or len(self._with("flaky")) >= FLAKY_LIMIT)

    def summary(self) -> Iterator[str]:
        """Return lines on durations, and on flaky, failed and broken tests."""
        yield from phase_table(self.log)
        yield ""
        yield from slowest_table(self.log)
        for title, outcome in (("flaky: failed, then passed alone", "flaky"), ("failed", "failed")):
            if tests := self._with(outcome):
                yield f"\n{len(tests)} {title}"
            for each in tests:
                yield f"  {each.kind} {each.language} {each.test}"
                yield from (f"    {line}" for line in each.failure.splitlines()[-SHOWN:])
        if len(self._with("flaky")) >= FLAKY_LIMIT:
            yield f"\n{FLAKY_LIMIT} or more flaky tests fail the run"
        yield from (f"\nbroken: {line}" for line in self._broken)
        failed, skipped = len(self._with("failed")), len(self._with("skipped"))
        yield f"\n{len(self.log.results) - failed - skipped} passed, {failed} failed, {skipped} skipped"

    def _with(self, outcome: str) -> list[Result]:
        return [each for each in self.log.results if each.outcome == outcome]

    def _repeat_failed(self, kind: str) -> None:
        """Run the failed tests of a class once more, one after the other; those that pass are flaky."""
        failed = [each for each in self._with("failed") if each.kind == kind]
        if not failed or len(failed) > RERUN_LIMIT:
            return
        again: list[Result] = []
        with self.phase(f"{kind} second run"):
            if rust := [each.test.split(" ") for each in failed if each.language == "rust"]:
                chosen = " | ".join(f"(binary_id(={binary}) & test(={name}))" for binary, name in rust)
                again += self._nextest(kind, "--test-threads", "1", "--filterset", chosen)
            if python := [each.test for each in failed if each.language == "python"]:
                again += self._pytest(kind, python)
        flaky = {each.test for each in again if each.outcome == "passed"}
        self.log.results = [
            replace(each, outcome="flaky") if each in failed and each.test in flaky else each
            for each in self.log.results
        ]

    def _nextest(self, kind: str, *options: str) -> list[Result]:
        report = self._root / "target" / "nextest" / kind / "junit.xml"
        report.unlink(missing_ok=True)
        self._run([*NEXTEST, "--profile", kind, *options], NEXTEST_FAILED)
        return list(junit_results(report, kind)) if report.exists() else []

    def _pytest(
        self, kind: str, options: Sequence[str], program: Path = PYTEST, **environment: str
    ) -> list[Result]:
        report = self._folder / f"python-{kind}.jsonl"
        report.parent.mkdir(parents=True, exist_ok=True)
        report.unlink(missing_ok=True)
        command = [str(program), "--quiet", f"--report-log={report}", *options]
        self._run(command, PYTEST_FAILED, **environment)
        return list(report_log_results(report, kind)) if report.exists() else []

    def _on_oldest_torch(self, kind: str) -> list[Result]:
        """Run the tests of ``ON_OLDEST_TORCH`` with the package of the checkout."""
        path = str(self._root / "python")
        results = self._pytest(kind, [ON_OLDEST_TORCH[kind]], self._oldest_torch, PYTHONPATH=path)
        return [replace(each, kind="oldest torch") for each in results]

    def _run(self, command: Sequence[str], tests_failed: int = 0, **environment: str) -> int:
        """Run a test runner; any status other than 0 and ``tests_failed`` means that it is broken."""
        print(f"  $ {shlex.join(command)}", file=sys.stderr, flush=True)
        status = self._invoke(command, environment)
        if status not in (0, tests_failed):
            self._broken.append(f"`{shlex.join(command)}` ended with status {status}")
        return status
