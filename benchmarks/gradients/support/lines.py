# SPDX-License-Identifier: Apache-2.0
"""Compute the acceptance lines of PROTOCOL.md from the runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from common.verdicts import Line, judged

from foresee import network

from .runs import Run, Runs
from .workloads import BLOCKS, MODELS, TRAINED, UNSHAPED, bytes_per_s, packet_bytes

Measure = Callable[[Runs], "float | str"]
#: Rows whose closed form is below this share of DDP's step have the stricter limit of ``ranks_ahead_over_ddp``.
AHEAD = 0.95
#: Idle share of the cores below which they are the limit.
IDLE = 0.1


def slept(run: Run) -> bool:
    """Return whether the run's compute sleeps."""
    return run.workload in MODELS


def modelled(run: Run, arm: str) -> bool:
    """Return whether the run's compute sleeps and the model has a step of ``arm``; variants count too."""
    return run.workload.split(",")[0] in MODELS and arm in run.model_s


def over_model(arm: str) -> Measure:
    """Measure the largest distance from the model, as a share of its step, over all workloads and rates."""

    def measure(runs: Runs) -> float | str:
        found = []
        for place in runs.places(lambda run: modelled(run, arm)):
            value = runs.median(place, arm, lambda run: run.t_iter_s / run.model_s[arm])
            if value is not None:
                found.append(abs(value - 1))
        return max(found) if found else f"{arm} was not run, or the goodput of its links is unknown"

    return measure


def over(arm: str) -> Measure:
    """Measure the worst ratio of our step to an arm's, over all workloads and rates."""

    def measure(runs: Runs) -> float | str:
        found = []
        for place in runs.places(slept):
            ours, theirs = runs.median(place, "foresee"), runs.median(place, arm)
            if ours is not None and theirs is not None:
                found.append(ours / theirs)
        return max(found) if found else f"{arm} was not run"

    return measure


def factor_reached(runs: Runs) -> float | str:
    """Return the smallest ratio of the measured to the modelled factor between `fifo_tensor` and `foresee`."""
    found = []
    for place in runs.places(lambda run: slept(run) and bool(run.model_s)):
        ours, theirs = runs.median(place, "foresee"), runs.median(place, "fifo_tensor")
        expected = runs.median(
            place, "foresee", lambda run: run.model_s["fifo_tensor"] / run.model_s["foresee"]
        )
        if ours is not None and theirs is not None and expected is not None:
            found.append(theirs / ours / expected)
    return min(found) if found else "fifo_tensor was not run"


def limit(rate: str) -> float:
    """Return the payload bytes per second that a link of this rate allows with a run's packets."""
    return bytes_per_s(rate) * network.goodput(packet_bytes(rate))


def link_use(runs: Runs) -> float | str:
    """Return the payload per second and direction over the limit of the link, at 1 Gbit/s between two hosts."""
    found = [run.goodput / limit(run.rate) for run in runs.of("bulk", "foresee", "two")]
    return statistics.median(found) if found else "bulk was not run on two hosts"


def urgent(runs: Runs) -> float | str:
    """Return the wait of an urgent tensor behind bulk on 8 connections, in ms: the median of the 95th percentiles."""
    runs_of_8 = [run for run in runs.of("urgent", "foresee") if run.connections == 8 and run.urgent_ms]
    found = [sorted(run.urgent_ms)[int(0.95 * (len(run.urgent_ms) - 1))] for run in runs_of_8]
    return statistics.median(found) if found else "urgent was not run over 8 connections"


def changing(runs: Runs) -> tuple[float | str, float | str]:
    """Return two ratios for links that change.

    The first is the worst stretch over the best fixed `partition` of that stretch. The second is the rounds per second of
    the whole run over those of the setting that is best at the full rate.
    """
    ours = runs.of("changing", "foresee")
    fixed = {run.arm for run in runs.of_all("changing") if run.arm.startswith("partition,")}
    if not ours or not fixed:
        text = "only the full run measures changing links, a minute per setting"
        return text, text

    def medians(arm: str) -> list[float]:
        found = [run.stretch_medians_s() for run in runs.of("changing", arm)]
        return [statistics.median(values) for values in zip(*found, strict=True)]

    def rounds(arm: str) -> float:
        return statistics.median(run.changing_rounds_per_s() for run in runs.of("changing", arm))

    by_arm = {arm: medians(arm) for arm in fixed}
    mine = medians("foresee")
    segment = max(one / min(by_arm[arm][at] for arm in fixed) for at, one in enumerate(mine))
    tuned = min(fixed, key=lambda arm: by_arm[arm][0])
    return segment, rounds("foresee") / rounds(tuned)


def training(runs: Runs) -> float | str:
    """Return the worst ratio of real training to the closed form of its traced times, over all models."""
    found = []
    for place in runs.places(lambda run: run.workload in TRAINED and bool(run.model_s)):
        value = runs.median(place, "foresee", lambda run: run.t_iter_s / run.model_s["foresee"])
        if value is not None:
            found.append(value)
    return max(found) if found else "only the full run measures real training"


@dataclass(frozen=True)
class Row:
    """Real training over colocated or dedicated servers, compared with DDP on the same hosts."""

    #: Ratio of mean steps, paired by repeat; the median of the pairs.
    over_ddp: float
    #: The closed form over DDP's step, and our step over the closed form; None if the links were not measured.
    model_over_ddp: float | None
    over_model: float | None
    shaped: bool
    #: Whether all servers run in the processes of ranks.
    is_colocated: bool
    #: Whether the cores were idle for at least a tenth of the time.
    has_cores: bool


