# SPDX-License-Identifier: Apache-2.0
"""State of one call of the benchmark: calibrate, predict, run jobs, and save each run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.report import show

from foresee import jobspec
from foresee.errors import ForeseeError
from foresee.stagger.local_job import LocalJob
from foresee.stagger.reports import total_steps

from . import models, runs
from .models import Size
from .origin import Mount
from .runs import Run

#: Measured steps and warm-up steps of each form of calibration.
LONG, SHORT, QUICK = (100, 10), (50, 10), (30, 6)
#: Interval between two checks of running jobs.
POLL_S = 0.005


class Failed(Exception):
    """A command of foresee failed; the message contains its error."""


@dataclass
class Session:
    """State of one call."""

    size: Size
    origin: Mount
    #: Folder for job files, catalogs and runs.
    work: Path
    machine: dict[str, Any]
    save: Path | None
    timeout_s: float
    runs: list[Run] = field(default_factory=list)
    _count: int = 0

    def record(self, run: Run) -> None:
        """Add a run, save its line, and print its result."""
        run.machine = self.machine
        self.runs.append(run)
        if self.save:
            runs.write(self.save, run)
        result = run.void or f"{run.makespan:.2f} s" + (
            "" if run.error_pct is None else f", predicted {run.error_pct:+.2f} %"
        )
        show(f"{run.part:<12} {' '.join(run.jobs):<44} {run.arm:<10} {result}")

    def calibrate(self, names: Sequence[str], form: str, *, cost: bool = False) -> Path:
        """Calibrate jobs into a new catalog.

        Args:
            names: the jobs.
            form: ``long``, ``short``, or ``quick``, which has the fewest steps but measures the pair together too.
            cost: add the cost of this calibration and of a second one as runs.
        """
        catalog = self._next("catalog").with_suffix(".db")
        self.origin.evict()
        first = self._calibrate(names, catalog, form)
        if cost:
            again = self._calibrate(names, catalog, form)
            facts = self.predict(names, catalog)
            order = next(each for each in facts["orders"] if each["leader"] == facts["best"]["leader"])
            alone = sum(each["alone_seconds"] for each in facts["jobs"])
            for arm, report in ((form, first), ("again", again)):
                self.record(
                    self._run(
                        "calibration",
                        names,
                        arm,
                        makespan=alone,
                        runs=len(report["runs"]),
                        lasted=report["lasted_seconds"],
                        leader=order["leader"],
                        best=facts["best"]["makespan"],
                        at_once=next(row for row in order["table"] if row["percent"] == 0)["makespan"],
                    )
                )
        return catalog

    def _calibrate(self, names: Sequence[str], catalog: Path, form: str) -> dict[str, Any]:
        steps, before = {"long": LONG, "short": SHORT, "quick": QUICK}[form]
        words = ["--steps", str(steps), "--warmup", str(before)]
        for folder in self.origin.data:
            words += ["--data", str(folder)]
        return self._foresee("calibrate", names, catalog, *words, *(["--short"] if form == "short" else []))

    def predict(self, names: Sequence[str], catalog: Path) -> dict[str, Any]:
        """Return the output of ``foresee stagger predict``."""
        return self._foresee("predict", names, catalog)

    def command(self, part: str, names: Sequence[str], catalog: Path) -> None:
        """Measure ``foresee stagger run``, which chooses the order and the starts."""
        self.origin.evict()
        try:
            with self.origin.lock_pages():
                report = self._foresee("run", names, catalog, "--folder", str(self._next("run")))
        except Failed as failed:
            self.record(self._run(part, names, "command", void=str(failed)))
            return
        measured = report["measured"]
        self.record(
            self._run(
                part,
                [report["leader"], *report["followers"]],
                "command",
                starts=report["predicted"]["starts"],
                started=measured["starts"],
                seconds=measured["seconds"],
                makespan=measured["makespan"],
                predicted=report["predicted"]["makespan"],
            )
        )

    def run_pair(
        self, part: str, names: Sequence[str], arm: str, start: float | None, predicted: float | None
    ) -> None:
        """Run two jobs without correction, the second ``start`` seconds after the first; None: after its end."""
        self.origin.evict()
        try:
            with self.origin.lock_pages():
                started, ends = self._together(names, start)
        except (Failed, ForeseeError) as failed:
            self.record(self._run(part, names, arm, void=str(failed)))
            return
        self.record(
            self._run(
                part,
                names,
                arm,
                starts=[0.0, started[1] if start is None else start],
                started=started,
                seconds=[end - begin for begin, end in zip(started, ends, strict=True)],
                makespan=max(ends),
                predicted=predicted,
            )
        )

    def _together(self, names: Sequence[str], start: float | None) -> tuple[list[float], list[float]]:
        folder = self._next("at")
        folder.mkdir()
        jobs = [jobspec.read(path) for path in self._files(names)]
        processes: list[LocalJob] = []
        deadline = time.monotonic() + self.timeout_s
        try:
            for read, name in zip(jobs, names, strict=True):
                processes.append(LocalJob(read, name, str(folder), held=True))
            leader, other = processes
            self._until(lambda: all(each.head is not None for each in processes), processes, deadline)
            self.origin.drain_burst()
            leader.release()
            if start is None:
                self._until(lambda: leader.done >= total_steps(leader.job), processes, deadline)
            elif start > 0:
                self._until(lambda: leader.done > 0, processes, deadline)
                time.sleep(max(float(leader.steps()[0, 0]) + start - time.monotonic(), 0.0))
            other.release()
            self._until(lambda: all(each.poll() is not None for each in processes), processes, deadline)
            steps = [each.steps() for each in processes]
            for each, name, done in zip(processes, names, steps, strict=True):
                if each.poll() != 0 or len(done) != self.size.steps * self.size.epochs:
                    raise Failed(f"{name} ended with {each.poll()} after {len(done)} steps")
        finally:
            for each in processes:
                each.stop()
        zero = float(steps[0][0, 0])
        return [float(each[0, 0]) - zero for each in steps], [float(each[-1].sum()) - zero for each in steps]

    def _until(self, ready: object, processes: Sequence[LocalJob], deadline: float) -> None:
        assert callable(ready)
        while not ready():
            for each in processes:
                code = each.poll()
                if code:
                    raise each.exit_error(code)
            if time.monotonic() > deadline:
                raise Failed(f"no end within {self.timeout_s:.0f} s")
            time.sleep(POLL_S)

    def _run(self, part: str, names: Sequence[str], arm: str, **more: Any) -> Run:
        return Run(part, self.origin.name, list(names), arm, self.size.steps, **more)

    def _files(self, names: Sequence[str]) -> list[str]:
        return [models.write(self.work, name, self.size, self.origin.folder) for name in names]

    def _next(self, what: str) -> Path:
        self._count += 1
        return self.work / f"{self._count:04d}-{what}"

    def _foresee(self, action: str, names: Sequence[str], catalog: Path, *words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "foresee", "stagger", action, *self._files(names)]
        command += ["--catalog", str(catalog), "--machine", "bench", *words, "--json"]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=len(names) * self.timeout_s
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"foresee stagger {action}: no end") from None
        if ended.returncode != 0:
            raise Failed(f"foresee stagger {action}: {ended.stderr.strip()[-500:]}")
        report: dict[str, Any] = json.loads(ended.stdout)
        return report

    def clear(self) -> None:
        """Remove run folders: the raw lines contain every result."""
        shutil.rmtree(self.work, ignore_errors=True)
