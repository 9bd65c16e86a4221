#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the tests of both languages, class by class, and write a log of their durations.

``unit`` tests run in parallel and are never repeated. A ``process`` test that fails runs once more, alone, in a second
invocation: if it passes then, it is flaky. Flaky tests are listed with their first failure, and three of them fail the
run. ``soak`` tests run only on request, with inputs from new seeds.
Exit status: 0 good, 1 tests failed, 3 something could not be built or started.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import crates
import setup
from durations import RunLog
from runner import Runner
from steps import ROOT, Failed, build_environment

CLASSES = ("unit", "process", "soak")


def main(arguments: Sequence[str]) -> int:
    """Read the arguments, run the classes, print the summary and write the log."""
    parser = argparse.ArgumentParser(description="Run the tests of both languages, class by class.")
    parser.add_argument(
        "classes", nargs="*", metavar="CLASS", help="unit, process or soak; default: unit process"
    )
    classes = parser.parse_args(arguments).classes or ["unit", "process"]
    if unknown := set(classes) - set(CLASSES):
        parser.error(f"unknown class: {', '.join(sorted(unknown))}; one of {', '.join(CLASSES)} expected")
    if "soak" in classes:
        os.environ["FORESEE_SOAK"] = "1"
    runner = Runner(RunLog(), invoke, oldest_torch=setup.OLDEST / "bin" / "pytest")
    try:
        with runner.phase("setup"):
            setup.prepare(setup.prepare_oldest_torch)
        runner.build()
        crates.save()
        for each in classes:
            runner.run(each)
    except Failed as failed:
        print(f"test: {failed}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    finally:
        runner.log.save()
    print("\n".join(["", *runner.summary()]))
    return 1 if runner.failed() else 0


def invoke(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a test runner in the checkout's root, and return its exit status."""
    environment = {**build_environment(), **environment}
    # Tests start hundreds of interpreters, each of which would compile the package.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
