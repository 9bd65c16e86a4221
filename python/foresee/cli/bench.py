# SPDX-License-Identifier: Apache-2.0
"""``foresee bench``: measurements of a storage under the load of a training job."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import time
from typing import TYPE_CHECKING, Any

from foresee.cli import _plot_option
from foresee.cli._status import Status
from foresee.errors import ConfigError, PackageMissing

if TYPE_CHECKING:
    import argparse

    from foresee.storage.analysis import IoTable
    from foresee.storage.bench import BenchRequest, Measured

_HELP = "measure the storage under the load of a training job"
_STORAGE = "I/O time by class at each cache rate, of small and large files, from the origin and a local tier"
_EPILOG = (
    "Files are created in new folders within --origin and --cache and removed at the end, also after Ctrl-C. Only "
    "--throttle models a storage; give an existing slower one, such as a folder of one storage target, as another "
    "--origin. Exit code 1: no case meets --goal."
)
_FILE, _BARS, _EPOCHS, _EPOCH_BARS = "storage.json", "bars.svg", "epochs.svg", "epoch-bars.svg"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("bench", help=_HELP, description=_HELP)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    storage = actions.add_parser("storage", help=_STORAGE, description=_STORAGE, epilog=_EPILOG)
    storage.add_argument(
        "--origin",
        action="append",
        default=[],
        required=True,
        metavar="[NAME=]FOLDER",
        help="a folder on the origin; each --origin is measured separately",
    )
    storage.add_argument("--cache", required=True, metavar="FOLDER", help="a folder on the local tier")
    storage.add_argument(
        "--files",
        action="append",
        metavar="SIZE:COUNT",
        help="a data set to measure (128KiB:2048 and 12MiB:24)",
    )
    storage.add_argument("--rates", metavar="R,R,...", help="cache rates, 0 to 1 (0 to 1 in steps of 0.05)")
    storage.add_argument(
        "--throttle",
        action="append",
        default=[],
        metavar="[NAME=]RATE[,OPENS/s]",
        help="measure each origin as if it gave no more than this to all processes together: slow=60MB/s,1500/s; "
        "none: as it is",
    )
    storage.add_argument(
        "--throttle-by",
        choices=("reader", "kernel"),
        default="reader",
        help="limit by a token bucket in the reading processes, or, as root, by the kernel on a loop device whose "
        "image is made in --origin; opens are then read requests (%(default)s)",
    )
    storage.add_argument(
        "--processes", type=int, default=4, metavar="N", help="number of reading processes (%(default)s)"
    )
    storage.add_argument(
        "--epochs", type=int, default=3, metavar="N", help="epochs at each rate (%(default)s)"
    )
    storage.add_argument(
        "--shuffle",
        choices=("global", "local", "both"),
        default="both",
        help="shuffle all files in each epoch, or each process its own shard (%(default)s)",
    )
    storage.add_argument("--seed", type=int, default=0, metavar="N", help="seed of every order (%(default)s)")
    storage.add_argument(
        "--drop-caches",
        action="store_true",
        help="as root: drop the machine's pages, names and inodes before every epoch",
    )
    storage.add_argument(
        "--what-if", nargs="+", default=[], metavar="CLASS=+N", help="percent more throughput: gfs-meta=+50"
    )
    storage.add_argument("--goal", metavar="T", help='seconds of the slowest process in an epoch: 4, "2 min"')
    storage.add_argument(
        "--folder", metavar="PATH", help="results: run folders, storage.json, pictures (runs/storage-DATE)"
    )
    storage.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    storage.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    from foresee import storage
    from foresee.cli import analyze
    from foresee.storage import bench
    from foresee.storage.analysis import answers

    goal = None if options.goal is None else analyze.seconds(options.goal)
    change = analyze.change(options.what_if, storage.CLASSES) if options.what_if else None
    wanted = bench.check(
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
    folder = _folder(options.folder)
    measured, interrupted = _measured(wanted, folder)
    question = answers.Question(change=change, goal=goal)
    told = {**bench.facts(wanted, measured, question, interrupted=interrupted), "folder": folder}
    _write(told, bench.tables(wanted, measured))
    print(json.dumps(told, allow_nan=False) if options.json else _report(told))
    if interrupted:
        return 130
    return 1 if goal is not None and not any(case["answers"]["goal"]["met"] for case in told["cases"]) else 0


def _check_packages() -> None:
    """Fail before minutes of measuring if ledgers cannot be read or pictures cannot be drawn.

    Raises:
        PackageMissing: PyArrow or matplotlib is not installed.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise PackageMissing("ledgers are read with pyarrow; install it, or foresee[ledger]")
    _plot_option.need_matplotlib()


