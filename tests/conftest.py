# SPDX-License-Identifier: Apache-2.0
"""An unexpected skip fails: a test that does not run proves nothing.

Expected are three reasons, and those tests are skipped here, by name: the marker ``gpu`` on a machine without CUDA,
``hosts`` where nobody may make network namespaces, ``loops`` where nobody may throttle a loop device. Whatever else
skips (a missing package, a missing server, a ``skipif``) ends the session with a failure that names it.
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


#: Markers whose tests may be skipped, each with what says why they have to be; None: they need not be.
EXPECTED = {"gpu": _no_gpu, "hosts": _no_hosts, "loops": _no_loops}


#: Exit status of a session with unexpected skips: one that pytest does not use, as no test of it can be run again.
UNEXPECTED_SKIPS = 6


class Guard:
    """What was skipped without a marker that allows it.

    Goes by reports, which reach the process that sums up also where others run the tests.
    """

    def __init__(self) -> None:
        self._unexpected: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test."""
        allowed = any(name in report.keywords for name in EXPECTED)
        if report.skipped and not hasattr(report, "wasxfail") and not allowed:
            self._note(report.nodeid, report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a whole file."""
        if report.skipped:
            self._note(report.nodeid, report.longrepr)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turn an unexpected skip into a failure."""
        if self._unexpected and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            session.exitstatus = UNEXPECTED_SKIPS

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name them, and say what to do."""
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
    """Begin with nothing skipped, and with Ctrl-C heard."""
    config.pluginmanager.register(Guard())
    # A shell without job control has what it starts in the background ignore Ctrl-C, and so would all that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs more than this machine has; it is asked only if some test needs it."""
    for marker, missing in EXPECTED.items():
        needy = [test for test in items if test.get_closest_marker(marker)]
        reason = missing() if needy else None
        for test in needy if reason else ():
            test.add_marker(pytest.mark.skip(reason=f"{marker}: {reason}"))
