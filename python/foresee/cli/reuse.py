# SPDX-License-Identifier: Apache-2.0
"""``foresee reuse``: how often one rank reads a sample of a shuffled data set: expected, counted and drawn.

Three answers to one question, side by side: the exact distribution's, the very order's that a run with that seed has,
and Monte Carlo's, which deals each sample to any rank alike in every epoch.

What makes a rank's own cache worth its room: over many epochs some samples are read far more often by one rank than
others. Source: Dryden et al., "Clairvoyant Prefetching for Distributed Machine Learning I/O", SC 2021, section 3 and
figure 3.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from foresee.cli import _plot_option
from foresee.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from matplotlib.figure import Figure

__all__ = ["add_to", "run"]

_HELP = (
    "count how often one rank reads each sample in a run: by the exact distribution, in the order of a seed, and at "
    "random (Monte Carlo)"
)
_EPILOG = (
    "The order is that of DistributedSampler, shuffled in each epoch; counting takes about 10 ns per sample and epoch. "
    "After Ctrl-C nothing is printed, and the exit code is 130."
)
#: Draws at most; each is a number per sample and epoch.
_DRAWS_MAX = 1000


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("reuse", help=_HELP, description=_HELP, epilog=_EPILOG)
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
    parser.add_argument(
        "--compat",
        choices=("physical", "paper"),
        default="physical",
        help="paper: exactly (1 + D) times the mean counts too, as the printed limit has it",
    )
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
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.add_argument(
        "--plot", metavar=_plot_option.METAVAR, help="draw samples by their number of reads, as in figure 3"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    from foresee.planning import simulation

    faults = [
        f"--{name} {value}: {told} expected"
        for name, value, least, below, told in (
            ("ranks", options.ranks, 1, 2**32, "1 to 2^32 - 1"),
            ("epochs", options.epochs, 1, 2**16, "1 to 2^16 - 1"),
            ("samples", options.samples, 1, 2**32, "1 to 2^32 - 1"),
            ("draws", options.draws, 0, _DRAWS_MAX + 1, f"0 to {_DRAWS_MAX}"),
            ("seed", options.seed, 0, 2**63, "0 to 2^63 - 1"),
            ("rank", options.rank, 0, max(1, options.ranks), "below --ranks"),
        )
        if not least <= value < below
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
    above = [float(counts[often.least_reads :].sum()) for counts in drawn]
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
        "drawn_often": above,
        "expected": expected.tolist(),
        "counted": None if counted is None else counted.tolist(),
        "drawn": [counts.tolist() for counts in drawn],
    }
    if options.plot is not None:
        from foresee.cli import _figures

        _figures.write(options.plot, _picture(facts))
    print(json.dumps(facts) if options.json else _report(facts))
    return 0


class _Row(NamedTuple):
    """Number of samples with one count of reads, by each method; None without that method."""

    reads: int
    expected: float
    counted: int | None
    drawn: float | None
    """In the mean of all draws."""


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
        for row in _shown(facts)
    ]
    return "\n".join(lines)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _counts(facts: dict[str, Any]) -> str:
    """Return the counted and drawn numbers as the rest of a sentence."""
    told = ""
    if facts["counted_often"] is not None:
        told += f", {facts['counted_often']:,} by rank {facts['rank']} in the order of seed {facts['seed']}"
    above = facts["drawn_often"]
    if not above:
        return told
    mean = sum(above) / len(above)
    if len(above) == 1:
        return f"{told}, {mean:,.0f} in a draw"
    return f"{told}, {mean:,.2f} in the mean of {len(above)} draws ({min(above):,.0f} to {max(above):,.0f})"


def _shown(facts: dict[str, Any]) -> list[_Row]:
    """A row to each number of reads, without the ends where there is no sample by any answer."""
    rows: list[_Row] = []
    for reads, expected in enumerate(facts["expected"]):
        counted = None if facts["counted"] is None else facts["counted"][reads]
        draws = [each[reads] for each in facts["drawn"]]
        rows.append(_Row(reads, expected, counted, sum(draws) / len(draws) if draws else None))
    some = [row.reads for row in rows if row.expected >= 0.5 or row.counted or row.drawn]
    return rows[min(some) : max(some) + 1] if some else rows


def _picture(facts: dict[str, Any]) -> Figure:
    from foresee.cli import _figures

    groups = []
    for row in _shown(facts):
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
    return _figures.bars(title, lines, "reads by one rank", ("seldom", "often"), groups, unit="samples")
