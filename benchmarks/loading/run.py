#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure loaders as PROTOCOL.md defines.

``--quick`` measures at least half of the acceptance lines within a minute, on small data. The full run measures every
arm on every workload with its grid of settings, which takes hours. Run ``make setup`` and ``make bench-setup`` first:
this program builds and downloads nothing.

Exit status: 0 measured (whether or not the lines hold), 2 bad arguments, 3 the environment lacks something (named).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import machine, verdicts  # noqa: E402 - needs the path above
from common.disk_origin import Unavailable  # noqa: E402
from common.report import add_options, print_report, raw_lines, show  # noqa: E402
from support import table  # noqa: E402
from support.job import Job, Result  # noqa: E402
from support.lines import Run, Runs, judge  # noqa: E402
from support.origins import Origin, origin_of  # noqa: E402
from support.process import Loading, ProcessFailed  # noqa: E402
from support.workloads import FULL, MB, QUICK, QUICK_ARMS, Workload, grid  # noqa: E402

ARMS = (
    "bound",
    "ours",
    "torch",
    "pool",
    "spdl",
    "grain",
    "s3torchconnector",
    "streaming",
    "litdata",
    "webdataset",
)
#: Repeats of the quick run for workloads whose epochs take milliseconds.
QUICK_REPEATS = 3
#: A setting of the grid is stopped when it has taken this many times as long as another one of its arm.
STOP_FACTOR = 1.5
#: Arms that convert the data into another format.
CONVERTING = ("streaming", "litdata", "webdataset")
HOME = HERE.parents[1] / ".tools" / "bench-data"


