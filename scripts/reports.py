# SPDX-License-Identifier: Apache-2.0
"""Readers of test reports: nextest's JUnit file, and the lines of pytest-reportlog."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

from durations import Result


def junit_results(report: Path, kind: str) -> Iterator[Result]:
    """Return the results in nextest's JUnit file."""
    for suite in ET.parse(report).getroot().iter("testsuite"):  # noqa: S314 - nextest wrote it
        for case in suite.iter("testcase"):
            faults = [*case.iter("failure"), *case.iter("error")]
            texts = [fault.get("message", "") for fault in faults]
            texts += [each.text or "" for name in ("system-out", "system-err") for each in case.iter(name)]
            yield Result(
                test=f"{suite.get('name')} {case.get('name')}",
                kind=kind,
                language="rust",
                seconds=float(case.get("time", "0")),
                outcome="failed" if faults else "passed",
                failure="\n".join(texts) if faults else "",
            )


def report_log_results(report: Path, kind: str) -> Iterator[Result]:
    """Return the results in the lines of pytest-reportlog: one per test, over its set-up, call and tear-down."""
    seconds: dict[str, float] = {}
    outcomes: dict[str, str] = {}
    failures: dict[str, str] = {}
    for line in report.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry.get("$report_type") != "TestReport":
            continue
        test, outcome = entry["nodeid"], entry["outcome"]
        seconds[test] = seconds.get(test, 0.0) + entry["duration"]
        if outcome == "failed":
            failures.setdefault(test, _text(entry["longrepr"]))
        if outcomes.get(test) != "failed" and (outcome != "passed" or test not in outcomes):
            outcomes[test] = outcome
    for test, taken in seconds.items():
        yield Result(test, kind, "python", taken, outcomes[test], failures.get(test, ""))


def _text(longrepr: object) -> str:
    """Format a failure as pytest prints it."""
    if isinstance(longrepr, dict) and isinstance(longrepr.get("reprcrash"), dict):
        crash = longrepr["reprcrash"]
        return f"{crash.get('path')}:{crash.get('lineno')}: {crash.get('message')}"
    return str(longrepr)
