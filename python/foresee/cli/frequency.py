# SPDX-License-Identifier: Apache-2.0
"""``foresee frequency``: how often one rank reads a sample of a shuffled data set, expected and drawn.

What makes a rank's own cache worth its room: over many epochs some samples are read far more often by one rank than
others. Source: Dryden et al., "Clairvoyant Prefetching for Distributed Machine Learning I/O", SC 2021, section 3 and
figure 3.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from foresee.cli import _svg
from foresee.errors import ConfigError

if TYPE_CHECKING:
    import argparse

__all__ = ["add_to", "run"]

_HELP = "how often one rank reads a sample in a run: expected by the exact distribution, and counted in drawn orders"
_EPILOG = "Ctrl-C ends it; nothing is printed then, and the exit code is 130."
#: Orders that are drawn at most; each is a number per sample and epoch.
_DRAWS_MAX = 1000


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("frequency", help=_HELP, description=_HELP, epilog=_EPILOG)
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="that share the data")
    parser.add_argument("--epochs", type=int, required=True, metavar="E", help="of the run")
    parser.add_argument("--samples", type=int, required=True, metavar="F", help="of the data set")
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
        "--draws", type=int, default=1, metavar="K", help="orders to draw and count; 0: none (1)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="of the first draw; then S + 1, ... (0)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.add_argument(
        "--plot", metavar="FILE.svg", help="samples by how often they are read, as in figure 3"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    from foresee.models import loading

    faults = [
        f"--{name} {value}: {told} expected"
        for name, value, least, below, told in (
            ("ranks", options.ranks, 1, 2**32, "1 to 2^32 - 1"),
            ("epochs", options.epochs, 1, 2**16, "1 to 2^16 - 1"),
            ("samples", options.samples, 1, 2**32, "1 to 2^32 - 1"),
            ("draws", options.draws, 0, _DRAWS_MAX + 1, f"0 to {_DRAWS_MAX}"),
            ("seed", options.seed, 0, 2**63, "0 to 2^63 - 1"),
        )
        if not least <= value < below
    ]
    faults += _svg.check("--plot", options.plot)
    if faults:
        raise ConfigError(faults)
    shape = {"ranks": options.ranks, "epochs": options.epochs, "samples": options.samples}
    often = loading.read_often(**shape, delta=options.delta, compat=options.compat)
    expected = loading.reads_by_count(**shape)
    drawn = [loading.reads_by_count(**shape, seed=options.seed + number) for number in range(options.draws)]
    above = [float(counts[often.least_reads :].sum()) for counts in drawn]
    facts = {
        **shape,
        "delta": options.delta,
        "compat": options.compat,
        "mean_reads": options.epochs / options.ranks,
        "least_reads": often.least_reads,
        "expected_often": often.samples,
        "drawn_often": above,
        "expected": expected.tolist(),
        "drawn": [counts.tolist() for counts in drawn],
    }
    if options.plot is not None:
        _svg.write(options.plot, _picture(facts))
    print(json.dumps(facts) if options.json else _report(facts))
    return 0


def _report(facts: dict[str, Any]) -> str:
    above = facts["drawn_often"]
    lines = [
        (
            f"{facts['ranks']:,} ranks, {facts['epochs']:,} epochs, {facts['samples']:,} samples: one rank reads a "
            f"sample {facts['mean_reads']:.4g} times in the mean"
        ),
        (
            f"{facts['least_reads']} times or more (delta {facts['delta']}, {facts['compat']}): "
            f"{facts['expected_often']:,.2f} samples expected{_counted(above)}"
        ),
        "",
        f"{'reads':>6}{'expected':>18}{'drawn':>18}",
    ]
    lines += [
        f"{reads:>6}{expected:>18,.2f}{'-' if drawn is None else format(drawn, ',.2f'):>18}"
        for reads, expected, drawn in _shown(facts)
    ]
    return "\n".join(lines)


def _counted(above: list[float]) -> str:
    if not above:
        return ""
    mean = sum(above) / len(above)
    if len(above) == 1:
        return f", {mean:,.0f} in a drawn order"
    return f", {mean:,.2f} in the mean of {len(above)} drawn orders ({min(above):,.0f} to {max(above):,.0f})"


def _shown(facts: dict[str, Any]) -> list[tuple[int, float, float | None]]:
    """Reads, samples expected, and drawn in the mean; without the ends where there is none of either."""
    told: list[tuple[int, float, float | None]] = []
    for reads, expected in enumerate(facts["expected"]):
        counts = [each[reads] for each in facts["drawn"]]
        told.append((reads, expected, sum(counts) / len(counts) if counts else None))
    some = [reads for reads, expected, drawn in told if expected >= 0.5 or drawn]
    return told[min(some) : max(some) + 1] if some else told


def _picture(facts: dict[str, Any]) -> str:
    from foresee.cli import _bars

    groups = []
    for reads, expected, drawn in _shown(facts):
        often = reads >= facts["least_reads"]
        stacks = [
            _bars.Stack((0.0, value) if often else (value, 0.0), faint=faint)
            for value, faint in ((expected, False), (drawn, True))
            if value is not None
        ]
        groups.append(_bars.Group(str(reads), stacks))
    title = f"{facts['samples']:,} samples, {facts['ranks']:,} ranks, {facts['epochs']:,} epochs"
    lines = [
        f"{facts['least_reads']} reads or more: {facts['expected_often']:,.2f} samples{_counted(facts['drawn_often'])}",
        "dark: expected; light: counted in drawn orders",
    ]
    return _bars.svg(title, lines, "reads by one rank", ("seldom", "often"), groups, unit="samples")
