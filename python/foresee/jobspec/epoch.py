# SPDX-License-Identifier: Apache-2.0
"""Numbers of samples and steps of one rank in an epoch.

The core computes the order itself. An epoch without a complete step is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from foresee.errors import ConfigError
from foresee.jobspec.sections import Job

__all__ = ["RankShare", "rank_share"]


@dataclass(frozen=True)
class RankShare:
    """The samples of one rank in an epoch, without a dropped last batch."""

    reads: int
    steps: int | None
    """None if the job has no batch."""


def rank_share(job: Job, samples: int, ranks: int) -> RankShare:
    """Return a rank's share of an epoch: samples are first divided equally among ranks, then into batches.

    Raises:
        ConfigError: ``drop_last`` without ``batch``, or without a complete step.
    """
    each = -(-samples // ranks)
    if not job.train.drop_last:
        return RankShare(each, None if job.train.batch is None else -(-each // job.train.batch))
    (batch,) = job.need("train.batch")
    steps = each // batch
    if steps == 0:
        where = f"{job.file}: " if job.file else ""
        raise ConfigError(
            f"{where}train.batch = {batch}; a rank's {each} samples make no whole step, and drop_last leaves out the "
            f"rest; at most {each} expected, or drop_last = false"
        )
    return RankShare(steps * batch, steps)
