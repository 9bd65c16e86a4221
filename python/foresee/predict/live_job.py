# SPDX-License-Identifier: Apache-2.0
"""The running job as input of the simulator: the facts of its loader on the machine that it has.

Data that would take too long to simulate during training are an error.

Each value of a profile scatters by half the distance between the quartiles of its repeats. The ends of the interval are
the times with all values at the quick end of that, and with all at the slow end. Other errors, above all of the compute
time per step, are not part of it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from foresee.errors import ConfigError
from foresee.jobspec import Figure, Job, Profile, completed
from foresee.planning import simulation
from foresee.predict.sizes import drawn
from foresee.predict.transfer import ram_room, staging_bytes

__all__ = ["POLICY", "Shape", "ends", "job_of", "simulated"]

POLICY = "foresee"
"""The policy of the simulation, which is the loader's own."""

#: Epochs that are simulated: the first, and what the others are like.
_EPOCHS = 3
#: Reads that are simulated at most: seconds of one core.
_READS_MAX = 2**25
#: Of a figure that scatters by all of itself, what its slow end keeps: it is not known to be 0.
_LEAST_SHARE = 0.1


@dataclass(frozen=True)
class Shape:
    """The facts that the loader has of its run."""

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
    """None if unknown."""
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
    in_flight: int
    """Reads of the origin that this rank begins with."""
    folder: bool
    """Whether it reads files, which a device serves one after the other, and no bucket, whose answers share a link."""


def job_of(
    shape: Shape, step_s: float | None, machine: Profile, job_file: str | os.PathLike[str] | None
) -> Job:
    """The job of a run, at most three epochs of it.

    Args:
        shape: what its loader knows.
        step_s: seconds that a step computes; None: the job file says.
        machine: that it runs on.
        job_file: keys that go before what the loader knows.

    Raises:
        ConfigError: too many samples; a job file with faults, or without a step's time if it is not known otherwise.
        OSError: the job file cannot be read.
    """
    job = completed(_known(shape, step_s), machine, job_file)
    if job.train.compute_step is None and job.train.compute_rate is None:
        raise ConfigError(
            f"{job_file}: train.compute_step is missing, and so is train.compute_rate; one of both, or no job file: "
            "the first steps tell"
        )
    return job


def simulated(shape: Shape, job: Job, stopped: Callable[[], bool]) -> list[simulation.Report] | None:
    """Reports at the end of each epoch; None if ``stopped`` said so meanwhile.

    Raises:
        ConfigError: the simulation needs keys that are missing; the error lists all of them.
        Unsupported: it has no answer for the job.
    """
    order: Literal["distributed", "sequential"] = "distributed" if shape.shuffled else "sequential"
    data = job.data
    known = data.index is None and (data.size, data.size_sigma) == (shape.mean_bytes, shape.sigma_bytes)
    sizes = None
    if known and data.samples is not None and data.size and data.size_sigma:
        sizes = drawn(data.samples, data.size, data.size_sigma)
    run = simulation.Run(job, POLICY, order=order, hand_over="batch", sizes=sizes)
    reports: list[simulation.Report] = []
    stage = ""
    while stage != "finished":
        if stopped():
            return None
        stage, _, _ = run.advance()
        # An advance ends where an epoch does.
        now = run.report()
        if len(now.epochs) > len(reports):
            reports.append(now)
    return reports


def ends(machine: Profile) -> tuple[Profile, Profile] | None:
    """The machine with every rate and latency at the quick end of its spread, and at the slow one.

    None: no figure has a spread. Rooms stay as they are.
    """
    if not any(figure.spread for figure in machine.figure if not figure.name.endswith(".capacity")):
        return None
    return _shifted(machine, quick=True), _shifted(machine, quick=False)


def _shifted(machine: Profile, *, quick: bool) -> Profile:
    return dataclasses.replace(machine, figure=tuple(_end(figure, quick=quick) for figure in machine.figure))


def _end(figure: Figure, *, quick: bool) -> Figure:
    if not figure.spread or figure.name.endswith(".capacity"):
        return figure
    up = quick != figure.name.endswith(".latency")
    value = figure.value + (figure.spread if up else -figure.spread)
    return dataclasses.replace(figure, value=max(value, _LEAST_SHARE * figure.value))


def _known(shape: Shape, step_s: float | None) -> dict[str, dict[str, Any]]:
    """Return the loader's facts as tables of a job file."""
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
            "staging": {"capacity": staging, "threads": shape.in_flight},
            "tiers": [{"name": name, "capacity": room} for name, room in tiers if room > 0],
        },
    }
