# SPDX-License-Identifier: Apache-2.0
"""Prediction of a running job: written during the run, and compared with the measured times at its end.

Rank 0 predicts its own run if the environment names a profile and a run folder; ``docs/formats/prediction.md``
describes the file. The simulation has a thread of the lowest priority, which stops when the run does. Training never
fails because of a prediction: a fault is one warning. ``live_job`` makes the simulated job.
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

__all__ = ["LivePrediction", "Shape"]

_log = logging.getLogger("foresee")

#: Steps that give the compute time of one.
_STEPS = 16
_LEAST_S = 1e-9
_NICE = 19
#: Longest wait of the first batch for the prediction: enough to simulate a million reads.
_HEAD_START_S = 2.0
#: Longest wait for an incomplete prediction at the end of a run.
_LINGER_S = 2.0


class LivePrediction:
    """The prediction of one loader. The thread that delivers batches calls it; any thread may call ``close``.

    Args:
        shape: facts of the run.
        folder: the run folder.
        profile_file: profile of this host.
        job_file: keys that the loader lacks, above all the compute time of a step; None: the first steps give it.
        waits: seconds of waiting since the start, by cause.
        node: the node's cache in the loader's statistics; None with own caches. It is called after the first batch.
        clock: seconds.
    """

    def __init__(
        self,
        shape: Shape,
        folder: str,
        profile_file: str,
        job_file: str | None,
        waits: Callable[[], Mapping[str, float]],
        node: Callable[[], Mapping[str, Any] | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shape = shape
        self._folder = folder
        self._profile_file = profile_file
        self._job_file = job_file
        self._waits = waits
        self._node = node
        self._clock = clock
        self._process = os.getpid()
        self._stop = threading.Event()
        self._is_written = threading.Event()
        self._thread: threading.Thread | None = None
        self._document: dict[str, Any] | None = None
        self._path: str | None = None
        self._has_warned = False
        self._is_closed = False
        self._has_waited = False
        self._steps = 0
        self._first_batch = (0.0, 0.0)
        self._epoch_start: tuple[float, Mapping[str, float]] | None = None
        self._epochs: list[tuple[float, float, int]] = []
        self._causes: dict[str, float] = {}
        self._epoch_steps = 0
        if job_file is not None:
            self._guard(self._start, None)

    def begin_epoch(self, *, whole: bool) -> None:
        """Begin an epoch, with its first sample if ``whole``. The first one waits for a prediction in progress."""
        if (
            self._thread is not None
            and not (self._steps or self._has_waited)
            and self._process == os.getpid()
        ):
            # Before the clock of the epoch starts; an epoch that begins again without a batch does not wait again.
            self._has_waited = True
            self._is_written.wait(_HEAD_START_S)
        self._epoch_start = None
        self._epoch_steps = 0
        if whole:
            self._guard(self._open)

    def on_batch(self, *, finished: bool) -> None:
        """Count a batch that is about to reach the training loop; ``finished``: it is the last of its epoch."""
        self._steps += 1
        self._epoch_steps += 1
        if self._steps in (1, 1 + _STEPS) or finished:
            self._guard(self._snapshot, finished)

    def close(self) -> None:
        """End the run: add the measured times to the file. Idempotent."""
        if self._is_closed or self._process != os.getpid():
            return
        self._is_closed = True
        if self._thread is None:
            self._warn("the run ended before its first steps gave the compute time of one")
            return
        self._thread.join(_LINGER_S)
        self._stop.set()
        self._thread.join(_LINGER_S)
        if self._document is None:
            self._warn("the run ended before the simulation did")
            return
        self._guard(self._compare)

    def _open(self) -> None:
        self._epoch_start = (self._clock(), dict(self._waits()))

    def _snapshot(self, finished: bool) -> None:
        now, waits = self._clock(), self._waits()
        waited = sum(waits.values())
        if self._steps == 1:
            self._first_batch = (now, waited)
        elif self._thread is None and (self._steps == 1 + _STEPS or finished):
            steps = self._steps - 1
            first, before = self._first_batch
            self._start(max((now - first - (waited - before)) / steps, _LEAST_S))
        if finished and self._epoch_start is not None:
            began, before_by_cause = self._epoch_start
            spent = {cause: waits[cause] - before_by_cause.get(cause, 0.0) for cause in waits}
            for cause, seconds in spent.items():
                self._causes[cause] = self._causes.get(cause, 0.0) + seconds
            self._epochs.append((now - began, sum(spent.values()), self._epoch_steps))

    def _start(self, step_s: float | None) -> None:
        if step_s is not None:
            self._shape = live_job.as_attached(self._shape, self._node())
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
            simulated = self._simulate(machine, step_s)
            if simulated is None:
                return
            job, predicted = simulated
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
                # Steps during the write precede the file.
                self._document["after_steps"] = self._steps
                self._write()
        finally:
            self._is_written.set()
        if (ends := live_job.ends(machine)) is not None:
            each = [self._simulate(end, step_s) for end in ends]
            if all(one is not None for one in each):
                self._document["interval"] = prediction_file.interval(
                    [predicted, *(one[1] for one in each if one is not None)]
                )
                self._write()

    def _simulate(self, machine: Profile, step_s: float | None) -> tuple[Job, dict[str, Any]] | None:
        """Return the job and its prediction on ``machine``; None if the run ended during the simulation."""
        job = live_job.job_of(self._shape, step_s, machine, self._job_file)
        reports = live_job.simulated(self._shape, job, self._stop.is_set)
        return None if reports is None else (job, prediction_file.predicted(reports, self._shape.epochs))

    def _compare(self) -> None:
        assert self._document is not None
        steps = sum(steps for _, _, steps in self._epochs)
        # No wait ends the last step of an epoch: it is assumed to take as long as the others, one fewer.
        computed = sum(took - waited for took, waited, _ in self._epochs)
        step_s = computed / max(1, steps - len(self._epochs))
        epoch_s = [took + step_s for took, _, _ in self._epochs]
        found = prediction_file.measured(
            epoch_s, [waited for _, waited, _ in self._epochs], self._causes, step_s
        )
        self._document["measured"] = found
        self._document["error"] = prediction_file.error(self._document["predicted"], found)
        self._document["moved"] = prediction_file.moved(
            self._document["predicted"], self._document["interval"], found
        )
        self._write()

    def _write(self) -> None:
        """Write the file of this loader; further loaders of the rank have other names."""
        assert self._document is not None
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
        """Run ``work``; a fault is a warning, so that training continues."""
        try:
            work(*arguments)
        except Exception as why:  # noqa: BLE001 - a prediction may fail for any reason, training for none of them
            self._warn(str(why))

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning("this run has no prediction: %s", why)
