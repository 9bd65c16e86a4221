#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure staggered jobs as PROTOCOL.md says.

``--quick`` measures one pair and three jobs within a minute; without it three pairs run from every start of the
exhaustive search, which takes hours. Builds and downloads nothing: ``make setup`` does. Needs root, for a disk or
hosts of its own, unless ``--place`` names a folder on a slow mount.

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

from common import machine, verdicts  # noqa: E402 - found beside this folder
from common.disk_origin import Unavailable  # noqa: E402
from common.report import draw, results_file, show, tell  # noqa: E402
from support import parts, runs, table  # noqa: E402
from support.gluster import Gluster  # noqa: E402
from support.lines import judge  # noqa: E402
from support.models import PAIRS, Size  # noqa: E402
from support.origin import Mount, SlowDisk  # noqa: E402
from support.runs import Runs  # noqa: E402
from support.session import Failed, Session  # noqa: E402

#: Parts that measure pairs one by one, and what their lines are called.
OF_PAIRS = {"calibration": ("calibration",), "pairs": ("pairs", "command")}
#: Origins that are made here.
OWN = {"disk": SlowDisk, "glusterfs": Gluster}
NAMED = {"+".join(names): names for names in PAIRS}
HOME = HERE.parents[1] / ".tools" / "bench-data"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure staggered jobs as PROTOCOL.md says.")
    parser.add_argument("--quick", action="store_true", help="one pair, three jobs, under a minute")
    parser.add_argument("--json", action="store_true", help="print one object with all acceptance lines")
    parser.add_argument("--seed", type=int, default=20_000, help="of data and order (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="of the full run (default %(default)s)")
    parser.add_argument("--steps", type=int, help="of an epoch, instead of 1500, and of 72 in the quick run")
    parser.add_argument(
        "--step-ms",
        type=float,
        help="in which the origin delivers a step, instead of 20, and of 50 in the quick run",
    )
    parser.add_argument("--epochs", type=int, default=1, help="of each job (default %(default)s)")
    parser.add_argument(
        "--parts", nargs="*", choices=parts.PARTS, default=parts.PARTS, help="of the full run; only these"
    )
    parser.add_argument(
        "--pairs",
        nargs="*",
        choices=list(NAMED),
        default=list(NAMED),
        help="of the parts `calibration` (a minute each) and `pairs` (45 minutes each); only these",
    )
    parser.add_argument(
        "--origin",
        default="disk",
        help="disk (throttled), glusterfs (of our own), or what --place lies on, as the lines are to call it",
    )
    parser.add_argument(
        "--place", type=Path, help="a folder on a slow mount, instead of an origin of our own"
    )
    parser.add_argument(
        "--timeout", type=float, default=600, help="of one run, seconds (default %(default)s)"
    )
    parser.add_argument("--save", type=Path, help="append raw lines here (full run: results/stagger_*.jsonl)")
    parser.add_argument("--table", type=Path, help="print the table of these raw lines and end")
    given = parser.parse_args()
    if given.place is None and given.origin not in OWN:
        parser.error(f"--origin {given.origin}: {' or '.join(OWN)} expected, or --place")
    if given.place is not None and given.origin == "disk":
        parser.error("--place: say by --origin what it lies on")
    for name in ("repeats", "steps", "step_ms", "epochs", "timeout"):
        value = getattr(given, name)
        if value is not None and not value > 0:
            parser.error(f"--{name.replace('_', '-')} {value}: above 0 expected")
    return given


def main() -> int:
    """Measure, judge, print."""
    given = parse()
    if given.table:
        found = runs.read(given.table)
        print(verdicts.markdown(judge(found)), table.markdown(found), sep="\n", end="")
        return 0
    began = time.monotonic()
    step_ms = given.step_ms or (50.0 if given.quick else 20.0)
    about = {**machine.describe(), "step_ms": step_ms, "epochs": given.epochs, "seed": given.seed}
    save = given.save
    if save is None and not given.quick:
        save = results_file(HERE / "results", "stagger", about)
    steps = given.steps or (72 if given.quick else 1500)
    size = Size(steps=steps, step_s=step_ms / 1e3, epochs=given.epochs, seed=given.seed)
    try:
        origin = Mount(given.place, given.origin, size) if given.place else OWN[given.origin](HOME, size)
        with tempfile.TemporaryDirectory(prefix="foresee-bench-") as work, origin:
            session = Session(size, origin, Path(work), about, save, given.timeout)
            if given.quick:
                parts.quick(session)
            else:
                full(session, given)
    except Unavailable as missing:
        show(f"run.py: {missing}")
        return 3
    except Failed as failed:
        show(f"run.py: {failed}")
        return 3
    found = Runs(session.runs)
    if save and save.parent == HERE / "results":
        draw(HERE)
    tell(
        "stagger",
        judge(found),
        table.markdown(found),
        as_json=given.json,
        began=began,
        seed=given.seed,
        machine=about,
    )
    return 0


def full(session: Session, given: argparse.Namespace) -> None:
    """Part by part; what is measured anew replaces its lines."""
    name = session.origin.name
    for part in given.parts:
        if part in OF_PAIRS:
            chosen = [NAMED[each] for each in given.pairs]
            if session.save:
                runs.forget(session.save, OF_PAIRS[part], name, [frozenset(names) for names in chosen])
            getattr(parts, part)(session, given.repeats, chosen)
            continue
        if session.save:
            runs.forget(session.save, (part,), name)
        getattr(parts, part)(session, given.repeats)


if __name__ == "__main__":
    sys.exit(main())
