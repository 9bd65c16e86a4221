# SPDX-License-Identifier: Apache-2.0
"""An unexpected skip fails: a test that does not run proves nothing.

Expected is one reason alone, the marker ``gpu`` on a machine without CUDA, and those tests are skipped here, by name.
Whatever else skips (a missing package, a missing server, a ``skipif``) ends the session with a failure that names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Markers whose tests may be skipped.
EXPECTED = ("gpu",)

_unexpected = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin with nothing skipped."""
    config.stash[_unexpected] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; torch is asked only if some test needs one."""
    needy = [test for test in items if test.get_closest_marker("gpu")]
    if not needy:
        return
    import torch

    if not torch.cuda.is_available():
        for test in needy:
            test.add_marker(pytest.mark.skip(reason="gpu: no CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note tests that were skipped without a marker that allows it."""
    report: pytest.TestReport = yield
    allowed = any(item.get_closest_marker(name) for name in EXPECTED)
    if report.skipped and not hasattr(report, "wasxfail") and not allowed:
        item.config.stash[_unexpected].append(f"{report.nodeid}: {_reason(report.longrepr)}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Note whole files that were skipped."""
    report: pytest.CollectReport = yield
    if report.skipped:
        collector.config.stash[_unexpected].append(f"{report.nodeid}: {_reason(report.longrepr)}")
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Turn an unexpected skip into a failure."""
    if session.config.stash[_unexpected] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name them, and say what to do."""
    if not config.stash[_unexpected]:
        return
    terminalreporter.section("unexpected skips", red=True)
    for line in config.stash[_unexpected]:
        terminalreporter.write_line(line)
    terminalreporter.write_line(
        "A skip is a failure here: install what is missing (`make setup`), or mark the test with "
        + " or ".join(EXPECTED)
    )


def _reason(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
