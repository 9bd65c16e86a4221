#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure one cache per node as PROTOCOL.md defines.

``--quick`` measures every acceptance line but one within 3 minutes, on small data and once. The full run repeats each arm
five times, which takes half an hour. Run ``make setup`` first: this program builds and downloads nothing.

Exit status: 0 measured (whether or not the lines hold), 2 bad arguments, 3 the environment lacks something (named).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import machine, runs, verdicts  # noqa: E402 - needs the path above
from common.report import add_options, print_report, raw_lines, remove_part, show  # noqa: E402
from common.runs import Run, Runs  # noqa: E402
from support import parts, table  # noqa: E402
from support.lines import judge  # noqa: E402
from support.origins import Origin, origin_of  # noqa: E402
from support.processes import ProcessFailed  # noqa: E402
from support.sizes import FULL, MB, QUICK, Size  # noqa: E402

HOME = HERE.parents[1] / ".tools" / "bench-data"
PARTS = [size.part for size in FULL]


@dataclasses.dataclass
class Session:
    """State of one call of this program: options and runs."""

    seed: int
    timeout_s: float
    machine: Mapping[str, Any]
    #: File to which each run is appended when it ends.
    save: Path | None
    runs: list[Run] = dataclasses.field(default_factory=list)

    def measure(self, size: Size, arm: str, origin: Origin, repeat: int) -> None:
        """Run one arm once; a failure makes the run void, with the reason."""
        void = ""
        try:
            measured = parts.measure(size, arm, origin, self.seed, self.timeout_s)
        except (ProcessFailed, OSError) as error:
            measured, void = {arm: {}}, str(error)
        for name, values in measured.items():
            run = Run(
                part=size.part,
                arm=name,
                repeat=repeat,
                ranks=parts.ranks_of(size.part, name),
                data_bytes=size.data_bytes,
                bound_s=parts.bound_s(size, name, self.machine["memcpy_small_bytes_per_s"]),
                values=dict(values),
                void=void,
                machine={**self.machine, "load": os.getloadavg(), "time": time.time()},
            )
            self.record(run)

    def record(self, run: Run) -> None:
        """Add a run, save its line, and print its result."""
        self.runs.append(run)
        if self.save:
            runs.write(self.save, run)
        result = f"void: {run.void}" if run.void else f"{run.values['seconds']:.2f} s"
        show(f"{run.part:<12} {run.arm:<10} {result}")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure one cache per node as PROTOCOL.md defines.")
    add_options(parser, "small data, one repeat, under 3 minutes")
    parser.add_argument("--repeats", type=int, help="repeats of each arm, instead of 5 (quick run: 1)")
    parser.add_argument(
        "--parts", nargs="*", choices=PARTS, default=PARTS, help="measure only these parts (default: all)"
    )
    parser.add_argument("--samples", type=int, help="samples of every part, instead of its own number")
    parser.add_argument("--bytes-per-s", type=float, help="MB per second of every bucket, instead of its own")
    parser.add_argument(
        "--timeout", type=float, default=300, help="limit of each wait, seconds (default %(default)s)"
    )
    parser.add_argument("--save", type=Path, help="append raw lines here (full run: results/node_*.jsonl)")
    parser.add_argument("--table", type=Path, help="print the table of these raw lines and exit")
    args = parser.parse_args()
    for name in ("repeats", "samples", "bytes_per_s", "timeout"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            parser.error(f"--{name.replace('_', '-')} {value}: above 0 expected")
    for size in chosen_sizes(args):
        # Ranks would otherwise repeat samples, so that no epoch has the sums of the data.
        if size.samples % (8 * size.batch) and size.part != "cap":
            parser.error(
                f"--samples {size.samples}: a multiple of {8 * size.batch} expected for part {size.part}"
            )
    return args


def chosen_sizes(args: argparse.Namespace) -> list[Size]:
    """Return the sizes of the selected parts, with the changes of the command line."""
    chosen = []
    for size in QUICK if args.quick else FULL:
        if size.part in args.parts:
            rate = args.bytes_per_s if size.bytes_per_s else None
            chosen.append(
                dataclasses.replace(
                    size,
                    samples=args.samples or size.samples,
                    bytes_per_s=size.bytes_per_s if rate is None else int(rate * MB),
                )
            )
    return chosen


def main() -> int:
    """Measure, and print the verdicts."""
    args = parse()
    if args.table:
        found = runs.read(args.table)
        print(verdicts.markdown(judge(found)), table.markdown(found), sep="\n", end="")
        return 0
    began = time.monotonic()
    HOME.mkdir(parents=True, exist_ok=True)
    about = {
        **machine.describe(),
        "memcpy_bytes_per_s": machine.memcpy_bytes_per_s(110_000),
        "memcpy_small_bytes_per_s": machine.memcpy_bytes_per_s(1_000),
        "seed": args.seed,
    }
    save = raw_lines(args, HERE, "node", about)
    session = Session(args.seed, args.timeout, about, save)
    repeats = args.repeats or (1 if args.quick else 5)
    try:
        for size in chosen_sizes(args):
            if save:
                remove_part(save, size.part)
            with origin_of(size, HOME, args.seed) as origin:
                for repeat in range(repeats):
                    for arm in parts.arms_of(size.part, quick=args.quick):
                        session.measure(size, arm, origin, repeat)
    except FileNotFoundError as missing:
        show(f"run.py: {missing}")
        return 3
    found = Runs(session.runs)
    print_report("node", judge(found), table.markdown(found), args, began=began, machine=about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
