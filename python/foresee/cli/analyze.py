# SPDX-License-Identifier: Apache-2.0
"""``foresee analyze``: the I/O time of a finished job, its bottleneck, and the changes that would meet a goal."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from foresee.cli import _plot_option
from foresee.errors import ConfigError

if TYPE_CHECKING:
    from foresee.storage.analysis import IoTable, answers

HELP = "show a job's I/O time, its bottleneck, and the changes that meet a goal"
EPILOG = (
    "Exit code 1: neither the measured runs (with --what-if, if given) nor any of --offers meet --goal. All answers "
    "assume linear scaling, so they are optimistic bounds."
)
_INPUT = re.compile(r"(\d*\.?\d+)=(.+)", flags=re.DOTALL)
_PLOTS = {
    "--plot": "draw the I/O time as bars; .svg, .png or .pdf",
    "--plot-pair": "draw the gains of --pair",
    "--plot-epochs": "draw the duration of each epoch of run folders and the I/O time of its slowest process, by cache "
    "rate",
    "--plot-epoch-bars": "draw the bars of each epoch of run folders, by cache rate",
}
_CHANGE = re.compile(r"([A-Za-z][\w-]*)=([+-]?\d+(?:\.\d+)?)%?")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="[RATE=]PATH",
        help="run folders or Darshan logs; several need the cache rate of each, 0 to 1; logs of one rate belong to one "
        "run",
    )
    parser.add_argument(
        "--tier",
        action="append",
        default=[],
        metavar="NAME=PREFIX",
        help="tier of the paths of a Darshan log: gfs=/lustre, lfs=/local; the longest prefix counts",
    )
    parser.add_argument("--epoch", type=int, metavar="N", help="only this epoch of run folders, from 0")
    parser.add_argument(
        "--between", nargs=2, type=float, metavar=("A", "B"), help="only reads between these seconds, by DXT"
    )
    parser.add_argument(
        "--what-if", nargs="+", default=[], metavar="CLASS=+N", help="percent more throughput: gfs-meta=+50"
    )
    parser.add_argument("--hit-rate", type=float, metavar="R", help="a cache rate between the measured ones")
    parser.add_argument("--goal", metavar="T", help='seconds of the slowest process: 5.5, "2 min"')
    parser.add_argument(
        "--pair", nargs=2, metavar="CLASS", help="gains that two classes need together for --goal"
    )
    parser.add_argument(
        "--offers",
        metavar="FILE",
        help="possible purchases, on top of --what-if: finds the cheapest that meets --goal",
    )
    for option, help_ in _PLOTS.items():
        _plot_option.add_to(parser, help_, option)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from foresee.cli import _analysis_report
    from foresee.storage.analysis import answers

    plots = {option: getattr(options, option[2:].replace("-", "_")) for option in _PLOTS}
    if faults := [fault for option, path in plots.items() for fault in _plot_option.check(option, path)]:
        raise ConfigError(faults)
    if options.plot_pair is not None and options.pair is None:
        raise ConfigError("--plot-pair without --pair: which two classes?")
    folders = _folders(options)
    question = _question(options)
    tables = _tables(options)
    if options.what_if:
        change = parse_change(options.what_if, next(iter(tables.values())).classes)
        question = replace(question, change=change)
    facts = {
        "inputs": options.inputs,
        **answers.answer(tables, question),
        "epochs": _epochs(options),
        "waits": _waits(options),
        "node_caches": _node_caches(options),
    }
    has_rates = any(map(_INPUT.fullmatch, options.inputs)) or options.hit_rate is not None
    if any(path is not None for path in plots.values()):
        _draw(options, facts, tables, question, folders)
    print(json.dumps(facts) if options.json else _analysis_report.report(facts, has_rates=has_rates))
    return 1 if facts["goal"] is not None and not facts["goal"]["met"] else 0


def parse_goal(text: str) -> float:
    """Return the seconds that ``--goal`` names.

    Raises:
        ConfigError: ``text`` is no time, or not above 0.
    """
    from foresee._schema.values import Time

    try:
        seconds = float(Time().read(float(text) if re.fullmatch(r"[\d.eE+-]+", text) else text))
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise ConfigError(f"--goal {text!r}: seconds above 0 expected, or a text such as 2 min")
    return seconds


def _question(options: argparse.Namespace) -> answers.Question:
    from foresee.storage.analysis import answers, offers

    if options.goal is None:
        for name in ("pair", "offers"):
            if getattr(options, name) is not None:
                raise ConfigError(f"--{name} without --goal; add --goal T")
    return answers.Question(
        goal=None if options.goal is None else parse_goal(options.goal),
        pair=None if options.pair is None else (options.pair[0], options.pair[1]),
        offers=None if options.offers is None else offers.read(options.offers),
    )


def _tables(options: argparse.Namespace) -> dict[float, IoTable]:
    """Return one table per cache rate; inputs without a rate are at 0."""
    from foresee.storage import analysis

    tiers = _tiers(options.tier)
    by_rate: dict[float, dict[str, IoTable]] = {}
    matches = [_INPUT.fullmatch(text) for text in options.inputs]
    if any(matches) and not all(matches):
        raise ConfigError(
            f"{' '.join(options.inputs)}: either every input has its cache rate, or none: 0.5=PATH"
        )
    for text in options.inputs:
        rate, path = _input(text)
        if not 0 <= rate <= 1:
            raise ConfigError(f"{text}: a cache rate from 0 to 1 expected")
        if os.path.isdir(path):
            if options.between is not None:
                raise ConfigError(f"--between needs a Darshan log, but {path} is a run folder; use --epoch")
            table = analysis.ledger.read(path, epoch=options.epoch)
        else:
            if options.epoch is not None:
                raise ConfigError(f"--epoch needs a run folder, but {path} is a file; leave --epoch out")
            between = None if options.between is None else (options.between[0], options.between[1])
            table = analysis.darshan.read(path, tiers, between=between)
        by_rate.setdefault(rate, {})[path] = table
    tables = analysis.align({rate: analysis.join(by_rate[rate]) for rate in sorted(by_rate)})
    return tables if options.hit_rate is None else _between(tables, options.hit_rate)


def _epochs(options: argparse.Namespace) -> list[dict[str, Any]] | None:
    """Return the slowest process of each epoch of a single run folder; None without epochs to compare."""
    from foresee.storage.analysis import answers, ledger

    if len(options.inputs) > 1 or options.epoch is not None or not os.path.isdir(options.inputs[0]):
        return None
    tables = ledger.read_epochs(options.inputs[0])
    if len(tables) < 2:
        return None
    return [{"epoch": epoch, "slowest": answers.slowest(table)} for epoch, table in tables.items()]


def _waits(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the waits of the training loops of run folders, by cause."""
    from foresee.storage.analysis import waits

    paths = [path for _, path in map(_input, options.inputs) if os.path.isdir(path)]
    return [{"path": path, "ranks": waits.read(path, epoch=options.epoch)} for path in paths]


