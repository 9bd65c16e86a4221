# SPDX-License-Identifier: Apache-2.0
"""``foresee bench storage``: measure a storage under the load of a training job."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import time
from typing import TYPE_CHECKING, Any

from foresee.cli import _plot_option
from foresee.cli._run_folder import make_run_folder
from foresee.cli._status import Status
from foresee.errors import PackageMissing

if TYPE_CHECKING:
    from foresee.storage.analysis import IoTable
    from foresee.storage.bench import BenchRequest, RateResult

HELP = "I/O time by class at each cache rate, of small and large files, from the origin and a local tier"
EPILOG = (
    "Files are created in new folders within --origin and --cache and removed at the end, also after Ctrl-C. Only "
    "--throttle models a storage; give an existing slower one, such as a folder of one storage target, as another "
    "--origin. Exit code 1: no case meets --goal."
)
_FILE, _BARS, _EPOCHS, _EPOCH_BARS = "storage.json", "bars.svg", "epochs.svg", "epoch-bars.svg"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--origin",
        action="append",
        default=[],
        required=True,
        metavar="[NAME=]FOLDER",
        help="a folder on the origin; each --origin is measured separately",
    )
    parser.add_argument("--cache", required=True, metavar="FOLDER", help="a folder on the local tier")
    parser.add_argument(
        "--files",
        action="append",
        metavar="SIZE:COUNT",
        help="a data set to measure (128KiB:2048 and 12MiB:24)",
    )
    parser.add_argument("--rates", metavar="R,R,...", help="cache rates, 0 to 1 (0 to 1 in steps of 0.05)")
    parser.add_argument(
        "--throttle",
        action="append",
        default=[],
        metavar="[NAME=]RATE[,OPENS/s]",
        help="limit each origin to this rate for all processes together: slow=60MB/s,1500/s; none: no limit",
    )
    parser.add_argument(
        "--throttle-by",
        choices=("reader", "kernel"),
        default="reader",
        help="limit by a token bucket in the reading processes, or, as root, by the kernel on a loop device whose "
        "image is made in --origin; opens are then read requests (%(default)s)",
    )
    parser.add_argument(
        "--processes", type=int, default=4, metavar="N", help="number of reading processes (%(default)s)"
    )
    parser.add_argument(
        "--epochs", type=int, default=3, metavar="N", help="epochs at each rate (%(default)s)"
    )
    parser.add_argument(
        "--shuffle",
        choices=("global", "local", "both"),
        default="both",
        help="shuffle all files in each epoch, or each process its own shard (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of every order (%(default)s)")
    parser.add_argument(
        "--drop-caches",
        action="store_true",
        help="as root: drop the machine's pages, names and inodes before every epoch",
    )
    parser.add_argument(
        "--what-if", nargs="+", default=[], metavar="CLASS=+N", help="percent more throughput: gfs-meta=+50"
    )
    parser.add_argument("--goal", metavar="T", help='seconds of the slowest process in an epoch: 4, "2 min"')
    parser.add_argument(
        "--folder", metavar="PATH", help="results: run folders, storage.json, pictures (runs/storage-DATE)"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from foresee import storage
    from foresee.cli import analyze
    from foresee.storage import bench
    from foresee.storage.analysis import answers

    goal = None if options.goal is None else analyze.parse_goal(options.goal)
    change = analyze.parse_change(options.what_if, storage.CLASSES) if options.what_if else None
    request = bench.check(
        origins=options.origin,
        cache=options.cache,
        files=options.files or bench.FILES,
        rates=options.rates,
        throttles=options.throttle,
        processes=options.processes,
        epochs=options.epochs,
        shuffles=bench.SHUFFLES if options.shuffle == "both" else (options.shuffle,),
        seed=options.seed,
        drop_caches=options.drop_caches,
        throttle_by=options.throttle_by,
    )
    _check_packages()
    folder = make_run_folder(options.folder, "storage", time.localtime())
    results, is_interrupted = _measure(request, folder)
    question = answers.Question(change=change, goal=goal)
    facts = bench.facts(request, results, question, interrupted=is_interrupted) | {"folder": folder}
    _write(facts, bench.tables(request, results), goal)
    print(json.dumps(facts, allow_nan=False) if options.json else _report(facts))
    if is_interrupted:
        return 130
    return 0 if goal is None or any(case["answers"]["goal"]["met"] for case in facts["cases"]) else 1


def _check_packages() -> None:
    """Fail before the measurement if ledgers cannot be read or figures cannot be drawn.

    Raises:
        PackageMissing: PyArrow or matplotlib is not installed.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise PackageMissing("ledgers are read with pyarrow; install it, or foresee[ledger]")
    _plot_option.need_matplotlib()


