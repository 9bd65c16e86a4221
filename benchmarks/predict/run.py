#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure how far predictions are from runs, as PROTOCOL.md defines.

``--quick`` measures three of the ten set-ups, smaller and once, within a minute. The full run measures all ten five times,
which takes half an hour. Run ``make setup`` first: this program builds and downloads nothing. The mount needs root.

Exit status: 0 measured (whether or not the lines hold), 2 bad arguments, 3 the environment lacks something (named).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import machine, report, verdicts  # noqa: E402 - needs the path above
from common.disk_origin import Unavailable  # noqa: E402
from common.report import show  # noqa: E402
from support import hand_over, lines, predictions  # noqa: E402
from support.origins import Limits, Place, placed  # noqa: E402
from support.predictions import Times  # noqa: E402
from support.setups import QUICK, TEN, TUNING, SetUp, facts  # noqa: E402
from support.tasks import RunTask, task_of  # noqa: E402

from foresee import _native  # noqa: E402
from foresee.jobspec import Profile  # noqa: E402

ROOT = HERE.parents[1]
HOME = ROOT / ".tools" / "bench-data"
QUICK_FACTOR = 2
TITLE = "# Predicted and measured times, by `run.py`"
BY_NAME = {setup.name: setup for setup in (*TEN, *TUNING)}


def main() -> int:
    """Measure, and print the verdicts."""
    options = _options()
    if options.table:
        print(_text(_read(options.table)), end="")
        return 0
    began = time.monotonic()
    HOME.mkdir(parents=True, exist_ok=True)
    about = machine.describe()
    with tempfile.TemporaryDirectory(prefix="predict-", dir=HOME) as folder:
        profile = predictions.measured_here(Path(folder), options.calibrate_s)
    save = (
        None if options.quick or options.no_save else report.results_file(HERE / "results", "predict", about)
    )
    raw: list[dict[str, Any]] = []
    for setup in _chosen(options):
        if options.quick and time.monotonic() - began > options.budget_s:
            show(f"{setup.name}: left out, the time is up")
            continue
        if save:
            report.remove_lines(save, partial(_is_old, setup.name))
        try:
            for line in measured(setup, options, profile, began):
                line["machine"] = {**about, "load": os.getloadavg(), "time": time.time()}
                raw.append(line)
                if save:
                    report.append(save, line)
        except (Unavailable, FileNotFoundError) as why:
            show(f"{setup.name}: left out, {why}")
            if not options.quick:
                return 3
    if save and save.exists():
        # Set-ups may be measured on different days.
        raw = _read(save)
        save.with_suffix(".md").write_text(_text(raw), encoding="utf-8")
    if save:
        report.draw(HERE)
    found = lines.comparisons(raw)
    report.print_report(
        "predict",
        lines.judge(found, len(TEN)),
        lines.table(found),
        options,
        began=began,
        machine=about,
    )
    return 0


def _read(path: Path) -> list[dict[str, Any]]:
    """Read raw lines, sorted by set-up."""
    raw = list(report.read(path))
    raw.sort(key=lambda line: list(BY_NAME).index(line["setup"]["name"]))
    return raw


def _text(raw: Sequence[Mapping[str, Any]]) -> str:
    """Return the results as a document."""
    found = lines.comparisons(raw)
    tables = f"{verdicts.markdown(lines.judge(found, len(TEN)))}\n{lines.table(found)}"
    return f"<!-- SPDX-License-Identifier: Apache-2.0 -->\n{TITLE}\n\n{tables}"


def _is_old(name: str, line: Mapping[str, Any]) -> bool:
    """Return whether a raw line belongs to the set-up that is measured again, or to a retired one."""
    return line["setup"]["name"] == name or all(line["setup"]["name"] != setup.name for setup in TEN)


def measured(
    setup: SetUp, options: argparse.Namespace, profile: Profile, began: float
) -> Iterator[dict[str, Any]]:
    """Predict a set-up, then run it; yield one raw line per run."""
    with (
        tempfile.TemporaryDirectory(prefix="predict-", dir=HOME) as folder,
        placed(setup, HOME, options.seed) as (place, limits),
    ):
        index = str(Path(folder) / "data.fidx")
        # Names are zero-padded numbers, so ids equal the numbers.
        _native.Index.build(place.uri, layout="flat", options=place.options).save(index)
        by_policy: dict[str, tuple[Times, dict[str, object]]] = {}
        with _ranks(setup) as run_task:
            ready = hand_over.measured(setup, HOME, options.seed, run_task)
            show(
                f"{setup.name}: a ready batch is handed over in {ready.loader * 1e3:.2f} ms, a pool's in {ready.pool * 1e3:.2f}"
            )
            for policy in setup.policies:
                job = predictions.job_of(setup, policy, place.truth, index, options.seed, profile, ready)
                by_policy[policy] = predictions.predicted(job, policy, ready.of(policy) * setup.steps)
            for repeat in range(options.repeats):
                for policy in setup.policies:
                    if options.quick and time.monotonic() - began > options.budget_s:
                        show(f"{setup.name} {policy}: left out, the time is up")
                        continue
                    line = _one(
                        setup,
                        policy,
                        options,
                        (place, limits),
                        index,
                        folder,
                        run_task,
                        by_policy[policy],
                        repeat,
                    )
                    yield line | {"hand_over_s": ready.of(policy)}