def _node_caches(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the caches that the ranks of run folders shared with others of their node."""
    from foresee.storage.analysis import node_caches

    paths = [path for _, path in map(_input, options.inputs) if os.path.isdir(path)]
    return [
        {"path": path, **cache} for path in paths for cache in node_caches.read(path, epoch=options.epoch)
    ]


def _folders(options: argparse.Namespace) -> dict[float, list[str]]:
    """Return the run folders by cache rate if figures of epochs are requested; else none."""
    folders: dict[float, list[str]] = {}
    if options.plot_epochs is None and options.plot_epoch_bars is None:
        return folders
    faults = []
    if options.hit_rate is not None:
        faults.append("--plot-epochs, --plot-epoch-bars: only for measured cache rates; leave --hit-rate out")
    for text in options.inputs:
        rate, path = _input(text)
        if os.path.isfile(path):
            faults.append(f"--plot-epochs, --plot-epoch-bars: only for run folders, but {path} is a file")
        folders.setdefault(rate, []).append(path)
    if faults:
        raise ConfigError(faults)
    return folders


def _draw(
    options: argparse.Namespace,
    facts: dict[str, Any],
    tables: dict[float, IoTable],
    question: answers.Question,
    folders: dict[float, list[str]],
) -> None:
    """Write the figures that the options name."""
    from foresee.cli import _analysis_plots
    from foresee.storage.analysis import epochs

    _plot_option.write(options.plot, lambda: _analysis_plots.bars(tables, facts))
    _plot_option.write(options.plot_pair, lambda: _analysis_plots.pair(tables, question))
    if not folders:
        return
    change = facts["what_if"]
    rates = epochs.read(folders, epoch=options.epoch, change=change)
    _plot_option.write(options.plot_epochs, lambda: _analysis_plots.epochs(rates, options.inputs))
    _plot_option.write(
        options.plot_epoch_bars,
        lambda: _analysis_plots.epoch_bars(rates, options.inputs, change=change, goal=question.goal),
    )


def _input(text: str) -> tuple[float, str]:
    """Return the cache rate, 0 if ``text`` has none, and the path."""
    match = _INPUT.fullmatch(text)
    return (float(match[1]), match[2]) if match else (0.0, text)


def _between(tables: dict[float, IoTable], rate: float) -> dict[float, IoTable]:
    """Return the table at a hit rate between measured ones."""
    from foresee import storage
    from foresee.storage.analysis import IoTable, answers

    if len(tables) == 1:
        raise ConfigError(f"--hit-rate {rate}: runs at two cache rates or more expected, RATE=PATH each")
    answers.require_measured(tables)
    seconds = storage.at_rate({at: table.seconds for at, table in tables.items()}, rate)
    first = next(iter(tables.values()))
    limit = f"seconds at {rate:g} are interpolated between those of measured rates"
    limits = dict.fromkeys([limit, *(each for table in tables.values() for each in table.limits)])
    return {rate: IoTable(seconds, first.classes, first.processes, first.shared, tuple(limits))}


def _tiers(words: list[str]) -> dict[str, str]:
    faults = [f"--tier {word}: NAME=PREFIX expected, such as lfs=/local" for word in words if "=" not in word]
    tiers: dict[str, str] = {}
    for name, _, prefix in (word.partition("=") for word in words if "=" in word):
        if prefix in tiers:
            faults.append(f"--tier: {prefix} is given twice")
        tiers[prefix] = name
    if faults:
        raise ConfigError(faults)
    return tiers


def parse_change(words: Sequence[str], classes: Sequence[str]) -> list[float]:
    """Return the percent of each class that ``--what-if`` names.

    Raises:
        ConfigError: words that are no change of one of ``classes``.
    """
    percent = [0.0] * len(classes)
    faults = []
    for word in words:
        match = _CHANGE.fullmatch(word)
        if match is None or float(match[2]) <= -100:
            faults.append(f"--what-if {word}: CLASS=+N expected, percent above -100, such as gfs-meta=+50")
        elif match[1].upper() not in classes:
            faults.append(f"--what-if {word}: classes are {', '.join(classes)}")
        else:
            percent[classes.index(match[1].upper())] = float(match[2])
    if faults:
        raise ConfigError(faults)
    return percent
