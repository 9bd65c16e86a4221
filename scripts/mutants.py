#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mutation tests of the deciders: make one small change at a time, and report which ones the tests detect.

A mutant is one small change of the source: another operator, another number, a function that returns a default. Its
diff identifies it, so the mutants of an earlier run apply to a later tree (`--from`). Each mutant is written into the
working tree, which must have no uncommitted changes there, and removed after its tests. After a `kill -9`, `git
restore` removes it. docs/notes/030-mutants.md shows how to run this. Exit status: 0 all caught or unviable, 1 some
survived, 3 the run could not start.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from mutations import MODEL_PLACES, MODELS, Mutant, apply, python_mutants, run, rust_mutants
from steps import ROOT, Failed

#: Crates to change, and the crates with tests that run if the crate's own tests pass.
CRATES = {
    "foresee-data-order": ["foresee-sim", "foresee-data-loader"],
    "foresee-data-plan": ["foresee-sim", "foresee-data-loader"],
    "foresee-data-fetch": ["foresee-data-loader"],
    "foresee-grad-queue": ["foresee-sim", "foresee-grad-exchange"],
    "foresee-model": ["foresee-data-plan", "foresee-sim", "foresee-data-loader"],
}
#: Unit tests of the Python models, which import nothing else of the package that takes long.
PYTHON_TESTS = (
    "*model*",
    "storage_*",
    "stagger_laws",
    "stagger_steps",
    "stagger_timing",
    "prices",
    "sizing",
)
#: Address space of each command in bytes, because a mutant may allocate without bound.
MEMORY = 8 << 30
#: Maximum seconds of a build.
BUILD_LIMIT = 3600
RESULTS = ROOT / "target" / "mutants.json"
RUST_TEST = "cargo test --locked --quiet"
PYTHON_TEST = f"{shlex.quote(sys.executable)} -m pytest -x -q -p no:cacheprovider"
FAILED = re.compile(
    r"^(?:---- (.+) stdout ----|test (\S+) \.\.\. FAILED|(?:FAILED|ERROR) (\S+))", re.MULTILINE
)


def main() -> int:
    """Select or read the mutants, test each, and print the table."""
    options = arguments()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        mutants = chosen(options)
        require_committed()
        for number, mutant in enumerate(mutants, 1):
            packages = [mutant.package, *CRATES.get(mutant.package, [])][: 1 if options.own_tests else None]
            if mutant.outcome in ("", "survived") and not set(packages) <= set(mutant.passed):
                began = time.monotonic()
                examine(mutant, packages, options)
                mutant.seconds = round(mutant.seconds + time.monotonic() - began, 1)
                save(mutants, options.results)
            print(
                f"{number}/{len(mutants)} {mutant.outcome}: {mutant.file}: {mutant.change}",
                file=sys.stderr,
                flush=True,
            )
    except (Failed, OSError, ValueError, subprocess.SubprocessError) as failed:
        print(f"mutants: {failed}", file=sys.stderr)
        return 3
    print(json.dumps([asdict(mutant) for mutant in mutants], indent=1) if options.json else table(mutants))
    return int(any(mutant.outcome == "survived" for mutant in mutants))


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--seed", type=int, default=30, help="seed of the random selection (default: 30)")
    add("--count", type=int, default=60, help="mutants of five crates and Python (default: 60)")
    add("--from", dest="source", type=Path, metavar="FILE", help="mutants of earlier results")
    add("--only-survivors-of", type=Path, metavar="FILE", help="survivors of earlier results")
    add("--results", type=Path, default=RESULTS, help="file to write; an existing one is continued")
    add("--json", action="store_true", help="print JSON, not a table")
    add("--own-tests", action="store_true", help="run no tests of dependent crates")
    add("--limit", type=float, default=300, help="seconds for the tests of a package (default: 300)")
    add("--rust-test", default=RUST_TEST, help="command before `-p CRATE`; to build, `--no-run` ends it")
    add("--python-test", default=PYTHON_TEST, help="command before the test files")
    add("--cargo-mutants", default="cargo-mutants", help="program that lists mutants of a crate")
    return parser.parse_args()


def require_committed() -> None:
    """Raise ``Failed`` for a tree with uncommitted changes of mutated files."""
    places = [*MODEL_PLACES, *(f"crates/{crate}" for crate in CRATES)]
    changed = run(["git", "status", "--porcelain", "--untracked-files=no", "--", *places])
    if changed:
        raise Failed(f"commit or restore first: {' '.join(changed.split())}")


