# SPDX-License-Identifier: Apache-2.0
"""``foresee reuse``: how often one rank reads a sample of a shuffled data set: expected, counted and drawn.

The three answers come from the exact distribution, from the order of a run with that seed, and from Monte Carlo draws,
in which every epoch assigns each sample to a random rank. A cache of each rank pays off because over many epochs one
rank reads some samples far more often than others.

Source: Dryden et al., "Clairvoyant Prefetching for Distributed Machine Learning I/O", SC 2021, section 3 and figure 3.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from foresee.cli import _plot_option
from foresee.cli._commands import add_compat
from foresee.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HELP = (
    "count how often one rank reads each sample in a run: by the exact distribution, in the order of a seed, and at "
    "random (Monte Carlo)"
)
EPILOG = (
    "The order is that of DistributedSampler, shuffled in each epoch; counting takes about 10 ns per sample and epoch. "
    "After Ctrl-C nothing is printed, and the exit code is 130."
)
#: Each draw takes one random number per sample and epoch.
_DRAWS_MAX = 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--ranks", type=int, required=True, metavar="N", help="number of ranks that share the data"
    )
    parser.add_argument("--epochs", type=int, required=True, metavar="E", help="number of epochs of the run")
    parser.add_argument(
        "--samples", type=int, required=True, metavar="F", help="number of samples of the data set"
    )
    parser.add_argument(
        "--delta",
        default="0.8",
        metavar="D",
        help="often is more than (1 + D) times the mean, E / N; a decimal number or a ratio, 4/5 (0.8)",
    )
    add_compat(parser, "exactly (1 + D) times the mean counts too, as the printed limit has it")
    parser.add_argument(
        "--draws",
        type=int,
        default=1,
        metavar="K",
        help="number of random assignments of samples to ranks that are counted (1)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="seed of the counted order and of the first draw; other draws have S + 1, ... (0)",
    )
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="rank whose reads are counted (0)")
    parser.add_argument(
        "--no-order", action="store_true", help="do not count an order, which takes long for many samples"
    )
    _plot_option.add_to(parser, "draw samples by their number of reads, as in figure 3")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from foresee.planning import simulation

    faults = [
        f"--{name} {value}: {expected} expected"
        for name, least, below, expected in (
            ("ranks", 1, 2**32, "1 to 2^32 - 1"),
            ("epochs", 1, 2**16, "1 to 2^16 - 1"),
            ("samples", 1, 2**32, "1 to 2^32 - 1"),
            ("draws", 0, _DRAWS_MAX + 1, f"0 to {_DRAWS_MAX}"),
            ("seed", 0, 2**63, "0 to 2^63 - 1"),
            ("rank", 0, max(1, options.ranks), "below --ranks"),
        )
        if not least <= (value := getattr(options, name)) < below
    ]
    faults += _plot_option.check("--plot", options.plot)
    if faults:
        raise ConfigError(faults)
    shape = {"ranks": options.ranks, "epochs": options.epochs, "samples": options.samples}
    often = simulation.read_often(**shape, delta=options.delta, compat=options.compat)
    expected = simulation.reads_by_count(**shape)
    counted = None
    if not options.no_order:
        counted = simulation.reads_in_order(**shape, seed=options.seed, rank=options.rank)
    drawn = [
        simulation.reads_by_count(**shape, seed=options.seed + number) for number in range(options.draws)
    ]
    facts = {
        **shape,
        "delta": options.delta,
        "compat": options.compat,
        "seed": options.seed,
        "rank": options.rank,
        "mean_reads": options.epochs / options.ranks,
        "least_reads": often.least_reads,
        "expected_often": often.samples,
        "counted_often": None if counted is None else int(counted[often.least_reads :].sum()),
        "drawn_often": [float(counts[often.least_reads :].sum()) for counts in drawn],
        "expected": expected.tolist(),
        "counted": None if counted is None else counted.tolist(),
        "drawn": [counts.tolist() for counts in drawn],
    }
    _plot_option.write(options.plot, lambda: _figure(facts))
    print(json.dumps(facts) if options.json else _report(facts))
    return 0


class _Row(NamedTuple):
    """Numbers of samples with one count of reads, by method; None without that method."""

    reads: int
    expected: float
    counted: int | None
    drawn: float | None
    """Mean of all draws."""


def _report(facts: dict[str, Any]) -> str:
    lines = [
        (
            f"{facts['ranks']:,} ranks, {facts['epochs']:,} epochs, {facts['samples']:,} samples: one rank reads a "
            f"sample {facts['mean_reads']:.4g} times in the mean"
        ),
        (
            f"{facts['least_reads']} times or more (delta {facts['delta']}, {facts['compat']}): "
            f"{facts['expected_often']:,.2f} samples expected{_counts(facts)}"
        ),
        "",
        f"{'reads':>6}{'expected':>18}{'counted':>18}{'drawn':>18}",
    ]
    lines += [
        f"{row.reads:>6}{row.expected:>18,.2f}{_number(row.counted, ',d'):>18}{_number(row.drawn, ',.2f'):>18}"
        for row in _rows(facts)
    ]
    return "\n".join(lines)


def _number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def _counts(facts: dict[str, Any]) -> str:
    """Return the counted and drawn numbers as the rest of a sentence."""
    text = ""
    if facts["counted_often"] is not None:
        text = f", {facts['counted_often']:,} by rank {facts['rank']} in the order of seed {facts['seed']}"
    drawn = facts["drawn_often"]
    if not drawn:
        return text
    mean = sum(drawn) / len(drawn)
    if len(drawn) == 1:
        return f"{text}, {mean:,.0f} in a draw"
    return f"{text}, {mean:,.2f} in the mean of {len(drawn)} draws ({min(drawn):,.0f} to {max(drawn):,.0f})"


def _rows(facts: dict[str, Any]) -> list[_Row]:
    """Return a row per number of reads, without rows at either end that have no sample by any method."""
    rows: list[_Row] = []
    for reads, expected in enumerate(facts["expected"]):
        counted = None if facts["counted"] is None else facts["counted"][reads]
        draws = [each[reads] for each in facts["drawn"]]
        rows.append(_Row(reads, expected, counted, sum(draws) / len(draws) if draws else None))
    occupied = [row.reads for row in rows if row.expected >= 0.5 or row.counted or row.drawn]
    return rows[min(occupied) : max(occupied) + 1] if occupied else rows


def _figure(facts: dict[str, Any]) -> Figure:
    from foresee.cli import _figures

    groups = []
    for row in _rows(facts):
        often = row.reads >= facts["least_reads"]
        stacks = [
            _figures.Stack((0.0, value) if often else (value, 0.0), faint=faint)
            for value, faint in ((row.expected, False), (row.counted, True), (row.drawn, True))
            if value is not None
        ]
        groups.append(_figures.Group(str(row.reads), stacks))
    title = f"{facts['samples']:,} samples, {facts['ranks']:,} ranks, {facts['epochs']:,} epochs"
    light = [
        name
        for name, values in (("counted in the order", facts["counted"]), ("drawn at random", facts["drawn"]))
        if values
    ]
    lines = [
        f"{facts['least_reads']} reads or more: {facts['expected_often']:,.2f} samples{_counts(facts)}",
        "dark: expected" + (f"; light: {', then '.join(light)}" if light else ""),
    ]
    return _figures.bars(title, lines, "reads by one rank", ("seldom", "often"), {"": groups}, unit="samples")
