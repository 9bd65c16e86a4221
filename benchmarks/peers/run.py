#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure nodes that exchange samples as PROTOCOL.md defines.

``--quick`` measures at least half of the acceptance lines within 3 minutes, on small data and once. The full run repeats
each arm three times, less than an hour by estimate. Run ``make setup`` and ``make bench-setup`` first: this program builds and downloads nothing.
As root it creates hosts in network namespaces.

Exit status: 0 measured (whether or not the lines hold), 1 a rank delivered wrong samples or another order, 2 bad
arguments, 3 the environment lacks something (named).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import machine, runs, verdicts  # noqa: E402 - needs the path above
from common.hosts import ProcessFailed, cluster_or_processes  # noqa: E402
from common.report import add_options, print_report, raw_lines, remove_part, show  # noqa: E402
from common.runs import Runs  # noqa: E402
from support import data, table  # noqa: E402
from support.lines import judge  # noqa: E402
from support.session import BUCKET_HOST, PROGRAMS, Session, host_of  # noqa: E402
from support.sizes import FULL, PARTS, QUICK, Size  # noqa: E402

HOME = HERE.parents[1] / ".tools" / "bench-data" / "peers"


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Measure nodes that exchange samples as PROTOCOL.md defines."
    )
    add_options(parser, "small data, one repeat, under 3 minutes")
    parser.add_argument("--repeats", type=int, help="repeats of each arm, instead of 3 (quick run: 1)")
    parser.add_argument("--parts", nargs="*", choices=PARTS, help="measure only these parts (default: all)")
    parser.add_argument("--arms", nargs="*", choices=("exact", "alone", "torch"), help="only these arms")
    parser.add_argument("--samples", type=int, help="samples of every part, instead of its own number")
    parser.add_argument("--epochs", type=int, help="epochs of every part, instead of its own number")
    parser.add_argument(
        "--timeout", type=float, default=600, help="limit of one run, seconds (default %(default)s)"
    )
    parser.add_argument(
        "--data", type=Path, default=HOME, help="folder for the bucket's files, which later runs use again"
    )
    parser.add_argument("--save", type=Path, help="append raw lines here (full run: results/peers_*.jsonl)")
    parser.add_argument("--table", type=Path, help="print the table of these raw lines and exit")
    args = parser.parse_args()
    for name in ("repeats", "samples", "timeout"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            parser.error(f"--{name} {value}: above 0 expected")
    if args.epochs is not None and args.epochs < 2:
        parser.error(f"--epochs {args.epochs}: 2 or more expected, since lines compare later epochs")
    for size in chosen_sizes(args):
        # Ranks would otherwise have a short batch, or repeat samples.
        if size.samples % (size.nodes * size.batch):
            parser.error(
                f"--samples {size.samples}: a multiple of {size.nodes * size.batch} expected for {size.part}"
            )
    return args


def chosen_sizes(args: argparse.Namespace) -> list[Size]:
    """Return the sizes of the selected parts, with the changes of the command line."""
    return [
        dataclasses.replace(size, samples=args.samples or size.samples, epochs=args.epochs or size.epochs)
        for size in (QUICK if args.quick else FULL)
        if args.parts is None or size.part in args.parts
    ]


def measure(args: argparse.Namespace, about: dict[str, object], save: Path | None) -> tuple[Runs, bool]:
    """Measure all selected parts; return the runs, and whether a rank delivered wrong samples."""
    sizes = chosen_sizes(args)
    # An own setting of the user must not change what is measured.
    for name in [name for name in os.environ if name.startswith("FORESEE_")]:
        del os.environ[name]
    names = [BUCKET_HOST, *(host_of(node) for node in range(max(size.nodes for size in sizes)))]
    with cluster_or_processes(names, HERE / "results" / "logs", PROGRAMS) as (cluster, kind):
        show(f"hosts: {kind}")
        session = Session(
            seed=args.seed,
            timeout_s=args.timeout,
            about={**about, "hosts": kind},
            save=save,
            home=args.data,
            cluster=cluster,
        )
        session.serve()
        try:
            for size in sizes:
                if save:
                    remove_part(save, size.part)
                samples = data.make(size, args.data, args.seed)
                for repeat in range(args.repeats or (1 if args.quick else 3)):
                    for arm in size.arms(quick=args.quick):
                        if args.arms is None or arm in args.arms:
                            session.measure(size, samples, arm, repeat)
        finally:
            session.close()
    return Runs(session.runs), session.is_wrong


def main() -> int:
    """Measure, and print the verdicts."""
    args = parse()
    if args.table:
        found = runs.read(args.table)
        print(verdicts.markdown(judge(found)), table.markdown(found), sep="\n", end="")
        return 0
    began = time.monotonic()
    args.data.mkdir(parents=True, exist_ok=True)
    about = {**machine.describe(), "seed": args.seed}
    save = raw_lines(args, HERE, "peers", about)
    try:
        found, is_wrong = measure(args, about, save)
    except (FileNotFoundError, ProcessFailed) as missing:
        show(f"run.py: {missing}")
        return 3
    print_report("peers", judge(found), table.markdown(found), args, began=began, machine=about)
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
