# SPDX-License-Identifier: Apache-2.0
"""A prediction of the run that is going on: made beside it, written first, compared at the end.

Where the environment names a machine profile and a run folder, rank 0 predicts how long its own policy takes and
writes ``prediction.json``; at the end what was measured is added, and by how much the prediction was off. With a job
file that says how long a step computes it is begun with the loader, and the first batch waits for it, for two seconds
at most; else the first steps tell, and it comes after them. The file says after how many steps it was written.

The simulation has a thread of its own, which yields to everything else, and stops when the run does. Training never
fails with it: a prediction that cannot be made is one warning. ``here`` has what is simulated.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from foresee._schema import files
from foresee.jobspec import Job, Profile, profile
from foresee.predict import live_job, prediction_file
from foresee.predict.live_job import Shape

__all__ = ["Beside", "Shape"]

_log = logging.getLogger("foresee")

#: Steps that tell how long one computes.
_STEPS = 16
_LEAST_S = 1e-9
_NICE = 19
#: What the first batch waits for its prediction at most: enough for a million reads, too little to be missed.
_HEAD_START_S = 2.0
#: What the end of a run waits for a prediction that is being made.
_PATIENCE_S = 2.0


class Beside:
    """See the module. Called from the thread that hands out batches, and at the end from any.

    Args:
        shape: of the run.
        folder: the run folder.
        profile_file: of this machine.
        job_file: what the loader does not know, above all how long a step computes; None: the first steps tell.
        waits: seconds of waiting since the start, by cause.
        clock: seconds.
    """

    def __init__(
        self,
        shape: Shape,
        folder: str,
        profile_file: str,
        job_file: str | None,
        waits: Callable[[], Mapping[str, float]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shape = shape
        self._folder = folder
        self._profile_file = profile_file
        self._job_file = job_file
        self._waits = waits
        self._clock = clock
        self._process = os.getpid()
        self._stop = threading.Event()
        self._settled = threading.Event()
        self._thread: threading.Thread | None = None
        self._document: dict[str, Any] | None = None
        self._path: str | None = None
        self._warned = False
        self._ended = False
        self._held = False
        self._steps = 0
        self._first = (0.0, 0.0)
        self._begun: tuple[float, Mapping[str, float]] | None = None
        self._whole: list[tuple[float, float, int]] = []
        self._causes: dict[str, float] = {}
        self._of_epoch = 0
        if job_file is not None:
            self._guard(self._start, None)

    def begin(self, *, whole: bool) -> None:
        """An epoch begins; ``whole``: with its first sample. The first one waits for a prediction on its way."""
        if self._thread is not None and not (self._steps or self._held) and self._process == os.getpid():
            # Before the clock of the epoch starts; an epoch that is begun again without a batch has waited already.
            self._held = True
            self._settled.wait(_HEAD_START_S)
        self._begun = None
        self._of_epoch = 0
        if whole:
            self._guard(self._open)

    def handed(self, *, finished: bool) -> None:
        """A batch is about to reach the training loop; ``finished``: the last of its epoch."""
        self._steps += 1
        self._of_epoch += 1
        if self._steps in (1, 1 + _STEPS) or finished:
            self._guard(self._snapshot, finished)

    def end(self) -> None:
        """The run is over: add what was measured. Idempotent."""
        if self._ended or self._process != os.getpid():
            return
        self._ended = True
        if self._thread is None:
            self._warn("the run ended before its steps told how long one computes")
            return
        self._thread.join(_PATIENCE_S)
        self._stop.set()
        self._thread.join(_PATIENCE_S)
        if self._document is None:
            self._warn("the run ended before the simulation did")
            return
        self._guard(self._compare)

    def _open(self) -> None:
        self._begun = (self._clock(), dict(self._waits()))

    def _snapshot(self, finished: bool) -> None:
        now, waits = self._clock(), self._waits()
        waited = sum(waits.values())
        if self._steps == 1:
            self._first = (now, waited)
        elif self._thread is None and (self._steps == 1 + _STEPS or finished):
            steps = self._steps - 1
            first, before = self._first
            self._start(max((now - first - (waited - before)) / steps, _LEAST_S))
        if finished and self._begun is not None:
            began, before_by_cause = self._begun
            spent = {cause: waits[cause] - before_by_cause.get(cause, 0.0) for cause in waits}
            for cause, seconds in spent.items():
                self._causes[cause] = self._causes.get(cause, 0.0) + seconds
            self._whole.append((now - began, sum(spent.values()), self._of_epoch))

    def _start(self, step_s: float | None) -> None:
        self._thread = threading.Thread(
            target=self._guard,
            args=(self._predict, step_s, 0 if step_s is None else self._steps - 1),
            name="foresee-prediction",
            daemon=True,
        )
        self._thread.start()

    def _predict(self, step_s: float | None, measured_steps: int) -> None:
        try:
            if sys.platform == "linux":
                # Priorities are by thread there; any other thread gets the core first.
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
            machine = profile.read(self._profile_file)
            told = self._job(machine, step_s)
            if told is None:
                return
            job, predicted = told
            self._document = {
                "policy": live_job.POLICY,
                "profile": self._profile_file,
                "machine": machine.machine,
                "job": self._job_file,
                "rank": self._shape.rank,
                "ranks": self._shape.ranks,
                "compute": {
                    "from": "first steps" if step_s is not None else "job file",
                    "steps": measured_steps,
                    "step_s": job.train.compute_step,
                    "bytes_per_s": job.train.compute_rate,
                },
                "after_steps": self._steps,
                "predicted": predicted,
                "interval": None,
                "measured": None,
                "error": None,
                "moved": None,
            }
            self._write()
            if self._steps != self._document["after_steps"]:
                # Steps that were taken while it was written were taken before it was there.
                self._document["after_steps"] = self._steps
                self._write()
        finally:
            self._settled.set()
        if (ends := live_job.ends(machine)) is not None:
            each = [self._job(end, step_s) for end in ends]
            if all(one is not None for one in each):
                self._document["interval"] = prediction_file.interval(
                    [predicted, *(one[1] for one in each if one is not None)]
                )
                self._write()

    def _job(self, machine: Profile, step_s: float | None) -> tuple[Job, dict[str, Any]] | None:
        """The job, and what it is predicted to take on ``machine``; None if the run ended meanwhile."""
        job = live_job.job_of(self._shape, step_s, machine, self._job_file)
        reports = live_job.simulated(self._shape, job, self._stop.is_set)
        return None if reports is None else (job, prediction_file.predicted(reports, self._shape.epochs))

    def _compare(self) -> None:
        assert self._document is not None, "there is one"
        steps = sum(steps for _, _, steps in self._whole)
        # An epoch ends with its last step, which began when its batch was handed out and which no wait ends: it takes
        # as long as the others, of which there is one less.
        computed = sum(took - waited for took, waited, _ in self._whole)
        step_s = computed / max(1, steps - len(self._whole))
        epoch_s = [took + step_s for took, _, _ in self._whole]
        found = prediction_file.measured(
            epoch_s, [waited for _, waited, _ in self._whole], self._causes, step_s
        )
        self._document["measured"] = found
        self._document["error"] = prediction_file.error(self._document["predicted"], found)
        self._document["moved"] = prediction_file.moved(
            self._document["predicted"], self._document["interval"], found
        )
        self._write()

    def _write(self) -> None:
        """A file of this loader's own: further loaders of the rank have others."""
        assert self._document is not None, "there is one"
        text = prediction_file.dumps(self._document)
        if self._path is not None:
            files.write(self._path, text)
            return
        os.makedirs(self._folder, exist_ok=True)
        number = 1
        while True:
            name = "prediction.json" if number == 1 else f"prediction.{number}.json"
            path = os.path.join(self._folder, name)
            try:
                with open(path, "x", encoding="utf-8") as file:
                    file.write(text)
            except FileExistsError:
                number += 1
                continue
            self._path = path
            return

    def _guard(self, work: Callable[..., None], *arguments: Any) -> None:
        """Training goes on whatever becomes of its prediction."""
        try:
            work(*arguments)
        except Exception as why:  # noqa: BLE001 - a prediction may fail for any reason, training for none of them
            self._warn(str(why))

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("this run has no prediction: %s", why)