def _measure(request: BenchRequest, folder: str) -> tuple[list[RateResult], bool]:
    """Measure; return the results, and whether Ctrl-C ended them early."""
    from foresee.cli._signals import signals_as_interrupt
    from foresee.storage import bench

    results: list[RateResult] = []
    progress = _Progress(len(bench.cases(request)) * len(request.rates))
    try:
        with signals_as_interrupt():
            for each in bench.measure(request, folder, progress):
                results.append(each)
                progress.done = len(results)
    except KeyboardInterrupt:
        if not results:
            raise
        return results, True
    finally:
        progress.end()
    return results, False


def _write(facts: dict[str, Any], tables: dict[str, dict[float, IoTable]], goal: float | None) -> None:
    """Write the results and the figures of each case into the folder."""
    from foresee._schema import files
    from foresee.cli import _analysis_plots, _figures
    from foresee.storage.analysis import epochs

    for case in facts["cases"]:
        name, answers = case["name"], case["answers"]
        change = answers["what_if"]
        by_epoch = epochs.read({at["rate"]: [at["folder"]] for at in case["rates"]}, change=change)
        figures = {
            _BARS: _analysis_plots.bars(tables[name], {**answers, "inputs": [name]}),
            _EPOCHS: _analysis_plots.epochs(case["rates"], [name]),
            _EPOCH_BARS: _analysis_plots.epoch_bars(by_epoch, [name], change=change, goal=goal),
        }
        for file, figure in figures.items():
            _figures.write(os.path.join(facts["folder"], name, file), figure)
    files.write(os.path.join(facts["folder"], _FILE), json.dumps(facts, allow_nan=False, indent=1) + "\n")


def _report(facts: dict[str, Any]) -> str:
    from foresee.cli import _analysis_report

    lines = ["interrupted; what was measured before:", ""] if facts["interrupted"] else []
    for case in facts["cases"]:
        # Limits that hold for all cases follow once, at the end.
        answers = {**case["answers"], "epochs": None, "limits": []}
        size = case["file_bytes"] * case["files"] / 1e6
        epochs = (
            f"{each['rate']:g}: " + " ".join(f"{epoch['seconds']:.3g}" for epoch in each["epochs"])
            for each in case["rates"]
        )
        head = f"{case['name']}: {case['files']:,} files, {size:,.0f} MB, {facts['asked']['processes']} processes"
        lines += [
            f"{head}, epoch {facts['epoch']}",
            _analysis_report.report(answers, has_rates=True).rstrip(),
            f"epochs took, in seconds: {'; '.join(epochs)}",
            "",
        ]
    limits = dict.fromkeys([*facts["limits"], *facts["cases"][0]["answers"]["limits"]])
    lines += [f"- {limit}" for limit in limits]
    case = facts["cases"][0]
    # A command that analyzes the first case again.
    inputs = " ".join(shlex.quote(f"{each['rate']:g}={each['folder']}") for each in case["rates"][:2])
    more = " ..." if len(case["rates"]) > 2 else ""
    lines += ["", f"{facts['folder']}: storage.json, pictures, and run folders:"]
    return "\n".join([*lines, f"foresee analyze --epoch {facts['epoch']} {inputs}{more}"])


class _Progress:
    """Show the current measurement and the estimated time that is left."""

    def __init__(self, total: int) -> None:
        self.done = 0
        self._total = total
        self._began: float | None = None
        self._status = Status()

    def __call__(self, what: str) -> None:
        now = time.monotonic()
        if self._began is None and "epoch" in what:
            self._began = now
        left = ""
        if self.done and self._began is not None:
            left = f", about {(now - self._began) * (self._total - self.done) / self.done:.0f} s left"
        self._status.show(what + left)

    def end(self) -> None:
        self._status.end()