def rows(runs: Runs) -> list[Row]:
    """Return a row for every cluster and rate of `ranks`."""
    found = []
    for workload, cluster, rate in runs.places(lambda run: run.workload in BLOCKS and run.arm == "foresee"):
        ours = runs.of(workload, "foresee", cluster, rate)
        # DDP and the oracle run once per number of ranks, whatever the servers are.
        ranks = f"{cluster.split('+')[0]}+0"
        theirs = [
            run
            for run in runs.of_all(workload)
            if run.arm.startswith("ddp") and (run.cluster, run.rate) == (ranks, rate)
        ]
        if not theirs:
            continue
        pairs = zip(ours, theirs, strict=False)
        model = [run.model_s["foresee"] for run in ours if "foresee" in run.model_s]
        step, ddp = (statistics.median(run.mean_iter_s for run in some) for some in (ours, theirs))
        found.append(
            Row(
                statistics.median(one.mean_iter_s / other.mean_iter_s for one, other in pairs),
                statistics.median(model) / ddp if model else None,
                step / statistics.median(model) if model else None,
                rate != UNSHAPED,
                cluster.endswith("+0"),
                min(run.idle or 0.0 for run in ours) >= IDLE,
            )
        )
    return found


def ranks_over_ddp(runs: Runs, *, shaped: bool, ahead: bool = False) -> float | str:
    """Return the worst ratio of the selected rows; ``ahead`` selects closed forms below 0.95 of DDP's step.

    On unshaped links two cores are the limit, which dedicated servers would share with the ranks, so only colocated
    servers count there.
    """
    found = [
        row.over_ddp
        for row in rows(runs)
        if row.shaped is shaped
        and (shaped or row.is_colocated)
        and (row.model_over_ddp is not None and row.model_over_ddp < AHEAD) is ahead
    ]
    return max(found) if found else "only the full run measures such rows"


def ranks_over_model(runs: Runs) -> float | str:
    """Return the largest distance of a row from its closed form, for rows whose limit is not the cores."""
    found = [abs(row.over_model - 1) for row in rows(runs) if row.over_model is not None and row.has_cores]
    return max(found) if found else "no row with known bandwidth and idle cores was run"


def cpu(of: Callable[[Run], float]) -> Measure:
    """Measure the CPU seconds per gigabyte pushed, at 1 Gbit/s between two hosts."""

    def measure(runs: Runs) -> float | str:
        two = runs.of("bulk", "foresee", "two")
        found = [of(run) / (run.pushed_bytes / 1e9) for run in two if run.pushed_bytes]
        return statistics.median(found) if found else "bulk was not run on two hosts"

    return measure


def aggregation(of: str) -> Measure:
    """Measure the rate of the server's sum over that of a STREAM-add, as measured before the newest run."""

    def measure(runs: Runs) -> float | str:
        rates = [run.machine["sum_rates"] for run in runs.all if of in (run.machine.get("sum_rates") or {})]
        if not rates:
            return "the sum bench is not built, or has no such rate: run `make bench-setup`"
        return float(rates[-1][of] / rates[-1]["stream_add"])

    return measure


def judge(runs: Runs) -> list[Line]:
    """Return all lines; lines without a value have the reason."""
    segment, whole = changing(runs)
    return [
        judged("model_foresee", "distance", 0.05, below=True, value=over_model("foresee")(runs)),
        judged("model_fifo_packet", "distance", 0.05, below=True, value=over_model("fifo_packet")(runs)),
        judged("model_fifo_tensor", "distance", 0.05, below=True, value=over_model("fifo_tensor")(runs)),
        judged("foresee_over_mercury", "ratio", 1.0, below=True, value=over("mercury")(runs)),
        judged("foresee_over_partition", "ratio", 1.0, below=True, value=over("partition")(runs)),
        judged(
            "fifo_tensor_over_foresee", "share of the model's", 0.95, below=False, value=factor_reached(runs)
        ),
        judged("training_over_model", "ratio", 1.08, below=True, value=training(runs)),
        judged("ranks_over_ddp", "ratio", 1.0, below=True, value=ranks_over_ddp(runs, shaped=True)),
        judged(
            "ranks_ahead_over_ddp",
            "ratio",
            0.97,
            below=True,
            value=ranks_over_ddp(runs, shaped=True, ahead=True),
        ),
        judged(
            "ranks_unshaped_over_ddp", "ratio", 1.05, below=True, value=ranks_over_ddp(runs, shaped=False)
        ),
        judged("ranks_over_model", "distance", 0.05, below=True, value=ranks_over_model(runs)),
        judged("link_use", "share", 0.97, below=False, value=link_use(runs)),
        judged("urgent_ms", "ms", 1.5, below=True, value=urgent(runs)),
        judged("changing_segment", "ratio", 1.0, below=True, value=segment),
        judged("changing_whole", "ratio", 1.3, below=False, value=whole),
        judged("aggregation_over_stream", "ratio", 0.6, below=False, value=aggregation("sum")(runs)),
        judged(
            "aggregation_received_over_stream",
            "ratio",
            None,
            below=False,
            value=aggregation("received")(runs),
        ),
        judged("cpu_s_per_gb_rank", "s/GB", None, below=True, value=cpu(lambda run: run.rank_cpu_s)(runs)),
        judged(
            "cpu_s_per_gb_server", "s/GB", None, below=True, value=cpu(lambda run: run.server_cpu_s)(runs)
        ),
    ]
