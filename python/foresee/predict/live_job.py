# SPDX-License-Identifier: Apache-2.0
"""The running job as input of the simulator: the facts of its loader on its own host.

Data that would take too long to simulate during training are an error. The interval of a prediction has the times with
all values of the profile at the fast end of their ``spread``, and with all at the slow end. It does not contain other
errors, above all that of the compute time per step.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from foresee.errors import ConfigError
from foresee.jobspec import Figure, Job, Profile, complete
from foresee.planning import simulation
from foresee.predict.sizes import drawn
from foresee.predict.transfer import ram_capacity, staging_bytes

__all__ = ["POLICY", "Shape", "as_attached", "ends", "job_of", "simulated"]

POLICY = "foresee"
"""The policy of the simulation, which is the loader's own."""

#: Simulated epochs; later ones equal the last.
_EPOCHS = 3
#: Limit of simulated reads: seconds of one core.
_READS_MAX = 2**25
#: Part of the memory of a node's cache for the tables of its plan.
_PLAN_SHARE = 8
#: Bytes, and batches, of which the larger one is the staging buffer of a rank that reads through such a cache.
_NODE_STAGING, _NODE_STAGING_BATCHES = 4 * 2**20, 2
#: Smallest share of a value at its slow end; a large spread does not make it 0.
_LEAST_SHARE = 0.1


@dataclass(frozen=True)
class Shape:
    """The facts that the loader has of its run."""

    samples: int
    """Samples of the data set."""
    mean_bytes: float
    """Mean bytes of a sample."""
    sigma_bytes: float
    """Standard deviation of the bytes."""
    batch: int
    """Samples per rank and step."""
    drop_last: bool
    """Whether a short last batch is left out."""
    epochs: int | None
    """Number of epochs; None if unknown."""
    ranks: int
    """Training processes."""
    rank: int
    """Number of this rank."""
    seed: int
    """Seed of the order."""
    shuffled: bool
    """Whether the order is shuffled; otherwise ids ascend."""
    ram_bytes: int
    """Memory budget: of the node's cache, or of each rank including staging."""
    disk_bytes: int
    """Disk budget of the node; 0: no disk tier."""
    node_ranks: int
    """Ranks of this node."""
    has_node_cache: bool
    """Whether they share the cache of their node."""
    in_flight: int
    """Initial number of concurrent reads from the origin."""
    folder: bool
    """Whether the origin is a folder, whose device serves single reads; answers of a bucket share a link."""


def as_attached(shape: Shape, node: Mapping[str, Any] | None) -> Shape:
    """Return the facts of a run whose loader has started. ``node``: that of its statistics, None with own caches."""
    if node is None:
        return dataclasses.replace(shape, has_node_cache=False)
    sizes = {"ram_bytes": node["ram_bytes"], "disk_bytes": node["disk_bytes"]}
    return dataclasses.replace(shape, has_node_cache=True, **sizes)


def job_of(
    shape: Shape, step_s: float | None, machine: Profile, job_file: str | os.PathLike[str] | None
) -> Job:
    """Return the job of a run, with at most three epochs.

    Args:
        shape: facts of the loader.
        step_s: compute time of a step in seconds; None: from the job file.
        machine: profile of the host.
        job_file: keys that override the facts of the loader.

    Raises:
        ConfigError: too many samples; a job file with faults, or without compute time if no ``step_s``.
        OSError: the job file cannot be read.
    """
    job = complete(_tables(shape, step_s), machine, job_file)
    if job.train.compute_step is None and job.train.compute_rate is None:
        raise ConfigError(
            f"{job_file}: train.compute_step and train.compute_rate are missing; add one of them, or omit the job "
            "file, so that the first steps give the compute time"
        )
    return job


def simulated(shape: Shape, job: Job, stopped: Callable[[], bool]) -> list[simulation.Report] | None:
    """Return a report at the end of each epoch; None if ``stopped`` returned True before.

    Raises:
        ConfigError: the simulation needs keys that are missing; the error lists all of them.
        Unsupported: the simulator does not support the job.
    """
    order: Literal["distributed", "sequential"] = "distributed" if shape.shuffled else "sequential"
    data = job.data
    is_unchanged = data.index is None and (data.size, data.size_sigma) == (
        shape.mean_bytes,
        shape.sigma_bytes,
    )
    sizes = None
    if is_unchanged and data.samples is not None and data.size and data.size_sigma:
        sizes = drawn(data.samples, data.size, data.size_sigma)
    run = simulation.Run(
        job, POLICY, order=order, hand_over="batch", node_cache=shape.has_node_cache, sizes=sizes
    )
    reports: list[simulation.Report] = []
    stage = ""
    while stage != "finished":
        if stopped():
            return None
        stage, _, _ = run.advance()
        # `advance` returns at each end of an epoch.
        now = run.report()
        if len(now.epochs) > len(reports):
            reports.append(now)
    return reports


def ends(machine: Profile) -> tuple[Profile, Profile] | None:
    """Return the profile with every rate and latency at the fast end of its spread, and at the slow end.

    Capacities stay unchanged. None: no value has a spread.
    """
    if not any(figure.spread for figure in machine.figure if not figure.name.endswith(".capacity")):
        return None
    return _shift(machine, fast=True), _shift(machine, fast=False)


def _shift(machine: Profile, *, fast: bool) -> Profile:
    return dataclasses.replace(
        machine, figure=tuple(_end_value(figure, fast=fast) for figure in machine.figure)
    )


def _end_value(figure: Figure, *, fast: bool) -> Figure:
    if not figure.spread or figure.name.endswith(".capacity"):
        return figure
    up = fast != figure.name.endswith(".latency")
    value = figure.value + (figure.spread if up else -figure.spread)
    return dataclasses.replace(figure, value=max(value, _LEAST_SHARE * figure.value))


def _tables(shape: Shape, step_s: float | None) -> dict[str, dict[str, Any]]:
    """Return the loader's facts as tables of a job file."""
    epochs = min(_EPOCHS, shape.epochs or _EPOCHS, _READS_MAX // shape.samples)
    if epochs < min(2, shape.epochs or 2):
        raise ConfigError(
            f"{shape.samples:,} samples are too many to simulate during training; use `foresee simulate`"
        )
    if shape.has_node_cache:
        staging = max(_NODE_STAGING, math.ceil(_NODE_STAGING_BATCHES * shape.batch * shape.mean_bytes))
        # The simulation adds the equal parts of the ranks of a node.
        capacity = (shape.ram_bytes - shape.ram_bytes // _PLAN_SHARE) // shape.node_ranks
    else:
        staging = staging_bytes(shape.batch, shape.mean_bytes, ram=shape.ram_bytes)
        capacity = ram_capacity(shape.ram_bytes, staging, shape.samples, disk=shape.disk_bytes > 0)
    tiers = [("ram", capacity), ("disk", shape.disk_bytes // shape.node_ranks)]
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
            "ranks_per_machine": shape.node_ranks,
            "origin": {"readers": "queue" if shape.folder else "demand"},
            "staging": {"capacity": staging, "threads": shape.in_flight},
            "tiers": [{"name": name, "capacity": size} for name, size in tiers if size > 0],
        },
    }
