# SPDX-License-Identifier: Apache-2.0
"""Comparison of the reports of the jobs' loaders with the job files and with each other.

Pure. Two jobs share what they read only if their loaders have the same steps and the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from foresee._runtime.step_times import StepsHeader
from foresee.errors import ConfigError
from foresee.jobspec import Job
from foresee.stagger.inputs import steps_per_epoch

__all__ = ["SEED", "ReportingJob", "agree", "order_doubt", "total_steps"]

SEED = "FORESEE_SEED"
"""The variable with the ``[train] seed`` of the jobs that share the data. A script reads it for its sampler."""


class ReportingJob(Protocol):
    """A job whose loader may have reported."""

    @property
    def name(self) -> str:
        """The job's name."""

    @property
    def job(self) -> Job:
        """The job file."""

    @property
    def head(self) -> StepsHeader | None:
        """The loader's report; None before a loader has begun."""


def agree(jobs: Sequence[ReportingJob]) -> None:
    """Compare the reports of loaders with the job files and with each other.

    Raises:
        ConfigError: another number of steps, or another order.
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
            f"seed, that of {SEED}, by DistributedSampler(seed=) or DataLoader(generator=)"
        )
    if faults:
        raise ConfigError(faults)


def order_doubt(job: ReportingJob) -> str | None:
    """Return a doubt about the order in which a job reads; None if its loader reports it."""
    if job.head is None or job.head.order is not None:
        return None
    return (
        f"{job.name}: its order is unknown, as with an IterableDataset or a custom sampler; predictions hold only "
        f"for the order of the other jobs: draw it from {SEED} in all jobs"
    )


def total_steps(job: Job) -> int:
    """Return the steps of a job over all epochs.

    Raises:
        ConfigError: a key that is missing, or not one whole step.
    """
    (epochs,) = job.need("train.epochs")
    return int(epochs) * steps_per_epoch(job)
