# SPDX-License-Identifier: Apache-2.0
"""``foresee analyze``: where a finished job's I/O time went, what holds it back, and what would meet a goal."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from foresee.cli import _plot_option
from foresee.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from foresee.storage.analysis import IoTable, answers

_HELP = "show a job's I/O time, its bottleneck, and the changes that meet a goal"
_EPILOG = (
    "Exit code 1: neither the measured runs (with --what-if, if given) nor any of --offers meet --goal. All answers "
    "assume linear scaling, so they are optimistic bounds."
)
_INPUT = re.compile(r"(\d*\.?\d+)=(.+)", flags=re.DOTALL)
_CHANGE = re.compile(r"([A-Za-z][\w-]*)=([+-]?\d+(?:\.\d+)?)%?")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("analyze", help=_HELP, description=_HELP, epilog=_EPILOG)
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="[RATE=]PATH",
        help="run folders or Darshan logs, with the cache rate of each, 0 to 1, where there are several; logs of one "
        "rate are one run's",
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
    parser.add_argument("--plot-pair", metavar=_plot_option.METAVAR, help="draw the gains of --pair")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.add_argument(
        "--plot", metavar=_plot_option.METAVAR, help="draw the I/O time as bars; .svg, .png or .pdf"
    )
    parser.add_argument(
        "--plot-epochs",
        metavar=_plot_option.METAVAR,
        help="draw the duration of each epoch of run folders and the I/O time of its slowest process, by cache rate",
    )
    parser.add_argument(
        "--plot-epoch-bars",
        metavar=_plot_option.METAVAR,
        help="draw the bars of each epoch of run folders, by cache rate",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    from foresee.cli import _analysis_report
    from foresee.storage.analysis import answers

    pictures = {
        "--plot": options.plot,
        "--plot-pair": options.plot_pair,
        "--plot-epochs": options.plot_epochs,
        "--plot-epoch-bars": options.plot_epoch_bars,
    }
    if faults := [fault for name, path in pictures.items() for fault in _plot_option.check(name, path)]:
        raise ConfigError(faults)
    if options.plot_pair is not None and options.pair is None:
        raise ConfigError("--plot-pair without --pair: which two classes?")
    folders = _folders(options)
    question = _question(options)
    tables = _tables(options)
    if options.what_if:
        question = replace(question, change=change(options.what_if, next(iter(tables.values())).classes))
    facts = {"inputs": options.inputs, **answers.answer(tables, question), "epochs": _epochs(options)}
    facts["waits"] = _waits(options)
    rated = any(map(_INPUT.fullmatch, options.inputs)) or options.hit_rate is not None
    if any(path is not None for path in pictures.values()):
        _draw(options, facts, tables, question, folders)
    print(json.dumps(facts) if options.json else _analysis_report.report(facts, rated=rated))
    return 1 if facts["goal"] is not None and not facts["goal"]["met"] else 0


def _goal(options: argparse.Namespace) -> float | None:
    if options.goal is None:
        for name in ("pair", "offers"):
            if getattr(options, name) is not None:
                raise ConfigError(f"--{name} without --goal: what is to be met?")
        return None
    return seconds(options.goal)


def seconds(text: str) -> float:
    """The time that ``--goal`` names.

    Raises:
        ConfigError: it is none, or not above 0.
    """
    from foresee._schema.values import Time

    try:
        told = float(Time().read(float(text) if re.fullmatch(r"[\d.eE+-]+", text) else text))
    except ValueError:
        told = 0.0
    if told <= 0:
        raise ConfigError(f"--goal {text!r}: seconds above 0 expected, or a text such as 2 min")
    return told


def _question(options: argparse.Namespace) -> answers.Question:
    from foresee.storage.analysis import answers, offers

    goal = _goal(options)
    book = None if options.offers is None else offers.read(options.offers)
    pair = None if options.pair is None else (options.pair[0], options.pair[1])
    return answers.Question(goal=goal, pair=pair, offers=book)


def _tables(options: argparse.Namespace) -> dict[float, IoTable]:
    """One table per cache rate; a single one stands at 0."""
    from foresee.storage import analysis

    tiers = _tiers(options.tier)
    by_rate: dict[float, dict[str, IoTable]] = {}
    rated = [_INPUT.fullmatch(text) for text in options.inputs]
    if any(rated) and not all(rated):
        raise ConfigError(
            f"{' '.join(options.inputs)}: either every input has its cache rate, or none: 0.5=PATH"
        )
    for text in options.inputs:
        rate, path = _input(text)
        if not 0 <= rate <= 1:
            raise ConfigError(f"{text}: a cache rate from 0 to 1 expected")
        if os.path.isdir(path):
            if options.between is not None:
                raise ConfigError(f"--between is of Darshan logs, and {path} is a run folder; give --epoch")
            table = analysis.ledger.read(path, epoch=options.epoch)
        else:
            if options.epoch is not None:
                raise ConfigError(
                    f"--epoch is of run folders, and {path} is a file; a Darshan log knows no epochs"
                )
            between = None if options.between is None else (options.between[0], options.between[1])
            table = analysis.darshan.read(path, tiers, between=between)
        by_rate.setdefault(rate, {})[path] = table
    tables = analysis.align({rate: analysis.join(by_rate[rate]) for rate in sorted(by_rate)})
    return tables if options.hit_rate is None else _between(tables, options.hit_rate)


def _epochs(options: argparse.Namespace) -> list[dict[str, Any]] | None:
    """Of a single run folder, each epoch's slowest process; None where there are no epochs to compare."""
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


