# SPDX-License-Identifier: Apache-2.0
"""Reports of the loaders of jobs, compared with the job files and with each other.

Pure: the reports come in. Two jobs share what they read only if their loaders have the same steps and the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from foresee._runtime.step_times import StepsHeader
from foresee.errors import ConfigError
from foresee.jobspec import Job
from foresee.stagger.inputs import steps_per_epoch

__all__ = ["SEED", "Announced", "agree", "expected_steps", "unordered"]

SEED = "FORESEE_SEED"
"""The variable that tells a job its ``[train] seed``, the one of all jobs that share the data. No loader reads it: a
script does, and gives it to its sampler."""


class Announced(Protocol):
    """A job whose loader may have reported."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def job(self) -> Job:
        """Its file."""

    @property
    def head(self) -> StepsHeader | None:
        """The loader's report; None before a loader has begun."""


def agree(jobs: Sequence[Announced]) -> None:
    """Compare what loaders say of themselves with the job files, and with each other.

    Raises:
        ConfigError: another number of steps, so another data set or batch; or another order.
    """
    faults = []
    for each in jobs:
        expected = steps_per_epoch(each.job)
        head = each.head
        if head is not None and head.steps is not None and head.steps != expected:
            faults.append(
                f"{each.name}: its loader has {head.steps} steps per epoch, {expected} by its job file; is it "
                "another data set, or another batch?"
            )
    known = [
        (each.name, each.head.order) for each in jobs if each.head is not None and each.head.order is not None
    ]
    if not faults and len({order for _, order in known}) > 1:
        names = " and ".join(dict.fromkeys(name for name, _ in known))
        again = "" if " and " in names else ", from one start to the next,"
        faults.append(
            f"{names} read other data{again} or in another order: give all loaders one data set and one "
            f"seed, that of {SEED}, as by DistributedSampler(seed=) or DataLoader(generator=), which what else a job "
            "draws does not disturb"
        )
    if faults:
        raise ConfigError(faults)


def unordered(job: Announced) -> str | None:
    """A doubt whether a job reads in the order of the others; None: its loader reports its order."""
    if job.head is None or job.head.order is not None:
        return None
    return (
        f"{job.name}: in which order it reads is not known, as with an IterableDataset or a sampler of one's own; "
        f"what is predicted holds if it is that of the others: draw it from {SEED} in all jobs"
    )


def expected_steps(job: Job) -> int:
    """Steps that a job file asks for, over all epochs.

    Raises:
        ConfigError: a key that is missing, or not one whole step.
    """
    (epochs,) = job.need("train.epochs")
    return int(epochs) * steps_per_epoch(job)