def chosen(options: argparse.Namespace) -> list[Mutant]:
    """Return the mutants of the results file, else those of the given file, else a random selection."""
    if options.results.exists():
        return load(options.results)
    source: Path | None = options.only_survivors_of or options.source
    if source is not None:
        found = [m for m in load(source) if m.outcome == "survived" or not options.only_survivors_of]
        mutants = [Mutant(m.package, m.file, m.function, m.change, m.diff) for m in found]
    else:
        mutants = []
        for nth, package in enumerate((*CRATES, MODELS)):
            every = python_mutants() if package == MODELS else rust_mutants(package, options.cargo_mutants)
            share = (options.count + nth) // (len(CRATES) + 1)
            mutants += random.Random(f"{options.seed} {package}").sample(every, share)  # noqa: S311 - no secret
    save(mutants, options.results)
    return mutants


def examine(mutant: Mutant, packages: list[str], options: argparse.Namespace) -> None:
    """Write a mutant into the tree, run the tests of each package until some fail, restore the file."""
    path = ROOT / mutant.file
    text = path.read_text() if path.exists() else ""
    changed = apply(mutant.diff, text)
    if changed is None:
        mutant.outcome = "absent"
        return
    seeds = proptest_seeds()
    try:
        path.write_text(changed)
        for package in packages:
            if package not in mutant.passed:
                mutant.outcome, mutant.failed = run_tests(package, options)
                if mutant.outcome != "survived":
                    return
                mutant.passed.append(package)
    finally:
        path.write_text(text)
        for fresh in proptest_seeds() - seeds:
            fresh.unlink()


def proptest_seeds() -> set[Path]:
    """Return proptest's files of failed inputs: with them, one mutant would help to catch the next."""
    found = {
        *(ROOT / "crates").rglob("*.proptest-regressions"),
        *(ROOT / "crates").rglob("proptest-regressions/**/*.txt"),
    }
    return {path for path in found if path.is_file()}


def run_tests(package: str, options: argparse.Namespace) -> tuple[str, list[str]]:
    """Return the outcome of a package's tests, and the failed ones."""
    if package == MODELS:
        files = {
            str(path) for name in PYTHON_TESTS for path in (ROOT / "tests" / "unit").rglob(f"test_{name}.py")
        }
        command = [*shlex.split(options.python_test), *sorted(files)]
    else:
        command = [*shlex.split(options.rust_test), "-p", package]
        if run_limited([*command, "--no-run"], BUILD_LIMIT)[0] != 0:
            return "unviable", []
    status, output = run_limited(command, options.limit)
    if status is None:
        return "timeout", []
    names = [next(filter(None, found)) for found in FAILED.findall(output)]
    return ("caught", sorted(set(names))[:3] or [f"status {status}"]) if status else ("survived", [])


def run_limited(command: list[str], limit: float) -> tuple[int | None, str]:
    """Return a command's status and output; None: it exceeded the limit and was killed with its children."""
    with (
        # For the failed inputs of Hypothesis.
        tempfile.TemporaryDirectory() as examples,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_STORAGE_DIRECTORY": examples},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            output = process.communicate(timeout=limit)[0]
        except BaseException as failed:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(failed, subprocess.TimeoutExpired):
                return None, ""
            raise
    return process.returncode, output


def load(path: Path) -> list[Mutant]:
    """Read the mutants of a results file."""
    return [Mutant(**one) for one in json.loads(path.read_text())]


def save(mutants: list[Mutant], path: Path) -> None:
    """Replace a results file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps([asdict(mutant) for mutant in mutants], indent=1) + "\n")
    fresh.replace(path)


def table(mutants: list[Mutant]) -> str:
    """Return a Markdown table with the counts."""
    lines = ["| file | function | change | outcome | by |", "|---|---|---|---|---|"]
    for mutant in mutants:
        file = mutant.file.removeprefix("crates/").replace("/src/", "/").removeprefix("python/")
        cells = [file, mutant.function, mutant.change, mutant.outcome, ", ".join(mutant.failed[:1])]
        lines.append("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |")
    outcomes = [mutant.outcome for mutant in mutants]
    return "\n".join([*lines, "", ", ".join(f"{outcomes.count(one)} {one}" for one in sorted(set(outcomes)))])


if __name__ == "__main__":
    sys.exit(main())