def _folders(options: argparse.Namespace) -> dict[float, list[str]]:
    """Run folders by cache rate, where pictures of epochs are asked for; else none."""
    folders: dict[float, list[str]] = {}
    if options.plot_epochs is None and options.plot_epoch_bars is None:
        return folders
    faults = []
    if options.hit_rate is not None:
        faults.append("--plot-epochs, --plot-epoch-bars: of measured cache rates only; leave --hit-rate out")
    for text in options.inputs:
        rate, path = _input(text)
        if os.path.isfile(path):
            faults.append(f"--plot-epochs, --plot-epoch-bars: of run folders only, and {path} is a file")
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
    """Write the pictures that the options name."""
    from foresee.cli import _analysis_plots, _figures
    from foresee.storage.analysis import epochs

    if options.plot is not None:
        _figures.write(options.plot, _analysis_plots.bars(tables, facts))
    if options.plot_pair is not None:
        _figures.write(options.plot_pair, _analysis_plots.pair(tables, question))
    if not folders:
        return
    change = facts["what_if"]
    rates = epochs.read(folders, epoch=options.epoch, change=change)
    if options.plot_epochs is not None:
        _figures.write(options.plot_epochs, _analysis_plots.epochs(rates, options.inputs))
    if options.plot_epoch_bars is not None:
        goal = None if facts["goal"] is None else facts["goal"]["seconds"]
        words = "" if change is None else _analysis_plots.in_words(change)
        picture = _analysis_plots.epoch_bars(rates, options.inputs, changes=words, goal=goal)
        _figures.write(options.plot_epoch_bars, picture)


def _input(text: str) -> tuple[float, str]:
    """Cache rate and path; a rate that is not told is 0."""
    match = _INPUT.fullmatch(text)
    return (float(match[1]), match[2]) if match else (0.0, text)


def _between(tables: dict[float, IoTable], rate: float) -> dict[float, IoTable]:
    """The table at a hit rate that was not measured."""
    from foresee import storage
    from foresee.storage.analysis import IoTable, answers

    if len(tables) == 1:
        raise ConfigError(f"--hit-rate {rate}: runs at two cache rates or more expected, RATE=PATH each")
    answers.measured(tables)
    seconds = storage.at_rate({at: table.seconds for at, table in tables.items()}, rate)
    first = next(iter(tables.values()))
    limit = f"seconds at {rate:g} lie on lines between those of measured rates"
    limits = dict.fromkeys([limit, *(each for table in tables.values() for each in table.limits)])
    return {rate: IoTable(seconds, first.classes, first.processes, first.shared, tuple(limits))}


def _tiers(words: list[str]) -> dict[str, str]:
    faults = [f"--tier {word}: NAME=PREFIX expected, such as lfs=/local" for word in words if "=" not in word]
    pairs = [(word.split("=", 1)[1], word.split("=", 1)[0]) for word in words if "=" in word]
    faults += [
        f"--tier: {prefix} stands twice" for i, (prefix, _) in enumerate(pairs) if prefix in dict(pairs[:i])
    ]
    if faults:
        raise ConfigError(faults)
    return dict(pairs)


def change(words: Sequence[str], classes: Sequence[str]) -> list[float]:
    """Percent by class, as ``--what-if`` has them.

    Raises:
        ConfigError: all words that are no change of one of ``classes``.
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
