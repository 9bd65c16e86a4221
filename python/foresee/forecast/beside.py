# SPDX-License-Identifier: Apache-2.0
"""A prediction of the run that is going on: made beside it, written first, compared at the end.

Where the environment names a machine profile and a run folder, rank 0 predicts how long its own policy takes and
writes ``prediction.json``; at the end what was measured is added, and by how much the prediction was off. With a job
file that says how long a step computes that is before the first step; else the first steps tell, and it is after
them.

The simulation has a thread of its own, which yields to everything else, and stops when the run does. Training neither
waits for it nor fails with it: a prediction that cannot be made is one warning.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from foresee import _files
from foresee.errors import ConfigError
from foresee.forecast import foretold
from foresee.forecast.elsewhere import ram_room, staging_bytes
from foresee.job import completed, profile
from foresee.models import loading

__all__ = ["Beside", "Shape"]

_log = logging.getLogger("foresee")

#: Steps that tell how long one computes.
_STEPS = 16
#: Epochs that are simulated: the first, and what the others are like.
_EPOCHS = 3
#: Reads that are simulated at most: seconds of one core.
_READS_MAX = 2**25
_LEAST_S = 1e-9
#: Threads that fetch, where nobody said how many.
_THREADS = 32
_NICE = 19
#: What the end of a run waits for a prediction that is being made.
_PATIENCE_S = 2.0
_POLICY = "foresee"


@dataclass(frozen=True)
class Shape:
    """What the loader knows of its run."""

    samples: int
    """Of the data set."""
    mean_bytes: float
    """Of a sample."""
    sigma_bytes: float
    """Standard deviation of that."""
    batch: int
    """Samples per rank and step."""
    drop_last: bool
    """Whether a short last batch is left out."""
    epochs: int | None
    """None: nobody knows."""
    ranks: int
    """Training processes."""
    rank: int
    """This one."""
    seed: int
    """Of the order."""
    shuffled: bool
    """Or ascending."""
    ram_bytes: int
    """Of the cache, staging among them."""
    disk_bytes: int
    """Likewise; 0: there is none."""
    threads: int | None
    """Of the engine; None: as it chooses."""
    folder: bool
    """Whether it reads files, which a device serves one after the other, and no bucket, whose answers share a link."""


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
        self._thread: threading.Thread | None = None
        self._document: dict[str, Any] | None = None
        self._path: str | None = None
        self._warned = False
        self._ended = False
        self._steps = 0
        self._first = (0.0, 0.0)
        self._begun: tuple[float, Mapping[str, float]] | None = None
        self._whole: list[tuple[float, float, int]] = []
        self._causes: dict[str, float] = {}
        self._of_epoch = 0
        if job_file is not None:
            self._guard(self._start, None)

    def begin(self, *, whole: bool) -> None:
        """An epoch begins; ``whole``: with its first sample."""
        self._begun = None
        self._of_epoch = 0
        if whole:
            self._guard(self._open)

    def handed(self, *, finished: bool) -> None:
        """A batch is about to reach the training loop; ``finished``: the last of its epoch."""
        self._steps += 1
        self._of_epoch += 1
        if self._steps in (1, 1 + _STEPS) or finished:
            self._guard(self._look, finished)

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

    def _look(self, finished: bool) -> None:
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
            args=(self._predict, step_s, self._steps),
            name="foresee-prediction",
            daemon=True,
        )
        self._thread.start()

    def _predict(self, step_s: float | None, after: int) -> None:
        if sys.platform == "linux":
            # Priorities are by thread there; whoever else wants the core has it.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        shape = self._shape
        machine = profile.read(self._profile_file)
        job = completed(_known(shape, step_s), machine, self._job_file)
        if job.train.compute_step is None and job.train.compute_rate is None:
            raise ConfigError(
                f"{self._job_file}: train.compute_step is missing, and so is train.compute_rate; one of both, or no "
                "job file: the first steps tell"
            )
        order: Literal["distributed", "sequential"] = "distributed" if shape.shuffled else "sequential"
        simulated = loading.Run(job, _POLICY, order=order, hand_over="batch")
        reports: list[loading.Report] = []
        stage = ""
        while stage != "finished":
            if self._stop.is_set():
                return
            stage, _, _ = simulated.advance()
            # An advance ends where an epoch does.
            now = simulated.report()
            if len(now.epochs) > len(reports):
                reports.append(now)
        self._document = {
            "policy": _POLICY,
            "profile": self._profile_file,
            "machine": machine.machine,
            "job": self._job_file,
            "rank": shape.rank,
            "ranks": shape.ranks,
            "compute": {
                "from": "first steps" if step_s is not None else "job file",
                "steps": 0 if step_s is None else after - 1,
                "step_s": job.train.compute_step,
                "bytes_per_s": job.train.compute_rate,
            },
            "after_steps": after,
            "predicted": foretold.predicted(reports, shape.epochs),
            "measured": None,
            "error": None,
        }
        self._write()

    def _compare(self) -> None:
        assert self._document is not None, "there is one"
        steps = sum(steps for _, _, steps in self._whole)
        # An epoch ends with its last step, which began when its batch was handed out and which no wait ends: it takes
        # as long as the others, of which there is one less.
        computed = sum(took - waited for took, waited, _ in self._whole)
        step_s = computed / max(1, steps - len(self._whole))
        epoch_s = [took + step_s for took, _, _ in self._whole]
        found = foretold.measured(epoch_s, [waited for _, waited, _ in self._whole], self._causes, step_s)
        self._document["measured"] = found
        self._document["error"] = foretold.error(self._document["predicted"], found)
        self._write()

    def _write(self) -> None:
        """A file of this loader's own: further loaders of the rank have others."""
        assert self._document is not None, "there is one"
        text = foretold.dumps(self._document)
        if self._path is not None:
            _files.write(self._path, text)
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


def _known(shape: Shape, step_s: float | None) -> dict[str, dict[str, Any]]:
    """What the loader knows, as tables of a job file."""
    epochs = min(_EPOCHS, shape.epochs or _EPOCHS, _READS_MAX // shape.samples)
    if epochs < min(2, shape.epochs or 2):
        raise ConfigError(
            f"{shape.samples:,} samples are too many to be simulated beside training; ask `foresee simulate`"
        )
    staging = staging_bytes(shape.batch, shape.mean_bytes, ram=shape.ram_bytes)
    room = ram_room(shape.ram_bytes, staging, shape.samples, disk=shape.disk_bytes > 0)
    tiers = [("ram", room), ("disk", shape.disk_bytes)]
    train: dict[str, Any] = {
        "batch": shape.batch,
        "epochs": epochs,
        "drop_last": shape.drop_last,
        "seed": shape.seed,
    }
    if step_s is not None:
        train["compute_step"] = step_s
    return {
        "data": {"samples": shape.samples, "size": shape.mean_bytes, "size_sigma": shape.sigma_bytes},
        "train": train,
        "cluster": {
            "ranks": shape.ranks,
            "origin": {"readers": "queue" if shape.folder else "demand"},
            "staging": {"capacity": staging, "threads": shape.threads or _THREADS},
            "tiers": [{"name": name, "capacity": room} for name, room in tiers if room > 0],
        },
    }