def _folder(asked: str | None) -> str:
    folder = asked or os.path.join("runs", time.strftime("storage-%Y%m%d-%H%M%S"))
    os.makedirs(folder, exist_ok=True)
    if os.listdir(folder):
        raise ConfigError(f"{folder}: not empty; a folder of its own expected, so name another with --folder")
    return folder


def _measured(wanted: BenchRequest, folder: str) -> tuple[list[Measured], bool]:
    """Measure; return the results, and whether Ctrl-C ended them early."""
    from foresee.cli._ended import like_interrupt
    from foresee.storage import bench

    done: list[Measured] = []
    progress = _Progress(len(bench.cases(wanted)) * len(wanted.rates))
    try:
        with like_interrupt():
            for each in bench.measure(wanted, folder, progress):
                done.append(each)
                progress.done = len(done)
    except KeyboardInterrupt:
        if not done:
            raise
        return done, True
    finally:
        progress.end()
    return done, False


def _write(told: dict[str, Any], tables: dict[str, dict[float, IoTable]]) -> None:
    """Into the folder: all figures, and the pictures of each case."""
    from foresee._schema import files
    from foresee.cli import _analysis_plots, _figures
    from foresee.storage.analysis import epochs

    for case in told["cases"]:
        name, answers = case["name"], case["answers"]
        change, goal = answers["what_if"], None if answers["goal"] is None else answers["goal"]["seconds"]
        apart = epochs.read({at["rate"]: [at["folder"]] for at in case["rates"]}, change=change)
        words = "" if change is None else _analysis_plots.in_words(change)
        pictures = {
            _BARS: _analysis_plots.bars(tables[name], {**answers, "inputs": [name]}),
            _EPOCHS: _analysis_plots.epochs(case["rates"], [name]),
            _EPOCH_BARS: _analysis_plots.epoch_bars(apart, [name], changes=words, goal=goal),
        }
        for picture, drawn in pictures.items():
            _figures.write(os.path.join(told["folder"], name, picture), drawn)
    files.write(os.path.join(told["folder"], _FILE), json.dumps(told, allow_nan=False, indent=1) + "\n")


def _report(told: dict[str, Any]) -> str:
    from foresee.cli import _analysis_report

    lines = ["interrupted; what was measured before:", ""] if told["interrupted"] else []
    for case in told["cases"]:
        # What holds for all of them is said once, at the end.
        answers = {**case["answers"], "epochs": None, "limits": []}
        lines += [_head(case, told), _analysis_report.report(answers, rated=True).rstrip()]
        lines += [f"epochs took, in seconds: {_epochs(case)}", ""]
    limits = dict.fromkeys([*told["limits"], *told["cases"][0]["answers"]["limits"]])
    lines += [f"- {limit}" for limit in limits]
    case = told["cases"][0]
    # What brings a case back, with any other question.
    inputs = " ".join(shlex.quote(f"{each['rate']:g}={each['folder']}") for each in case["rates"][:2])
    more = " ..." if len(case["rates"]) > 2 else ""
    lines += ["", f"{told['folder']}: storage.json, pictures, and run folders:"]
    lines.append(f"foresee analyze --epoch {told['epoch']} {inputs}{more}")
    return "\n".join(lines)


def _head(case: dict[str, Any], told: dict[str, Any]) -> str:
    size = case["file_bytes"] * case["files"] / 1e6
    processes = told["asked"]["processes"]
    return f"{case['name']}: {case['files']:,} files, {size:,.0f} MB, {processes} processes, epoch {told['epoch']}"


def _epochs(case: dict[str, Any]) -> str:
    """The last process's end, by rate."""
    return "; ".join(
        f"{each['rate']:g}: " + " ".join(f"{epoch['seconds']:.3g}" for epoch in each["epochs"])
        for each in case["rates"]
    )


class _Progress:
    """Show the current measurement and the estimated time that is left."""

    def __init__(self, whole: int) -> None:
        self.done = 0
        self._whole = whole
        self._began: float | None = None
        self._status = Status()

    def __call__(self, what: str) -> None:
        now = time.monotonic()
        if self._began is None and "epoch" in what:
            self._began = now
        left = ""
        if self.done and self._began is not None:
            left = f", about {(now - self._began) * (self._whole - self.done) / self.done:.0f} s left"
        self._status.show(what + left)

    def end(self) -> None:
        self._status.end()
