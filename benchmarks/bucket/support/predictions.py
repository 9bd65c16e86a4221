# SPDX-License-Identifier: Apache-2.0
"""What the model of the paper's cache and window predicts for a point, by the simulator of ``foresee simulate``.

The model is the paper's system at this origin: a FIFO cache, requests whose samples enter together, and misses that read
the bucket again and do not enter. ``CachedDataset`` differs on purpose, as PROTOCOL.md says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from foresee.jobspec import Cache, Cluster, Data, Job, Staging, Train, Window
from foresee.planning import simulation

from .sizes import Size
from .trials import THREADS, Trial


@dataclass(frozen=True)
class Times:
    """Seconds that arm `reads` measured."""

    #: A read alone, and each of `THREADS` at a time.
    read_s: float
    download_s: float
    #: A cached sample, and one in a local file.
    hit_s: float
    file_s: float

    @classmethod
    def of(cls, values: Mapping[str, float]) -> Times:
        """Take them from the values of a run."""
        return cls(values["read_s"], values["download_s"], values["hit_s"], values["file_s"])


def predicted(size: Size, trial: Trial, times: Times, compute_s: float, seed: int) -> dict[str, float]:
    """Return the predicted values of a point, each under the name of the measured one after `predicted_`.

    Args:
        size: the part.
        trial: the point.
        times: of single reads.
        compute_s: seconds of compute per sample.
        seed: of the order.
    """
    reports = [_simulated(size, trial, times, compute_s, seed, epochs) for epochs in (1, size.epochs)]
    waited_s = [epoch.stall_s / reports[-1].ranks for epoch in reports[-1].epochs]
    values = {}
    if not trial.is_untimed:
        values = {"waited_s": sum(waited_s), "first_waited_s": waited_s[0], "second_waited_s": waited_s[1]}
    if trial.settings:
        first, both = map(_misses, reports)
        values |= {
            "first_miss_rate": first / size.samples,
            "second_miss_rate": (both - first) / size.samples,
        }
    return {f"predicted_{name}": value for name, value in values.items()}


def _simulated(
    size: Size, trial: Trial, times: Times, compute_s: float, seed: int, epochs: int
) -> simulation.Report:
    policies = {"direct_obstore": "direct", "disk": "disk", "cache": "cache"}
    window = Window(
        capacity=trial.cache or None,
        fetch=trial.fetch or None,
        threshold=trial.threshold if trial.fetch else None,
        parallel=THREADS,
        miss_time=times.read_s,
        download_time=times.download_s,
        hit_time=times.file_s if trial.arm == "disk" else times.hit_s,
    )
    job = Job(
        data=Data(samples=size.samples, size=float(size.sample_bytes)),
        train=Train(
            batch=size.batch,
            epochs=epochs,
            seed=seed,
            compute_rate=size.sample_bytes / compute_s,
            # The rank of the measurement waits for no other.
            barrier=False,
        ),
        cluster=Cluster(ranks=size.ranks, staging=Staging(capacity=size.batch * size.sample_bytes)),
        cache=Cache(window=window),
    )
    policy = policies.get(trial.arm, "fifty_fifty" if trial.threshold else "full_fetch")
    return simulation.Run(job, policy, order="distributed").finish()


def _misses(report: simulation.Report) -> int:
    return sum(reads.samples for reads in report.reads if reads.source == "origin")
