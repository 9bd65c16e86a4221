# SPDX-License-Identifier: Apache-2.0
"""Simulated runs of a priced job: its bytes, the reads of a policy from the bucket, and its waits.

The scenario is that of ``foresee simulate --order distributed`` on the same job file, so both commands agree. Runs that
would take minutes are not simulated, and the result states that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foresee.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    from foresee._schema.compat import Compat
    from foresee.jobspec import Data, Job
    from foresee.planning.simulation import Report

#: Reads that are simulated, some ten seconds of the slowest policy; above, the limit of many samples applies.
SIMULATED_MAX = 20_000_000


def simulate(policy: str, job: Job, compat: Compat, reads: int) -> Report | str:
    """Simulate a policy of ``foresee.jobspec.POLICIES``; return the reason if that is not possible.

    ``reads`` are those of all ranks in the whole run.
    """
    from foresee.planning import simulation

    if reads > SIMULATED_MAX:
        return f"{reads:,} reads are more than the {SIMULATED_MAX:,} that are simulated here; use `foresee simulate`"
    try:
        return simulation.Run(job, policy, compat=compat, order="distributed").finish()
    except ConfigError as error:
        # One line of a table; `foresee simulate` also shows the values that each key may have.
        where = f"{job.file}: " if job.file else ""
        return "; ".join(fault.removeprefix(where).partition(";")[0] for fault in error.faults)
    except Unsupported as error:
        return error.reason


def drawn_bytes(data: Data) -> float:
    """Return the bytes of a data set; for differing sizes, the sum of the sizes that the simulator draws.

    The simulator redraws sizes of 0 and less, so the sum is above ``samples * size``. For more samples than are
    simulated, the mean of that distribution replaces the draw: the sum is off by less than a thousandth.
    """
    from foresee.jobspec import Cluster, Job, Origin, Staging, Train
    from foresee.planning import simulation

    assert data.samples is not None
    assert data.size is not None
    if data.size_sigma == 0 or data.samples > SIMULATED_MAX:
        return data.samples * simulation.drawn_mean(data.size, data.size_sigma)
    # One rank that reads everything once: its bytes are the sum.
    once = Job(
        data=data,
        train=Train(batch=data.samples, epochs=1, compute_rate=1.0),
        cluster=Cluster(ranks=1, staging=Staging(capacity=1), origin=Origin(latency=1.0)),
    )
    return float(simulation.Run(once, "direct", order="sequential").finish().origin_bytes)
