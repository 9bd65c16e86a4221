# SPDX-License-Identifier: Apache-2.0
"""The samples and the steps of one rank in an epoch, as samplers shard samples among ranks and cut batches.

The order itself is the core's. An epoch without a whole step is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from foresee.errors import ConfigError
from foresee.jobspec.sections import Job

__all__ = ["RankShare", "rank_share"]


@dataclass(frozen=True)
class RankShare:
    """The samples of one rank in an epoch: the sampler's share, without a last batch that is dropped."""

    reads: int
    steps: int | None
    """None where the job has no batch."""


def rank_share(asked: Job, samples: int, ranks: int) -> RankShare:
    """A rank's part of an epoch, as runs have it: samples are dealt to equal parts first, batches cut from those.

    Raises:
        ConfigError: ``drop_last`` without ``batch``, or without one whole step.
    """
    each = -(-samples // ranks)
    if not asked.train.drop_last:
        return RankShare(each, None if asked.train.batch is None else -(-each // asked.train.batch))
    (batch,) = asked.need("train.batch")
    steps = each // batch
    if steps == 0:
        where = f"{asked.file}: " if asked.file else ""
        raise ConfigError(
            f"{where}train.batch = {batch}; a rank's {each} samples make no whole step, and drop_last leaves out the "
            f"rest; at most {each} expected, or drop_last = false"
        )
    return RankShare(steps * batch, steps)
