# SPDX-License-Identifier: Apache-2.0
"""Predict a set-up with the simulator: configured origin, measured tiers, capacities by the loader's rules."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from foresee import calibrate
from foresee.jobspec import Job, Profile, complete
from foresee.planning import simulation
from foresee.predict import transfer

from .loaders import POOL_THREADS
from .setups import NAIVE, OURS, PINNED, STAGING, SetUp, Truth

#: Share of the disk tier for samples; the rest is for its metadata.
DISK_SHARE = 63 / 64
#: Threads of the disk tier.
DISK_THREADS = 4
#: Bytes per second of an origin whose only limit is that of requests: transfers then take little time.
UNLIMITED = 2_000_000_000
#: Requests in flight at the start: of a rank for a bucket, after the first response; of a node for a folder, in samples or
#: bytes.
BUCKET_FIRST, FOLDER_FIRST, FOLDER_FIRST_BYTES = 32, 16, 32 << 20


@dataclass(frozen=True)
class Times:
    """Seconds of the first epoch and mean of the later ones, stalls of the mean rank, and the total."""

    first_s: float
    later_s: float
    first_stall_s: float
    later_stall_s: float
    total_s: float


def measured_here(folder: Path, seconds: float) -> Profile:
    """Measure the rates of this host's memory and disk."""
    wanted = calibrate.check(
        seconds=seconds, disks=[f"disk={folder}"], results=[], only=["ram", "disk"], environ={}
    )
    found = calibrate.measure(wanted, lambda _: None)
    assert found is not None
    return calibrate.profile(found, calibrate.machine_name())


@dataclass(frozen=True)
class HandOver:
    """Seconds that a rank waits for a batch that is ready, by kind of loader."""

    loader: float = 0.0
    pool: float = 0.0

    def of(self, policy: str) -> float:
        """Return the seconds of a policy; 0 for policies that do not prefetch."""
        return {OURS: self.loader, STAGING: self.pool, PINNED: self.pool}.get(policy, 0.0)


def buffer_bytes(setup: SetUp) -> int:
    """Return the bytes that a pool prefetches: an eighth of the data, at least four batches."""
    return max(setup.capacity_for(1 / 8), 4 * setup.batch * setup.bytes_max)


def in_flight(setup: SetUp) -> int:
    """Return the initial requests in flight of a rank's loader, by the rule in docs/notes/006."""
    if setup.origin == "bucket":
        return BUCKET_FIRST
    return max(2, min(FOLDER_FIRST, int(FOLDER_FIRST_BYTES // setup.mean)) // setup.ranks)


def job_of(
    setup: SetUp, policy: str, truth: Truth, index: str, seed: int, profile: Profile, ready: HandOver
) -> Job:
    """Return the simulated job of a policy; a step's compute includes the hand-over of the next batch."""
    mean = truth.bytes / len(truth.sizes)
    step_bytes = setup.batch * mean
    tiers: list[dict[str, object]] = []
    if policy == OURS:
        ram, disk = setup.capacity_for(setup.ram), int(setup.capacity_for(setup.disk) * DISK_SHARE)
        staging = transfer.staging_bytes(setup.batch, mean, ram=ram, largest=max(truth.sizes))
        capacity = transfer.ram_capacity(ram, staging, len(truth.sizes), disk=bool(disk))
        tiers = [{"name": "ram", "capacity": capacity}] if capacity > 0 else []
        if disk:
            tiers.append({"name": "disk", "capacity": disk, "threads": DISK_THREADS})
        threads = in_flight(setup)
    else:
        staging, threads = buffer_bytes(setup), 1 if policy == NAIVE else POOL_THREADS
        if policy == PINNED:
            tiers = [{"name": "ram", "capacity": setup.capacity_for(setup.ram)}]
    origin: dict[str, object] = {
        "read": setup.bytes_per_s or UNLIMITED,
        "readers": "demand" if setup.origin == "bucket" else "queue",
    }
    if setup.requests_per_s:
        origin["requests"] = setup.requests_per_s
    if setup.latency_ms:
        origin["latency"] = setup.latency_ms / 1e3
    return complete(
        {
            "data": {"index": index},
            "train": {
                "batch": setup.batch,
                "epochs": setup.epochs,
                "seed": seed,
                "compute_rate": step_bytes / (step_bytes / setup.compute_rate + ready.of(policy)),
            },
            "cluster": {
                "ranks": setup.ranks,
                "staging": {"capacity": staging, "threads": threads},
                "tiers": tiers,
                "origin": origin,
            },
        },
        profile,
    )


def predicted(job: Job, policy: str, hand_over_s: float) -> tuple[Times, dict[str, object]]:
    """Return the predicted times and the whole report; ``hand_over_s`` is the hand-over time of all batches of an epoch."""
    report = simulation.Run(job, policy, order="distributed", hand_over="batch").finish()
    epochs, ranks = report.epochs, report.ranks
    later = len(epochs) - 1
    times = Times(
        epochs[0].end_s,
        (epochs[-1].end_s - epochs[0].end_s) / later,
        epochs[0].stall_s / ranks + hand_over_s,
        sum(epoch.stall_s for epoch in epochs[1:]) / ranks / later + hand_over_s,
        report.total_s,
    )
    return times, asdict(report)
