# SPDX-License-Identifier: Apache-2.0
"""Turn unexpected skips into failures, because a skipped test proves nothing.

Four markers allow a skip: ``gpu`` without CUDA, ``hosts`` without the right to make network namespaces, ``loops``
without the right to throttle a loop device, and ``systemd`` on a host without it. Any other skip (a missing package or server, a ``skipif``) fails the session,
which lists it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest


def _no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "no CUDA device"


def _no_hosts() -> str | None:
    if os.geteuid() != 0:
        return "not root"
    if not all(map(shutil.which, ("ip", "tc", "unshare"))):
        return "no iproute2"
    # A container's root may lack the rights.
    made = subprocess.run(
        ["unshare", "--net", "--mount", "true"], capture_output=True, text=True, check=False
    )
    return made.stderr.strip() or "no namespaces" if made.returncode else None


def _no_loops() -> str | None:
    from foresee.storage.bench import loop

    return loop.missing_requirement()


def _no_systemd() -> str | None:
    return None if shutil.which("systemd-analyze") else "no systemd-analyze"


#: Markers that allow a skip. Each function returns the reason, or None if the tests can run.
EXPECTED = {"gpu": _no_gpu, "hosts": _no_hosts, "loops": _no_loops, "systemd": _no_systemd}


#: Exit status of a session with unexpected skips. pytest does not use it, so the test runner repeats no test.
UNEXPECTED_SKIPS = 6


class Guard:
    """Collects skips without a marker that allows them.

    It reads reports, which reach the main process also if xdist workers run the tests.
    """

    def __init__(self) -> None:
        self._unexpected: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a skipped test."""
        allowed = any(name in report.keywords for name in EXPECTED)
        if report.skipped and not hasattr(report, "wasxfail") and not allowed:
            self._note(report.nodeid, report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a skipped file."""
        if report.skipped:
            self._note(report.nodeid, report.longrepr)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turn an unexpected skip into a failure."""
        if self._unexpected and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            session.exitstatus = UNEXPECTED_SKIPS

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the skips and the remedy."""
        if not self._unexpected:
            return
        terminalreporter.section("unexpected skips", red=True)
        for line in self._unexpected:
            terminalreporter.write_line(line)
        terminalreporter.write_line(
            "A skip is a failure here: install what is missing (`make setup`), or mark the test with "
            + " or ".join(EXPECTED)
        )

    def _note(self, test: str, longrepr: object) -> None:
        reason = longrepr[2] if isinstance(longrepr, tuple) else longrepr
        self._unexpected.append(f"{test}: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    """Register the guard, and restore the default action of Ctrl-C."""
    config.pluginmanager.register(Guard())
    # A shell without job control starts background programs with SIGINT ignored, which children of tests would inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose requirement this host lacks; a requirement is checked only if a test has its marker."""
    for marker, missing in EXPECTED.items():
        marked = [test for test in items if test.get_closest_marker(marker)]
        reason = missing() if marked else None
        for test in marked if reason else ():
            test.add_marker(pytest.mark.skip(reason=f"{marker}: {reason}"))
