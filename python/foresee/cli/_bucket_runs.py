# SPDX-License-Identifier: Apache-2.0
"""Simulated runs of a job that is priced: its bytes, the reads of a policy from the bucket, and its waits.

The scenario is that of ``foresee simulate --order distributed`` on the same job file, so both commands agree. Runs that
would take minutes are not simulated, and the result states that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from foresee.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    from foresee.jobspec import Data, Job

__all__ = ["FOLLOWED_MAX", "Simulated", "drawn_bytes", "simulated"]

#: Reads that are followed one by one, some ten seconds of the slowest policy's; above, the limit of many is taken.
FOLLOWED_MAX = 20_000_000


@dataclass(frozen=True)
class Simulated:
    """A policy's run, in the known order."""

    gets: int
    """Samples that the bucket was asked for."""
    read_bytes: int
    """Their bytes."""
    listings: int
    """Listings of the whole bucket, each of as many answers as it has pages."""
    wait: float
    """Seconds of the run that do not compute: before training, for samples, and for other ranks."""


def simulated(policy: str, asked: Job, compat: Literal["physical", "paper"], reads: int) -> Simulated | str:
    """A policy's run on the job; a text where the simulator cannot tell, with what it lacks.

    Args:
        policy: one of ``foresee.jobspec.POLICIES``.
        asked: the job.
        compat: which reading.
        reads: of all ranks in the whole run.
    """
    from foresee.planning import simulation

    if reads > FOLLOWED_MAX:
        return f"{reads:,} reads are more than the {FOLLOWED_MAX:,} that are followed here; `foresee simulate` does"
    try:
        report = simulation.Run(asked, policy, compat=compat, order="distributed").finish()
    except ConfigError as error:
        # What each key may be is for `foresee simulate` to say; this stands in one line of a table.
        where = f"{asked.file}: " if asked.file else ""
        return "; ".join(fault.removeprefix(where).partition(";")[0] for fault in error.faults)
    except Unsupported as error:
        return error.reason
    return Simulated(
        gets=report.origin_requests,
        read_bytes=report.origin_bytes,
        listings=report.listings,
        wait=max(0.0, report.total_s - report.compute_s / report.ranks),
    )


def drawn_bytes(data: Data) -> float:
    """All bytes of a data set: where sizes differ the sum of those that the simulator draws.

    The draw takes sizes of 0 and less again, so that its sum is more than ``samples`` times ``size``. Beyond what is
    followed, the mean of that draw stands for it: of so many samples, the sum is off by less than a thousandth.
    """
    assert data.samples is not None
    assert data.size is not None
    if data.size_sigma == 0:
        return data.samples * data.size
    if data.samples > FOLLOWED_MAX:
        return data.samples * _mean_above_zero(data.size, data.size_sigma)

    from foresee.jobspec import Cluster, Job, Origin, Staging, Train
    from foresee.planning import simulation

    # One rank that reads everything once: its bytes are the sum.
    once = Job(
        data=data,
        train=Train(batch=data.samples, epochs=1, compute_rate=1.0),
        cluster=Cluster(ranks=1, staging=Staging(capacity=1), origin=Origin(latency=1.0)),
    )
    return float(simulation.Run(once, "direct", order="sequential").finish().origin_bytes)


def _mean_above_zero(mean: float, deviation: float) -> float:
    """Of a normal distribution without what is not above 0."""
    at = mean / deviation
    density = math.exp(-at * at / 2) / math.sqrt(2 * math.pi)
    above = (1 + math.erf(at / math.sqrt(2))) / 2
    return mean + deviation * density / above
