#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure training straight from a bucket as PROTOCOL.md defines.

``--quick`` measures at least half of the acceptance lines within 3 minutes, on small data and once. The full run repeats
each arm three times, an hour and a half by estimate; the paper's figures run once, some nine minutes. Run ``make setup`` and ``make bench-setup`` first: this program builds and
downloads nothing. As root it creates hosts in network namespaces.

Exit status: 0 measured (whether or not the lines hold), 2 bad arguments, 3 the environment lacks something (named).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import machine, runs, verdicts  # noqa: E402 - needs the path above
from common.hosts import ProcessFailed  # noqa: E402
from common.report import add_options, draw, print_report, raw_lines, remove_part, show  # noqa: E402
from common.runs import Runs  # noqa: E402
from support import figure_table, table  # noqa: E402
from support.lines import judge  # noqa: E402
from support.sizes import THEMES, Size, sizes_of  # noqa: E402

HOME = HERE.parents[1] / ".tools" / "bench-data" / "buckets"


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Measure training straight from a bucket as PROTOCOL.md defines."
    )
    add_options(parser, "small data, one repeat, under 3 minutes")
    parser.add_argument("--repeats", type=int, help="repeats of each arm, instead of 3 (quick run: 1)")
    parser.add_argument(
        "--parts",
        nargs="*",
        choices=THEMES,
        help="measure only these parts (default: all; in the quick run all but the figures)",
    )
    parser.add_argument(
        "--latency-ms", type=float, nargs="*", help="measure only these latencies of parts that have several"
    )
    parser.add_argument("--samples", type=int, help="samples of every part, instead of its own number")
    parser.add_argument(
        "--direct-samples", type=int, help="samples of each epoch that `direct` and `threads` read; 0: all"
    )
    parser.add_argument(
        "--timeout", type=float, default=3600, help="limit of one run, seconds (default %(default)s)"
    )
    parser.add_argument("--save", type=Path, help="append raw lines here (full run: results/bucket_*.jsonl)")
    parser.add_argument("--table", type=Path, help="print the table of these raw lines and exit")
    args = parser.parse_args()
    for name in ("repeats", "samples", "timeout"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            parser.error(f"--{name} {value}: above 0 expected")
    if args.direct_samples is not None and args.direct_samples < 0:
        parser.error(f"--direct-samples {args.direct_samples}: 0 or more expected")
    for size in chosen_sizes(args):
        # A sampler would otherwise repeat samples.
        if size.samples % size.ranks:
            parser.error(f"--samples {size.samples}: a multiple of {size.ranks} expected for {size.theme}")
    return args


def chosen_sizes(args: argparse.Namespace) -> list[Size]:
    """Return the sizes of the selected parts, with the changes of the command line."""
    chosen = []
    for size in sizes_of(args.parts, quick=args.quick):
        is_chosen = args.latency_ms is None or not size.has_latencies or size.latency_ms in args.latency_ms
        if is_chosen:
            samples = args.samples or size.samples
            direct = size.direct_samples if args.direct_samples is None else args.direct_samples
            native = min(size.native_samples, samples)
            chosen.append(
                dataclasses.replace(size, samples=samples, direct_samples=direct, native_samples=native)
            )
    return chosen


def measure(args: argparse.Namespace, about: dict[str, object], save: Path | None) -> Runs:
    """Measure all selected parts."""
    # Only here: it imports torch, which a table does not need.
    from support import parts
    from support.session import Session, hosts

    sizes = chosen_sizes(args)
    # An own setting of the user must not change what is measured.
    for name in [name for name in os.environ if name.startswith("FORESEE_")]:
        del os.environ[name]
    with (
        tempfile.TemporaryDirectory(prefix="foresee-") as sockets,
        hosts(max(size.hosts for size in sizes), HERE / "results" / "logs") as (cluster, kind),
    ):
        show(f"hosts: {kind}")
        session = Session(
            seed=args.seed,
            timeout_s=args.timeout,
            about={**about, "hosts": kind},
            save=save,
            home=HOME,
            cluster=cluster,
            sockets=Path(sockets),
        )
        session.serve()
        try:
            for size in sizes:
                if save:
                    remove_part(save, size.part)
                repeats = args.repeats or (1 if args.quick or size.is_figures else 3)
                parts.measure(session, size, repeats, quick=args.quick)
        finally:
            session.close()
    return Runs(session.runs)


def details(found: Runs) -> str:
    """Return the tables of the arms and of the paper's figures."""
    text = table.markdown(figure_table.without_figures(found))
    return f"{text}\n{figure_table.markdown(found)}" if figure_table.has_figures(found) else text


def main() -> int:
    """Measure, and print the verdicts."""
    args = parse()
    if args.table:
        found = runs.read(args.table)
        print(verdicts.markdown(judge(found)), details(found), sep="\n", end="")
        return 0
    began = time.monotonic()
    HOME.mkdir(parents=True, exist_ok=True)
    about = {**machine.describe(), "seed": args.seed}
    save = raw_lines(args, HERE, "bucket", about)
    try:
        found = measure(args, about, save)
    except (FileNotFoundError, ProcessFailed) as missing:
        show(f"run.py: {missing}")
        return 3
    if save and save.parent == HERE / "results" and figure_table.has_figures(found):
        draw(HERE)
    print_report("bucket", judge(found), details(found), args, began=began, machine=about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
