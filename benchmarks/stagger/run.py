#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure staggered jobs as PROTOCOL.md defines.

``--quick`` measures one pair and three jobs within a minute. The full run measures three pairs at every start of the
exhaustive search, which takes hours. Run ``make setup`` first: this program builds and downloads nothing. It needs root
for its disk or its hosts, unless ``--place`` names a folder on a slow mount.

Exit status: 0 measured (whether or not the lines hold), 2 bad arguments, 3 the environment lacks something (named).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import machine, verdicts  # noqa: E402 - needs the path above
from common.disk_origin import Unavailable  # noqa: E402
from common.report import add_options, draw, print_report, raw_lines, show  # noqa: E402
from support import parts, runs, table  # noqa: E402
from support.gluster import Gluster  # noqa: E402
from support.lines import judge  # noqa: E402
from support.models import PAIRS, Size  # noqa: E402
from support.origin import Mount, SlowDisk  # noqa: E402
from support.runs import Runs  # noqa: E402
from support.session import Failed, Session  # noqa: E402

#: Parts that measure pairs one by one, and the part names in their lines.
OF_PAIRS = {"calibration": ("calibration",), "pairs": ("pairs", "command")}
#: Origins that this benchmark creates.
OWN = {"disk": SlowDisk, "glusterfs": Gluster}
NAMED = {"+".join(names): names for names in PAIRS}
HOME = HERE.parents[1] / ".tools" / "bench-data"


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure staggered jobs as PROTOCOL.md defines.")
    add_options(parser, "one pair, three jobs, under a minute")
    parser.add_argument(
        "--repeats", type=int, default=3, help="repeats of the full run (default %(default)s)"
    )
    parser.add_argument("--steps", type=int, help="steps of an epoch, instead of 1500 (quick run: 72)")
    parser.add_argument(
        "--step-ms",
        type=float,
        help="time in which the origin delivers a step, instead of 20 ms (quick run: 50 ms)",
    )
    parser.add_argument("--epochs", type=int, default=1, help="epochs of each job (default %(default)s)")
    parser.add_argument(
        "--parts",
        nargs="*",
        choices=parts.PARTS,
        default=parts.PARTS,
        help="measure only these parts in the full run",
    )
    parser.add_argument(
        "--pairs",
        nargs="*",
        choices=list(NAMED),
        default=list(NAMED),
        help="measure only these pairs in the parts `calibration` (a minute each) and `pairs` (45 minutes each)",
    )
    parser.add_argument(
        "--origin",
        default="disk",
        help="disk (throttled), glusterfs (created here), or with --place the name of that origin in the results",
    )
    parser.add_argument(
        "--place", type=Path, help="folder on a slow mount, instead of an origin created here"
    )
    parser.add_argument(
        "--timeout", type=float, default=600, help="limit of one run, seconds (default %(default)s)"
    )
    parser.add_argument("--save", type=Path, help="append raw lines here (full run: results/stagger_*.jsonl)")
    parser.add_argument("--table", type=Path, help="print the table of these raw lines and exit")
    args = parser.parse_args()
    if args.place is None and args.origin not in OWN:
        parser.error(f"--origin {args.origin}: {' or '.join(OWN)} expected, or --place")
    if args.place is not None and args.origin == "disk":
        parser.error("--place: name its origin with --origin")
    for name in ("repeats", "steps", "step_ms", "epochs", "timeout"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            parser.error(f"--{name.replace('_', '-')} {value}: above 0 expected")
    return args


def main() -> int:
    """Measure, and print the verdicts."""
    args = parse()
    if args.table:
        found = runs.read(args.table)
        print(verdicts.markdown(judge(found)), table.markdown(found), sep="\n", end="")
        return 0
    began = time.monotonic()
    step_ms = args.step_ms or (50.0 if args.quick else 20.0)
    about = {**machine.describe(), "step_ms": step_ms, "epochs": args.epochs, "seed": args.seed}
    save = raw_lines(args, HERE, "stagger", about)
    steps = args.steps or (72 if args.quick else 1500)
    size = Size(steps=steps, step_s=step_ms / 1e3, epochs=args.epochs, seed=args.seed)
    try:
        origin = Mount(args.place, args.origin, size) if args.place else OWN[args.origin](HOME, size)
        with tempfile.TemporaryDirectory(prefix="foresee-bench-") as work, origin:
            session = Session(size, origin, Path(work), about, save, args.timeout)
            if args.quick:
                parts.quick(session)
            else:
                full(session, args)
    except Unavailable as missing:
        show(f"run.py: {missing}")
        return 3
    except Failed as failed:
        show(f"run.py: {failed}")
        return 3
    found = Runs(session.runs)
    if save and save.parent == HERE / "results":
        draw(HERE)
    print_report("stagger", judge(found), table.markdown(found), args, began=began, machine=about)
    return 0


def full(session: Session, args: argparse.Namespace) -> None:
    """Run the full benchmark part by part; new lines of a part replace its old ones."""
    name = session.origin.name
    for part in args.parts:
        if part in OF_PAIRS:
            chosen = [NAMED[each] for each in args.pairs]
            if session.save:
                runs.remove_lines(session.save, OF_PAIRS[part], name, [frozenset(names) for names in chosen])
            getattr(parts, part)(session, args.repeats, chosen)
            continue
        if session.save:
            runs.remove_lines(session.save, (part,), name)
        getattr(parts, part)(session, args.repeats)


if __name__ == "__main__":
    sys.exit(main())
