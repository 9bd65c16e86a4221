#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the exchange of gradients as PROTOCOL.md defines.

``--quick`` measures at least half of the acceptance lines within two minutes. The full run measures every arm on every
workload, which takes hours. Run ``make setup`` and ``make bench-setup`` first: this program builds and downloads nothing.
It needs root to create hosts in network namespaces.

Exit status: 0 measured (whether or not the lines hold), 2 bad arguments, 3 the environment lacks something (named).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import machine, verdicts  # noqa: E402 - needs the path above
from common.hosts import CONGESTION, Unavailable  # noqa: E402
from common.report import add_options, draw, print_report, raw_lines, show  # noqa: E402
from support import parts, table  # noqa: E402
from support.lines import judge  # noqa: E402
from support.parts import FULL, QUICK, QUICK_RATE, SLEEPS  # noqa: E402
from support.runs import Runs, read  # noqa: E402
from support.session import Plan, Session  # noqa: E402
from support.workloads import MODELS  # noqa: E402

ROOT = HERE.parents[1]
SUM_BENCH = ROOT / ".tools" / "bin" / "foresee-sum-bench"


def sum_rates() -> dict[str, float] | None:
    """Return the bytes per second of the server's sum and of a STREAM-add on one core; None if the bench is not built."""
    if not SUM_BENCH.exists():
        return None
    made = subprocess.run([str(SUM_BENCH)], capture_output=True, text=True, check=True)
    rates: dict[str, float] = json.loads(made.stdout)
    return rates


def instead(name: str, factor: float = 1) -> str:
    """Return the default values that an option replaces, for its help."""
    usual, asleep, quickly = (factor * getattr(plan, name) for plan in (FULL, SLEEPS, QUICK))
    return f"instead of {usual:g} ({asleep:g} in `sleeps`, {quickly:g} in the quick run)"


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure the exchange of gradients as PROTOCOL.md defines.")
    add_options(parser, "few arms, small models, under two minutes", "seed of checks and link changes")
    parser.add_argument("--repeats", type=int, help=f"repeats, {instead('repeats')}")
    parser.add_argument("--rounds", type=int, help=f"measured rounds of a run, {instead('rounds')}")
    parser.add_argument(
        "--compute-ms", type=float, help=f"compute of a step that sleeps, {instead('compute_s', 1e3)}"
    )
    parser.add_argument(
        "--wire-over-compute",
        type=float,
        help=f"wire time of a step over its compute, {instead('wire_over_compute')}",
    )
    parser.add_argument(
        "--timeout", type=float, default=120, help="limit of one run, seconds (default %(default)s)"
    )
    parser.add_argument(
        "--parts",
        nargs="*",
        choices=parts.PARTS,
        default=parts.PARTS,
        help="measure only these parts in the full run",
    )
    parser.add_argument(
        "--rates",
        nargs="*",
        help=f"link rates of models that sleep (default: {' '.join(parts.RATES)}; quick run: {QUICK_RATE})",
    )
    parser.add_argument(
        "--two-rate", default=parts.TWO_RATE, help="link rate between two hosts (default %(default)s)"
    )
    parser.add_argument(
        "--rate", default="", help="link rate of all other parts, instead of the rate of each part"
    )
    parser.add_argument(
        "--models", nargs="*", choices=MODELS, default=MODELS, help="measure only these models that sleep"
    )
    parser.add_argument(
        "--save", type=Path, help="append raw lines here (full run: results/gradients_*.jsonl)"
    )
    parser.add_argument("--table", type=Path, help="print the table of these raw lines and exit")
    parser.add_argument("--summary", type=Path, help="print the README's rows of these raw lines and exit")
    return parser.parse_args()


def chosen_plan(args: argparse.Namespace, base: Plan) -> Plan:
    """Return the plan with the changes of the command line."""
    wanted = {
        "repeats": args.repeats,
        "rounds": args.rounds,
        "compute_s": None if args.compute_ms is None else args.compute_ms / 1e3,
        "wire_over_compute": args.wire_over_compute,
    }
    return dataclasses.replace(base, **{name: value for name, value in wanted.items() if value is not None})


def main() -> int:
    """Measure, and print the verdicts."""
    args = parse()
    if args.summary:
        print(table.summary(read(args.summary)), end="")
        return 0
    if args.table:
        runs = read(args.table)
        print(verdicts.markdown(judge(runs)), table.markdown(runs), sep="\n", end="")
        return 0
    began = time.monotonic()
    # The setting of the simulated hosts, not of this host.
    about = {**machine.describe(), "congestion_control": CONGESTION, "sum_rates": sum_rates()}
    save = raw_lines(args, HERE, "gradients", about)
    with tempfile.TemporaryDirectory(prefix="foresee-bench-") as logs:
        plan = chosen_plan(args, QUICK if args.quick else FULL)
        session = Session(args.seed, args.timeout, plan, about, save, Path(logs))
        try:
            if args.quick:
                parts.quick(session, args.two_rate, args.rates[0] if args.rates else QUICK_RATE)
            else:
                sleeping, rates = chosen_plan(args, SLEEPS), args.rates or parts.RATES
                choice = parts.Choice(args.parts, args.models, sleeping, rates, args.two_rate, args.rate)
                parts.full(session, choice)
        except Unavailable as missing:
            show(f"run.py: {missing}")
            return 3
    found = Runs(session.runs)
    if save and save.parent == HERE / "results":
        draw(HERE)
    print_report("gradients", judge(found), table.markdown(found), args, began=began, machine=about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
