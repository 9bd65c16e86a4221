# SPDX-License-Identifier: Apache-2.0
"""The parts of the quick and the full run: arms, workloads and clusters, interleaved as PROTOCOL.md defines."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

from foresee import network

from .links import POLICIES, job_template, run_bulk, run_bulk_whole, run_links
from .runs import Run
from .session import STRETCH_S, USUAL, Hosts, Plan, RunOptions, Session, hosts_of, measure
from .trained import RANKS_LINKS, run_quick_ranks, run_ranks, run_training
from .workloads import TRAINED, bulk, bytes_per_s, sleeps

#: Settings of `partition`: size, credit, with and without our window.
GRID = [
    f"partition,size={size},credit={size * credit}{window}"
    for size in (64 << 10, 256 << 10, 1 << 20, 4 << 20)
    for credit in (1, 2, 4)
    for window in ("", ",window=interface")
]
#: Arms that run only at the highest rate: steps of the ablation, and arms with the system's sockets.
ABLATION = (
    "mercury_windowed",
    "mercury_interface",
    "fifo_packet_socket",
    "fifo_tensor_socket",
    "partition_4096000",
)
#: The setting of `partition` in the quick run.
QUICK_PARTITION = "partition,size=65536,credit=262144,window=interface"
QUICK_ARMS = ("oracle", "foresee", "mercury", "fifo_packet", "fifo_tensor", "partition")
#: The parts of the full run.
PARTS = (
    "two",
    "sleeps",
    "training",
    "ranks",
    "changing",
    "bandwidths",
    "sizes",
    "beside",
    "uneven",
    "clip",
    "machine",
    "killed",
)
RATES = ("200mbit", "100mbit", "50mbit")
#: Link rate of the quick run's eight hosts.
QUICK_RATE = "100mbit"
#: Link rate between two hosts.
TWO_RATE = "1gbit"
#: Link rate of eight hosts, except for the parts below.
RATE = "200mbit"
#: At higher rates the two cores, which compute for four ranks and carry eight hosts, would limit real training.
RATE_OF = {"training": "50mbit", "beside": "100mbit", "machine": "100mbit"}
#: Shares of the full rate, in sequence; a seed draws the further stretches of a run.
SHARES = (1.0, 0.1, 0.5, 0.25, 0.75)
#: Swept packet sizes and window sizes, in bytes.
PACKET_SIZES = (1_408, 2_816, 5_632, 16 << 10, 64 << 10, 256 << 10)
WINDOW_SIZES = (0, 4_096, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
#: Numbers of ranks with a colocated server each; up to as many dedicated servers are added.
COLOCATED_RANKS = (2, 4, 8)
#: Wire time over compute: equivalent to links of four times to a quarter of the rate.
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
FULL = Plan(repeats=5, warmup=3, rounds=20, compute_s=0.2, wire_over_compute=1.0)
#: Plan of the parts `sleeps` and `clip`: fewer, longer steps, so that sizes are divided by a smaller factor.
SLEEPS = Plan(repeats=5, warmup=2, rounds=4, compute_s=0.8, wire_over_compute=1.0)
QUICK = Plan(repeats=2, warmup=2, rounds=8, compute_s=0.15, wire_over_compute=1.0)
#: Time at which a server is killed, during the measured rounds.
KILLED_AFTER_S = 4.0
#: Plan of a trial that chooses a setting of `partition`.
TRIAL = {"repeats": 1, "warmup": 1, "rounds": 3}


def run_urgent(session: Session, hosts: Hosts, arm: str, connections: int, rounds: int) -> None:
    """Measure a small urgent tensor in each round behind bulk, over the given number of connections."""
    work = bulk(int(bytes_per_s(hosts.rate) * 0.1))
    # A tensor of 30 KB with the highest priority.
    work.names.insert(0, "urgent")
    work.elements.insert(0, 7_500)
    plan = dataclasses.replace(session.plan, warmup=2, rounds=rounds)
    template = job_template(work, plan, "bulk", urgent=True)
    template["classes"] = [0] + [255] * (len(work.elements) - 1)
    run = Run("urgent", hosts.name, hosts.rate, arm, POLICIES[arm], [], work.bytes, connections=connections)
    measure(session, hosts, run, template, RunOptions(servers_per_host=connections))


def run_sleeps(
    session: Session,
    hosts: Hosts,
    model: str,
    arm: str,
    policy: str,
    *,
    workload: str = "",
    modelled: bool = False,
    options: RunOptions = USUAL,
    **more: Any,
) -> Run:
    """Measure a model whose layers sleep; without a policy nothing is sent.

    ``workload`` names a variant, which has no closed form unless ``modelled``.
    """
    plan = session.plan
    wire_s = plan.compute_s * plan.wire_over_compute
    work = sleeps(model, compute_s=plan.compute_s, wire_s=wire_s, bytes_per_s=bytes_per_s(hosts.rate))
    run = Run(workload or model, hosts.name, hosts.rate, arm, policy, [], work.bytes)
    if modelled or not workload:
        run.model_s = session.predicted(hosts, work.step())
    return measure(session, hosts, run, job_template(work, plan, "train", **more), options)


def trial_of(session: Session, plan: Plan) -> Session:
    """Return a session for trials, with another seed and without saved lines."""
    return dataclasses.replace(session, plan=plan, seed=session.seed + 1, save=None, runs=list(session.runs))


def best_partition(session: Session, hosts: Hosts, model: str) -> str:
    """Try each setting of `partition` once, without saving, and return the fastest."""
    trial = trial_of(session, dataclasses.replace(session.plan, **TRIAL))
    tried = [run_sleeps(trial, hosts, model, "partition", policy) for policy in GRID]
    session.count = trial.count
    return min((run for run in tried if not run.void), key=lambda run: run.t_iter_s).policy


def run_changing(session: Session, hosts: Hosts, arm: str, policy: str) -> Run:
    """Measure VGG-16 while the links change."""
    rng = random.Random(session.seed)
    shares = [*SHARES, *rng.sample(SHARES, len(SHARES))]
    work = sleeps("vgg16", compute_s=0.2, wire_s=0.2, bytes_per_s=bytes_per_s(hosts.rate))
    # At the mean rate the run lasts slightly longer than the stretches.
    rounds = int(1.2 * STRETCH_S * len(shares) / 0.4)
    plan = dataclasses.replace(session.plan, warmup=0, rounds=rounds)
    run = Run("changing", hosts.name, hosts.rate, arm, policy, [], work.bytes)
    return measure(session, hosts, run, job_template(work, plan, "train"), RunOptions(meanwhile=shares))


def best_changing(session: Session, hosts: Hosts) -> list[str]:
    """Try each setting of `partition` once, without saving; return those among the two fastest of any stretch."""
    trial = trial_of(session, session.plan)
    tried = [run_changing(trial, hosts, policy, policy) for policy in GRID]
    session.count = trial.count
    medians = {run.policy: run.stretch_medians_s() for run in tried if not run.void}
    stretches = range(len(next(iter(medians.values()))))
    best = [sorted(medians, key=lambda policy: medians[policy][at])[:2] for at in stretches]
    return list(dict.fromkeys(policy for two in best for policy in two))


def run_all_changing(session: Session, hosts: Hosts) -> None:
    """Measure ours and the best settings of `partition` as separate arms: which is best depends on the stretch."""
    settings = best_changing(session, hosts)
    for _ in range(session.plan.repeats):
        run_changing(session, hosts, "foresee", "foresee")
        for policy in settings:
            run_changing(session, hosts, policy, policy)


def quick(session: Session, two: str, rate: str) -> None:
    """Run two hosts with links of rate ``two``, then four ranks and four servers on one model, then colocated servers."""
    with hosts_of(session, "two", two, 1, 1) as hosts:
        run_bulk(session, hosts, rounds=12, seconds_per_round=0.2)
        run_urgent(session, hosts, "foresee", 8, rounds=20)
    with hosts_of(session, "four", rate, 4, 4) as hosts:
        run_bulk(session, hosts, rounds=6, seconds_per_round=0.25)
        run_bulk_whole(session, hosts)
        settings = {"oracle": "", "partition": QUICK_PARTITION, **POLICIES}
        for _ in range(session.plan.repeats):
            for arm in QUICK_ARMS:
                run_sleeps(session, hosts, "vgg16", arm, settings[arm])
    run_quick_ranks(session)


def run_sizes(session: Session, hosts: Hosts) -> None:
    """Measure all packet sizes and window sizes."""
    for size in PACKET_SIZES:
        arm = f"foresee, packets of {size}"
        run_sleeps(session, hosts, "vgg16", arm, "foresee", workload="sizes", packet_bytes=size)
    for size in WINDOW_SIZES:
        arm = f"foresee, windows of {size}"
        run_sleeps(session, hosts, "vgg16", arm, f"foresee,window={size}", workload="sizes")
    run_sleeps(session, hosts, "vgg16", "foresee", "foresee", workload="sizes")


def run_colocated(session: Session, ranks: int, rate: str) -> None:
    """Measure the goodput of a link with colocated servers and any number of dedicated ones."""
    for servers in range(ranks + 1):
        with hosts_of(session, f"{ranks}+{servers}", rate, ranks, servers) as hosts:
            of_link = network.shares(ranks, servers).of_link
            for _ in range(session.plan.repeats):
                run_bulk(
                    session,
                    hosts,
                    rounds=8,
                    seconds_per_round=0.5,
                    of_link=of_link,
                    options=RunOptions(colocated=True),
                )


def run_uneven(session: Session, hosts: Hosts) -> None:
    """Measure one slow rank, two concurrent jobs, and one narrow link."""
    arms = {name: POLICIES[name] for name in ("foresee", "mercury_interface", "mercury", "fifo_packet")}
    skew = RunOptions(skew=[1.3, *([1.0] * (len(hosts.ranks) - 1))])
    for arm, policy in arms.items():
        run_sleeps(session, hosts, "vgg16", arm, policy, workload="skewed", options=skew)
        run_sleeps(session, hosts, "vgg16", arm, policy, workload="two jobs", options=RunOptions(jobs=2))
    narrow = hosts.ranks[0]
    hosts.cluster.shape({narrow: f"{8 * bytes_per_s(hosts.rate) / 2000:.0f}kbit"})
    for arm, policy in arms.items():
        run_sleeps(session, hosts, "vgg16", arm, policy, workload="narrow")
    hosts.cluster.shape({narrow: hosts.rate})


def run_clip(session: Session, hosts: Hosts, models: Sequence[str]) -> None:
    """Measure the cost of a forward pass that waits for the last average, as exact clipping does."""
    for model in models:
        for arm, barrier in (("foresee", False), ("barrier", True)):
            name = f"{model}, clipped"
            run_sleeps(session, hosts, model, arm, "foresee", workload=name, modelled=True, barrier=barrier)


def run_bandwidths(session: Session, hosts: Hosts) -> None:
    """Measure the same model with longer and shorter wire times."""
    for ratio in RATIOS:
        name = f"vgg16, wire {ratio:g} x compute"
        with session.planned(dataclasses.replace(session.plan, wire_over_compute=ratio)):
            for arm in ("foresee", "mercury", "fifo_packet", "fifo_tensor"):
                run_sleeps(session, hosts, "vgg16", arm, POLICIES[arm], workload=name, modelled=True)


def run_machine(session: Session, hosts: Hosts) -> None:
    """Measure two ranks on each host that exchange through a leader, or separately."""
    for arm, as_one in (("as one", True), ("each by itself", False)):
        options = RunOptions(local=2, as_one=as_one)
        run_sleeps(session, hosts, "vgg16", arm, "foresee", workload="two on a host", options=options)


def run_killed(session: Session, hosts: Hosts) -> None:
    """Measure runs in which a server is killed and another one starts at its address."""
    for arm in ("foresee", "fifo_tensor"):
        options = RunOptions(killed_after_s=KILLED_AFTER_S)
        run_sleeps(session, hosts, "vgg16", arm, POLICIES[arm], workload="killed", options=options)


def run_all_sleeps(session: Session, hosts: Hosts, model: str) -> None:
    """Measure every arm on a model, with its own `bulk` runs, because the goodput of the links varies."""
    settings = {"oracle": "", **POLICIES, "partition": best_partition(session, hosts, model)}
    if hosts.rate != RATES[0]:
        settings = {arm: policy for arm, policy in settings.items() if arm not in ABLATION}
    for _ in range(session.plan.repeats):
        run_links(session, hosts)
        for arm, policy in settings.items():
            run_sleeps(session, hosts, model, arm, policy)


@dataclasses.dataclass(frozen=True)
class Choice:
    """Selection of the full run."""

    parts: Sequence[str]
    models: Sequence[str]
    #: Plan of the models that sleep.
    sleeping: Plan
    #: Link rates: of models that sleep, between two hosts, and of all other parts (empty: the rate of each part).
    rates: Sequence[str]
    two: str
    other: str

    def rate(self, part: str) -> str:
        """Return the link rate of a part."""
        return self.other or RATE_OF.get(part, RATE)


def full(session: Session, choice: Choice) -> None:
    """Run the full benchmark part by part; new lines of a part replace its old ones."""
    parts, models, sleeping = choice.parts, choice.models, choice.sleeping
    if "two" in parts:
        session.begin("two")
        with hosts_of(session, "two", choice.two, 1, 1) as hosts:
            for _ in range(session.plan.repeats):
                run_bulk(session, hosts, rounds=20, seconds_per_round=0.5)
                for connections in (1, 4, 8):
                    for arm in ("foresee", "mercury"):
                        run_urgent(session, hosts, arm, connections, rounds=50)
    for rate in choice.rates if "sleeps" in parts else ():
        with hosts_of(session, "four", rate, 4, 4) as hosts:
            for model in models:
                # A separate part name, so that `--rates` and `--models` can measure one piece at a time.
                session.begin(f"sleeps, {rate}, {model}")
                with session.planned(sleeping):
                    run_all_sleeps(session, hosts, model)
    if "training" in parts:
        session.begin("training")
        with hosts_of(session, "four", choice.rate("training"), 4, 4) as hosts:
            for model in TRAINED:
                run_training(session, hosts, model)
    for ranks, rate in RANKS_LINKS if "ranks" in parts else ():
        session.begin(f"ranks, {ranks}, {rate}")
        run_ranks(session, ranks, rate)
    if "beside" in parts:
        session.begin("beside")
        for ranks in COLOCATED_RANKS:
            run_colocated(session, ranks, choice.rate("beside"))
    if "changing" in parts:
        session.begin("changing")
        with hosts_of(session, "four", choice.rate("changing"), 4, 4) as hosts:
            run_all_changing(session, hosts)
    repeated: dict[str, Callable[[Hosts], None]] = {
        "sizes": lambda hosts: run_sizes(session, hosts),
        "uneven": lambda hosts: run_uneven(session, hosts),
        "clip": lambda hosts: run_clip(session, hosts, models),
        "bandwidths": lambda hosts: run_bandwidths(session, hosts),
        "killed": lambda hosts: run_killed(session, hosts),
        "machine": lambda hosts: run_machine(session, hosts),
    }
    for part in (name for name in repeated if name in parts):
        session.begin(part)
        name, count = ("2x2", 2) if part == "machine" else ("four", 4)
        plan = sleeping if part == "clip" else session.plan
        with hosts_of(session, name, choice.rate(part), count, count) as hosts, session.planned(plan):
            for _ in range(plan.repeats):
                run_links(session, hosts)
                repeated[part](hosts)
