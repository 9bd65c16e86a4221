# SPDX-License-Identifier: Apache-2.0
"""What the simulator says of a set-up: the origin as stated, tiers as measured on the spot, rooms by the loader's rule."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from foresee import calibrate
from foresee.jobspec import Job, Profile, complete
from foresee.planning import simulation
from foresee.predict import transfer

from .loaders import POOL_THREADS
from .setups import NAIVE, OURS, PINNED, STAGING, SetUp, Truth

#: What the disk tier sets aside for its lists.
DISK_SHARE = 63 / 64
#: Of the disk tier.
DISK_THREADS = 4
#: Bytes per second of an origin whose requests alone are limited: what is left to wait for is small.
UNLIMITED = 2_000_000_000
#: Requests of a rank's loader under way at its start of a bucket, once the first is answered; of a machine's of a folder, in
#: samples or bytes.
BUCKET_FIRST, FOLDER_FIRST, FOLDER_FIRST_BYTES = 32, 16, 32 << 20


@dataclass(frozen=True)
class Times:
    """Seconds of the first epoch, and of each later one in the mean; of that, the mean rank's stall."""

    first_s: float
    later_s: float
    first_stall_s: float
    later_stall_s: float
    total_s: float


def measured_here(folder: Path, seconds: float) -> Profile:
    """Rates of this machine's memory and disk."""
    wanted = calibrate.check(
        seconds=seconds, disks=[f"disk={folder}"], results=[], only=["ram", "disk"], environ={}
    )
    found = calibrate.measure(wanted, lambda _: None)
    assert found is not None
    return calibrate.profile(found, calibrate.machine_name())


@dataclass(frozen=True)
class HandOver:
    """Seconds from a rank's asking for a batch that is ready until it has it, by whoever has it ready."""

    loader: float = 0.0
    pool: float = 0.0

    def of(self, policy: str) -> float:
        """None, of who reads when asked, and of who reads nothing."""
        return {OURS: self.loader, STAGING: self.pool, PINNED: self.pool}.get(policy, 0.0)


def buffer_bytes(setup: SetUp) -> int:
    """What a pool reads ahead: an eighth of the data, four batches at least."""
    return max(setup.capacity_for(1 / 8), 4 * setup.batch * setup.bytes_max)


def in_flight(setup: SetUp) -> int:
    """Requests that a rank's loader begins with, by its documented rule: note 006."""
    if setup.origin == "bucket":
        return BUCKET_FIRST
    return max(2, min(FOLDER_FIRST, int(FOLDER_FIRST_BYTES // setup.mean)) // setup.ranks)


def job_of(
    setup: SetUp, policy: str, truth: Truth, index: str, seed: int, here: Profile, ready: HandOver
) -> Job:
    """The job that a policy is simulated on. Its steps compute, and hand over the batch of the next."""
    mean = truth.bytes / len(truth.sizes)
    step_bytes = setup.batch * mean
    tiers: list[dict[str, object]] = []
    if policy == OURS:
        ram, disk = setup.capacity_for(setup.ram), int(setup.capacity_for(setup.disk) * DISK_SHARE)
        staging = transfer.staging_bytes(setup.batch, mean, ram=ram, largest=max(truth.sizes))
        room = transfer.ram_capacity(ram, staging, len(truth.sizes), disk=bool(disk))
        tiers = [{"name": "ram", "capacity": room}] if room > 0 else []
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
        here,
    )


def predicted(job: Job, policy: str, handing_s: float) -> tuple[Times, dict[str, object]]:
    """What the simulator says, and all that it says; ``handing_s``: of an epoch, in which a rank is handed ready batches."""
    report = simulation.Run(job, policy, order="distributed", hand_over="batch").finish()
    epochs, ranks = report.epochs, report.ranks
    later = len(epochs) - 1
    times = Times(
        epochs[0].end_s,
        (epochs[-1].end_s - epochs[0].end_s) / later,
        epochs[0].stall_s / ranks + handing_s,
        sum(epoch.stall_s for epoch in epochs[1:]) / ranks / later + handing_s,
        report.total_s,
    )
    return times, asdict(report)