def _one(
    setup: SetUp,
    policy: str,
    options: argparse.Namespace,
    origin: tuple[Place, Limits],
    index: str,
    folder: str,
    run_task: RunTask,
    prediction: tuple[Times, dict[str, object]],
    repeat: int,
) -> dict[str, Any]:
    place, limits = origin
    scratch = Path(folder) / "cache"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    task = task_of(setup, policy, place, index, options.seed, scratch)
    limits.apply()
    try:
        results = run_task(task)
    finally:
        limits.lift()
    void = next((one["error"] for one in results if "error" in one), "")
    times = None if void else _times(results)
    predicted, simulated = prediction
    line = {
        "setup": facts(setup),
        "policy": policy,
        "repeat": repeat,
        "seed": options.seed,
        "predicted": asdict(predicted),
        "measured": None if times is None else asdict(times),
        "void": void,
        "ranks": results,
        "simulated": simulated,
    }
    if times is None:
        show(f"{setup.name:<17} {policy:<16} void: {void}")
    else:
        pairs = [(getattr(times, key), getattr(predicted, key)) for key in asdict(times)]
        show(f"{setup.name:<17} {policy:<16} " + "  ".join(f"{one:.3f}/{other:.3f}" for one, other in pairs))
    return line


def _times(results: Sequence[Mapping[str, Any]]) -> Times:
    """Return the times of all ranks: from the first start to the last end, and mean stalls."""
    began = min(one["began"] for one in results)
    ends = [max(one["epochs"][epoch]["end"] for one in results) for epoch in range(len(results[0]["epochs"]))]
    stalls = [
        sum(one["epochs"][epoch]["waited"] for one in results) / len(results) for epoch in range(len(ends))
    ]
    later = len(ends) - 1
    return Times(
        ends[0] - began, (ends[-1] - ends[0]) / later, stalls[0], sum(stalls[1:]) / later, ends[-1] - began
    )


@contextmanager
def _ranks(setup: SetUp) -> Iterator[RunTask]:
    """Start all ranks of a set-up; yield a function that runs a task on them."""
    log = HOME / "predict-ranks.log"
    command = [sys.executable, str(HERE / "rank.py"), str(setup.ranks)]
    pinned = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **pinned},
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        to, back = process.stdin, process.stdout

        def run_task(task: Mapping[str, Any]) -> list[dict[str, Any]]:
            to.write(json.dumps(task) + "\n")
            to.flush()
            line = back.readline()
            if not line:
                raise RuntimeError(f"the ranks ended with status {process.wait()}; see {log}")
            results: list[dict[str, Any]] = json.loads(line)
            return results

        try:
            yield run_task
        finally:
            to.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()


def _chosen(options: argparse.Namespace) -> list[SetUp]:
    """Return the selected set-ups, with the changes of the command line."""
    names = options.set_ups or (QUICK if options.quick else [setup.name for setup in TEN])
    chosen = [BY_NAME[name] for name in names]
    if options.quick:
        chosen = [setup.smaller(QUICK_FACTOR) for setup in chosen]
    changes = {
        key: value
        for key in ("bytes_per_s", "requests_per_s", "latency_ms", "epochs", "compute")
        if (value := getattr(options, key)) is not None
    }
    return [replace(setup, **changes) for setup in chosen]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure how far predictions are from runs, as PROTOCOL.md defines."
    )
    report.add_options(parser, "three set-ups, smaller, once: under a minute")
    parser.add_argument("--repeats", type=int, help="repeats of each policy, instead of 5 (quick run: 1)")
    parser.add_argument(
        "--set-ups",
        nargs="+",
        choices=list(BY_NAME),
        help="measure only these; set-ups for tuning are not saved",
    )
    parser.add_argument("--bytes-per-s", type=int, help="rate of the origin, instead of the set-up's")
    parser.add_argument(
        "--requests-per-s", type=int, help="request rate of the origin, instead of the set-up's"
    )
    parser.add_argument("--latency-ms", type=float, help="latency of the origin, instead of the set-up's")
    parser.add_argument("--epochs", type=int, help="epochs, instead of 3; 2 or more")
    parser.add_argument(
        "--compute", type=float, help="rate of compute over the origin's, instead of the set-up's"
    )
    parser.add_argument(
        "--calibrate-s", type=float, help="seconds of measuring memory and disk, instead of 10 (quick run: 3)"
    )
    parser.add_argument(
        "--budget-s",
        type=float,
        default=38.0,
        help="seconds after which the quick run starts nothing more (%(default)s)",
    )
    parser.add_argument("--table", type=Path, help="print the tables of these raw lines and exit")
    options = parser.parse_args()
    options.repeats = options.repeats or (1 if options.quick else 5)
    options.calibrate_s = options.calibrate_s or (3.0 if options.quick else 10.0)
    if options.epochs is not None and options.epochs < 2:
        parser.error(f"--epochs {options.epochs}: 2 or more expected, for the first and the later epochs")
    options.no_save = any(name in {setup.name for setup in TUNING} for name in options.set_ups or ())
    return options


if __name__ == "__main__":
    sys.exit(main())