@dataclasses.dataclass
class Session:
    """State of one call of this program: options, processes, runs."""

    seed: int
    timeout_s: float
    deadline: float
    #: Reuse processes for several jobs; peak memory is then not that of one run.
    reuse: bool
    machine: dict[str, Any]
    stack: contextlib.ExitStack
    #: File to which each run is appended when it ends.
    save: Path | None = None
    runs: list[Run] = dataclasses.field(default_factory=list)
    processes: dict[tuple[str, ...], Loading] = dataclasses.field(default_factory=dict)
    #: Seconds of each conversion, by arm and folder of samples.
    prepare_s: dict[tuple[str, str], float] = dataclasses.field(default_factory=dict)

    def measure(self, origin: Origin, arm: str, settings: dict[str, Any]) -> Run:
        """Run one arm once; a failure makes the run void, with the reason."""
        scratch = Path(tempfile.mkdtemp(prefix="run-", dir=HOME))
        job = self._job(origin, arm, settings, scratch)
        try:
            run = self._run(origin, job)
        except (ProcessFailed, OSError) as error:
            run = self._make_run(
                origin, job, Result(arm, job.workload, settings, "", 0.0, 0.0, [], error=str(error))
            )
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        self.record(run)
        seconds = f"{run.seconds:.2f} s" if not run.void else f"void: {run.void}"
        show(f"{job.workload:<11} {arm:<16} {json.dumps(settings):<36} {seconds}")
        return run

    def record(self, run: Run) -> None:
        """Add a run and save its line."""
        self.runs.append(run)
        if self.save:
            table.write(self.save, run)

    def _run(self, origin: Origin, job: Job) -> Run:
        if job.arm in CONVERTING and (job.arm, origin.place.folder) not in self.prepare_s:
            # Conversion is not measured, so it runs outside the control group.
            with Loading(job.arm) as loading:
                prepared, _ = loading.run(dataclasses.replace(job, phase="prepare"), timeout_s=self.timeout_s)
            if prepared.error:
                return self._make_run(origin, job, prepared)
            self.prepare_s[(job.arm, origin.place.folder)] = prepared.prepare_s
        # The arm `bound` has all batches in memory, so the memory limit must not apply to it.
        wrap = [] if job.arm == "bound" else origin.wrap
        if self.reuse and not wrap:
            if (job.arm,) not in self.processes:
                self.processes[(job.arm,)] = self.stack.enter_context(Loading(job.arm))
            return self._timed(origin, job, self.processes[(job.arm,)])
        with Loading(job.arm, wrap) as loading:
            return self._timed(origin, job, loading)

    def _timed(self, origin: Origin, job: Job, loading: Loading) -> Run:
        origin.begin(job)
        try:
            result, peak = loading.run(job, timeout_s=self.timeout_s)
        except ProcessFailed:
            self.processes.pop((job.arm,), None)
            raise
        return self._make_run(origin, job, result, peak)

    def _make_run(self, origin: Origin, job: Job, result: Result, peak: int = 0) -> Run:
        workload, truth = origin.workload, origin.truth
        result.prepare_s = self.prepare_s.get((job.arm, origin.place.folder), result.prepare_s)
        origin_bytes, origin_requests = origin.counted()
        compute = job.compute_s * -(-workload.samples // workload.batch)
        return Run(
            result=result,
            origin_bytes=origin_bytes,
            origin_requests=origin_requests,
            peak_pss_bytes=peak,
            data_bytes=truth.bytes,
            sequential_bytes=origin.sequential_bytes(),
            origin_pass_s=workload.origin_pass_s(truth.bytes),
            compute_pass_s=compute,
            compute_step_s=job.compute_s,
            requests_per_s=workload.rates.requests_per_s,
            void=void(origin, result),
            ram_bytes=job.ram_bytes,
            cache_bytes=job.ram_bytes + job.disk_bytes,
            machine={**self.machine, "load": os.getloadavg(), "time": time.time()},
        )

    def _job(self, origin: Origin, arm: str, settings: dict[str, Any], scratch: Path) -> Job:
        workload, truth = origin.workload, origin.truth
        return Job(
            arm=arm,
            workload=workload.name,
            place=origin.place,
            samples=workload.samples,
            sample_bytes=workload.sample_bytes,
            equal=workload.bytes_min == workload.bytes_max,
            batch=workload.batch,
            epochs=workload.epochs,
            seed=self.seed,
            compute_s=workload.compute_s(truth.bytes),
            ram_bytes=workload.ram_bytes(truth.bytes),
            disk_bytes=workload.disk_bytes(truth.bytes),
            scratch=str(scratch),
            verify=workload.origin != "tmpfs",
            settings=settings,
        )


def void(origin: Origin, result: Result) -> str:
    """Return why a run is void: it failed, or did not deliver every sample once and unchanged. Empty if it is valid."""
    if result.error:
        return result.error.splitlines()[0]
    truth = origin.truth
    for number, epoch in enumerate(result.epochs):
        found = (epoch.samples, epoch.bytes)
        if found != (truth.samples, truth.bytes):
            return (
                f"epoch {number} delivered {found} samples and bytes, expected {(truth.samples, truth.bytes)}"
            )
        if epoch.verified and (epoch.checksum, epoch.ids) != (truth.checksum, truth.ids):
            return f"epoch {number} delivered other bytes than the data set has"
    return ""


def quick(session: Session, workloads: list[Workload]) -> None:
    """Run one good setting per arm until the time is up."""
    for workload in workloads:
        if time.monotonic() > session.deadline:
            show(f"{workload.name}: left out, the time is up")
            continue
        with usable(workload, session.seed) as origin:
            # Repeat epochs of milliseconds, so that one disturbance of the host does not decide.
            repeats = QUICK_REPEATS if workload.origin == "tmpfs" else 1
            for arm, settings in repeats * QUICK_ARMS[workload.name] if origin else []:
                if time.monotonic() < session.deadline:
                    session.measure(origin, arm, settings)


def full(session: Session, workloads: list[Workload], arms: list[str], repeats: int) -> None:
    """Run the grid once, then repeat the best setting of each arm, interleaved."""
    for workload in workloads:
        with usable(workload, session.seed) as origin:
            if origin is None:
                continue
            if session.save:
                table.remove_lines(session.save, workload.name)
            trial = dataclasses.replace(session, seed=session.seed + 1, save=None, runs=[])
            for arm in arms:
                try_settings(trial, origin, arm)
            tried = Runs(trial.runs)
            chosen: dict[str, dict[str, Any]] = {}
            for arm in arms:
                best = tried.best_setting(workload.name, arm)
                settings = grid(arm, workload)
                if best is not None or len(settings) == 1:
                    chosen[arm] = best if best is not None else settings[0]
                elif settings:
                    session.record(next(run for run in trial.runs if run.result.arm == arm))
            for _ in range(repeats):
                for arm, one in chosen.items():
                    session.measure(origin, arm, one)


def try_settings(trial: Session, origin: Origin, arm: str) -> None:
    """Run an arm's grid once if it has a choice; stop settings that can no longer win."""
    settings = grid(arm, origin.workload)
    timeout_s = trial.timeout_s
    for one in settings if len(settings) > 1 else []:
        began = time.monotonic()
        run = trial.measure(origin, arm, one)
        if not run.void:
            trial.timeout_s = min(trial.timeout_s, STOP_FACTOR * (time.monotonic() - began))
    trial.timeout_s = timeout_s


@contextlib.contextmanager
def usable(workload: Workload, seed: int) -> Iterator[Any]:
    """Yield the workload's origin, or None if this host cannot provide it."""
    with contextlib.ExitStack() as stack:
        try:
            origin = stack.enter_context(origin_of(workload, HOME, seed))
        except Unavailable as reason:
            show(f"{workload.name}: left out, {reason}")
            yield None
            return
        yield origin


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure loaders as PROTOCOL.md defines.")
    add_options(parser, "small data, few arms, under three minutes")
    parser.add_argument(
        "--repeats", type=int, default=5, help="repeats of the full run (default %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=40, help="the quick run starts nothing later (default %(default)s)"
    )
    parser.add_argument(
        "--timeout", type=float, default=1200, help="limit of one run, seconds (default %(default)s)"
    )
    parser.add_argument(
        "--workloads", nargs="*", help="measure only these: " + ", ".join(one.name for one in FULL)
    )
    parser.add_argument(
        "--arms", nargs="*", choices=ARMS, default=list(ARMS), help="measure only these arms in the full run"
    )
    parser.add_argument("--samples", type=int, help="samples of every workload, instead of its own number")
    parser.add_argument(
        "--bytes-per-s", type=float, help="MB per second of every slow origin, instead of its own"
    )
    parser.add_argument("--requests-per-s", type=int, help="limit of every slow origin, instead of its own")
    parser.add_argument("--latency-ms", type=float, help="latency of every bucket, instead of its own")
    parser.add_argument("--save", type=Path, help="append raw lines here (full run: results/loading_*.jsonl)")
    parser.add_argument("--table", type=Path, help="print the table of these raw lines and exit")
    parser.add_argument("--summary", type=Path, help="print the README's rows of these raw lines and exit")
    args = parser.parse_args()
    known = {one.name for one in (QUICK if args.quick else FULL)}
    for name in args.workloads or []:
        if name not in known:
            parser.error(f"unknown workload {name!r}; choose from {', '.join(sorted(known))}")
    return args


def chosen_workloads(args: argparse.Namespace) -> list[Workload]:
    """Return the workloads with the changes of the command line."""
    chosen = []
    for one in QUICK if args.quick else FULL:
        if args.workloads and one.name not in args.workloads:
            continue
        rates = one.rates
        if one.origin != "tmpfs":
            wanted = {
                "bytes_per_s": None if args.bytes_per_s is None else int(args.bytes_per_s * MB),
                "requests_per_s": args.requests_per_s,
                "latency_ms": args.latency_ms if one.origin == "s3" else None,
            }
            rates = dataclasses.replace(
                rates, **{name: value for name, value in wanted.items() if value is not None}
            )
        chosen.append(dataclasses.replace(one, rates=rates, samples=args.samples or one.samples))
    # The quick run starts with the cheap workloads, so that a slow host still measures most lines.
    order = {"tmpfs": 0, "s3": 1, "disk": 2}
    return sorted(chosen, key=lambda one: order[one.origin]) if args.quick else chosen


def main() -> int:
    """Measure, and print the verdicts."""
    args = parse()
    if args.summary:
        print(table.summary(table.read(args.summary)), end="")
        return 0
    if args.table:
        runs = table.read(args.table)
        print(verdicts.markdown(judge(runs)), table.markdown(runs), sep="\n", end="")
        return 0
    began = time.monotonic()
    HOME.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        about = {**machine.describe(), "memcpy_bytes_per_s": machine.memcpy_bytes_per_s(110_000)}
        save = raw_lines(args, HERE, "loading", about)
        session = Session(args.seed, args.timeout, began + args.seconds, args.quick, about, stack, save)
        try:
            if args.quick:
                quick(session, chosen_workloads(args))
            else:
                full(session, chosen_workloads(args), args.arms, args.repeats)
        except FileNotFoundError as missing:
            show(f"run.py: {missing}")
            return 3
    found = Runs(session.runs)
    lines = judge(found)
    if args.quick and not args.workloads:
        # Only here: its import takes seconds, which a table does not need.
        import any_dataset

        lines += any_dataset.lines(any_dataset.measure(QUICK_REPEATS))
    print_report(
        "loading",
        lines,
        table.markdown(found),
        args,
        began=began,
        machine=session.machine,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
