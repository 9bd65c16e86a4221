#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Durations of the tests: the log of a test run, and its tables.

`scripts/test.py` writes the log; this script prints the sums per class, the phases and the slowest tests of the last
run. `--json` prints the log unchanged. `--check` exits with 1 if a test exceeded the limit of its class; ordinary runs
only list such tests, because durations depend on the load of the host. Exit status: 0 good, 1 a test is over its
limit (with `--check`), 3 there is no log.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from steps import ROOT

LOG = ROOT / "target" / "tests" / "durations.json"
VERSION = 1
#: Maximum seconds of a test of each class on an idle host.
LIMITS = {"unit": 1.0, "process": 20.0}
SLOWEST = 20


@dataclass(frozen=True)
class Result:
    """One test of one run. ``seconds`` is wall time, including the fixtures."""

    test: str
    kind: str
    language: str
    seconds: float
    outcome: str
    """``passed``, ``failed``, ``skipped``, or ``flaky``: failed, then passed in the second run."""
    failure: str = ""
    """Output of the first failure."""


@dataclass
class RunLog:
    """Log of a test run: seconds of each phase, in order, and all results."""

    phases: list[tuple[str, float]] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    def save(self, path: Path = LOG) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "version": VERSION,
            "phases": self.phases,
            "results": [asdict(each) for each in self.results],
        }
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path = LOG) -> RunLog:
        """Read a log.

        Raises:
            FileNotFoundError: there is no log.
            ValueError: it has another version.
        """
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("version") != VERSION:
            raise ValueError(
                f"{path} has version {content.get('version')}, {VERSION} expected: run `make test` again"
            )
        phases = [(str(name), float(seconds)) for name, seconds in content["phases"]]
        return cls(phases, [Result(**each) for each in content["results"]])

    def over_limit(self) -> list[Result]:
        """Return the tests over the limit of their class."""
        return [each for each in self.results if each.seconds > LIMITS.get(each.kind, float("inf"))]


def tables(log: RunLog) -> Iterable[str]:
    """Return lines of three tables: the classes, the phases and the slowest tests."""
    yield "class     language  tests  sum s  longest s"
    groups = sorted({(each.kind, each.language) for each in log.results})
    for kind, language in groups:
        seconds = [each.seconds for each in log.results if (each.kind, each.language) == (kind, language)]
        yield f"{kind:<9} {language:<8} {len(seconds):>6} {sum(seconds):>6.1f} {max(seconds):>10.2f}"
    yield ""
    yield from phase_table(log)
    yield ""
    yield from slowest_table(log)


def phase_table(log: RunLog) -> Iterable[str]:
    """Return the seconds of each phase."""
    yield "phase                    seconds"
    for name, seconds in log.phases:
        yield f"{name:<24} {seconds:>7.1f}"
    yield f"{'all':<24} {sum(seconds for _, seconds in log.phases):>7.1f}"


def slowest_table(log: RunLog) -> Iterable[str]:
    """Return the slowest tests, and those over the limit of their class."""
    yield f"{SLOWEST} slowest tests"
    slowest = sorted(log.results, key=lambda each: -each.seconds)[:SLOWEST]
    yield from (_line(each) for each in slowest)
    if over := log.over_limit():
        limits = ", ".join(f"{kind} {seconds:g} s" for kind, seconds in LIMITS.items())
        yield f"{len(over)} over the limit of their class ({limits})"
        yield from (_line(each) for each in over if each not in slowest)


def _line(result: Result) -> str:
    return f"{result.seconds:>8.2f} s  {result.kind:<8} {result.test}"


def main(arguments: Sequence[str]) -> int:
    """Print the last log."""
    parser = argparse.ArgumentParser(description="Print the durations of the last test run.")
    parser.add_argument("--json", action="store_true", help="print the log as JSON")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a test is over the limit of its class"
    )
    chosen = parser.parse_args(arguments)
    try:
        log = RunLog.load()
    except (FileNotFoundError, ValueError) as error:
        print(f"durations: {error}; `make test` writes one", file=sys.stderr)
        return 3
    print(LOG.read_text(encoding="utf-8") if chosen.json else "\n".join(tables(log)))
    return 1 if chosen.check and log.over_limit() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
