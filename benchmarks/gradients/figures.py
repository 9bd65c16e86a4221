#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw the newest results as SVG in docs/figures, one file per measured part.

Each figure shows raw lines and the times of the network model. The numbers are in docs/benchmarks/gradients.md. Run this
with .bench-venv, which has matplotlib.

Exit status: 0 drawn (figures without results are listed), 2 bad arguments.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import drawing  # noqa: E402 - needs the path above
from common.drawing import GREY, sheet, spread  # noqa: E402
from support.parts import FULL, RATIOS  # noqa: E402
from support.runs import Run, Runs, read  # noqa: E402
from support.workloads import MODELS, bytes_per_s, sleeps  # noqa: E402

from foresee import network  # noqa: E402

COLOURS = {
    "oracle": drawing.BLACK,
    "foresee": drawing.BLUE,
    "mercury": drawing.ORANGE,
    "mercury_windowed": drawing.YELLOW,
    "mercury_interface": drawing.LIGHT_BLUE,
    "fifo_packet": drawing.GREEN,
    "fifo_tensor": drawing.RED,
    "partition": drawing.PINK,
    "barrier": drawing.RED,
}
#: The model's schedule of each arm.
MODELLED: dict[str, network.Policy] = {
    "foresee": "mercury",
    "fifo_packet": "fifo_packet",
    "fifo_tensor": "fifo_tensor",
}

Draw = Callable[[Runs], Figure | None]


def points(axis: Axes, arm: str, x: Sequence[float], values: Sequence[Sequence[float]], label: str) -> None:
    """Plot medians of an arm with their spread."""
    drawing.points(axis, COLOURS.get(arm, GREY), x, values, label)


def bars(
    axis: Axes, groups: Sequence[str], arms: Sequence[str], value: Callable[[str, str], list[float]]
) -> None:
    """Plot one bar per group and arm, with its spread; arms without values have no bar."""
    drawing.bars(axis, groups, {arm: COLOURS.get(arm, GREY) for arm in arms}, value)


def steps(runs: Runs) -> Figure | None:
    """Draw 1: every model, link and schedule, over the modelled step of our schedule."""
    found = [run for run in runs.valid if run.workload in MODELS and run.cluster == "four" and run.policy]
    if not found:
        return None
    rates = drawing.unique(run.rate for run in found)
    models = drawing.unique(run.workload for run in found)
    arms = [arm for arm in COLOURS if any(run.arm == arm for run in found)]
    figure, axes = sheet(len(rates), title="Step over the closed form of its best schedule", share=True)
    for axis, rate in zip(axes, rates, strict=True):

        def value(model: str, arm: str, rate: str = rate) -> list[float]:
            best = runs.median((model, "four", rate), "foresee", lambda run: run.model_s["foresee"])
            return [run.t_iter_s / best for run in runs.of(model, arm, "four", rate)] if best else []

        bars(axis, models, arms, value)
        axis.axhline(1, color=GREY, lw=0.8)
        axis.set_title(rate, fontsize=9)
        axis.tick_params(axis="x", labelsize=7)
    return figure


def bandwidths(runs: Runs) -> Figure | None:
    """Draw 1, continued: speed against bandwidth, modelled and measured."""
    measured = {ratio: runs.of_all(f"vgg16, wire {ratio:g} x compute") for ratio in RATIOS}
    if not any(measured.values()):
        return None
    figure, (axis,) = sheet(title="VGG-16, four ranks, four servers: speed against bandwidth")
    rate = bytes_per_s("200mbit")
    bulk = runs.median(("bulk", "four", "200mbit"), "foresee", lambda run: run.goodput) or rate
    x = [2 ** (at / 8) for at in range(-16, 17)]
    for arm, policy in MODELLED.items():
        y = []
        for over in x:
            work = sleeps("vgg16", compute_s=FULL.compute_s, wire_s=FULL.compute_s / over, bytes_per_s=rate)
            y.append(network.speed(work.step(), policy, bulk))
        axis.plot(x, y, color=COLOURS[arm], lw=1, label=f"{arm}, model")
    for arm in ("foresee", "mercury", "fifo_packet", "fifo_tensor"):
        at = [ratio for ratio in RATIOS if any(run.arm == arm for run in measured[ratio])]
        values = [
            [FULL.compute_s / run.t_iter_s for run in measured[ratio] if run.arm == arm] for ratio in at
        ]
        points(axis, arm, [1 / ratio for ratio in at], values, f"{arm}, measured")
    axis.set_xscale("log", base=2)
    axis.set_xticks([1 / ratio for ratio in RATIOS], [f"{1 / ratio:g}" for ratio in RATIOS])
    axis.set_xlabel("bandwidth, over that at which a step's wire time is its compute")
    axis.set_ylabel("speed over that without a network")
    axis.legend(fontsize=7)
    return figure


def required(_: Runs) -> Figure | None:
    """Draw 2: the modelled bandwidth at which a step has 99 % and 90 % of its speed without a network."""
    figure, axes = sheet(
        2, title="Bandwidth that is needed, over wire bytes per second of compute (model)", share=True
    )
    for axis, share in zip(axes, (0.99, 0.9), strict=True):

        def value(model: str, arm: str, share: float = share) -> list[float]:
            step = sleeps(model, compute_s=1.0, wire_s=1.0, bytes_per_s=25e6).step()
            found = network.minimum_bandwidth(step, MODELLED[arm], goal=share)
            return [found / (step.total_bytes / step.oracle)] if isinstance(found, float) else []

        bars(axis, MODELS, list(MODELLED), value)
        axis.set_yscale("log")
        axis.set_title(f"{100 * share:g} % of the speed", fontsize=9)
        axis.tick_params(axis="x", labelsize=7)
    return figure


def urgent(runs: Runs) -> Figure | None:
    """Draw 3: how long 30 KB of the highest priority wait behind bulk."""
    found = runs.of_all("urgent")
    if not found:
        return None
    arms = drawing.unique(run.arm for run in found)
    figure, (axis,) = sheet(title="30 KB that are wanted first, behind bulk, 1 Gbit/s")
    for nth, arm in enumerate(arms):
        for connections in sorted({run.connections for run in found}):
            same = (run for run in found if (run.arm, run.connections) == (arm, connections))
            waits = sorted(wait for run in same for wait in run.urgent_ms)
            at = connections * (1 + 0.06 * nth)
            low, high = waits[len(waits) // 20], waits[int(0.95 * (len(waits) - 1))]
            middle = statistics.median(waits)
            axis.errorbar(
                at,
                middle,
                yerr=[[middle - low], [high - middle]],
                color=COLOURS.get(arm, GREY),
                marker="o",
                capsize=3,
            )
        axis.plot([], [], "o", color=COLOURS.get(arm, GREY), label=f"{arm}: median, 5 to 95 %")
    axis.set_xscale("log", base=2)
    over = sorted({run.connections for run in found})
    axis.set_xticks(over, [str(each) for each in over])
    axis.set_yscale("log")
    axis.set_xlabel("connections")
    axis.set_ylabel("wait, ms")
    axis.legend(fontsize=7)
    return figure


def ablation(runs: Runs) -> Figure | None:
    """Draw 4: the ablation from the paper's schedule to ours."""
    arms = ("mercury", "mercury_windowed", "mercury_interface", "foresee")
    models = [model for model in MODELS if runs.of(model, "mercury_windowed", "four", "200mbit")]
    if not models:
        return None
    figure, (axis,) = sheet(title="From the paper's schedule to ours, 200 Mbit/s: step over the closed form")

    def value(model: str, arm: str) -> list[float]:
        best = runs.median((model, "four", "200mbit"), "foresee", lambda run: run.model_s["foresee"])
        return [run.t_iter_s / best for run in runs.of(model, arm, "four", "200mbit")] if best else []

    bars(axis, models, arms, value)
    axis.axhline(1, color=GREY, lw=0.8)
    return figure


def changing(runs: Runs) -> Figure | None:
    """Draw 5: links that change every 5 s."""
    ours = runs.of("changing", "foresee")
    fixed = drawing.unique(run.arm for run in runs.of_all("changing") if run.arm.startswith("partition,"))
    if not ours or not fixed:
        return None
    figure, (axis,) = sheet(title="VGG-16 while the links change: median step of each stretch")
    shares = [share for _, share in ours[0].stretches]

    def medians(arm: str) -> list[float]:
        columns = zip(*(run.stretch_medians_s() for run in runs.of("changing", arm)), strict=True)
        return [1e3 * statistics.median(column) for column in columns]

    by_arm = {arm: medians(arm) for arm in fixed}
    best = [min(by_arm[arm][at] for arm in fixed) for at in range(len(shares))]
    tuned = min(fixed, key=lambda arm: by_arm[arm][0])
    at = range(len(shares))
    axis.step(at, by_arm[tuned], where="mid", color=COLOURS["partition"], label="partition, best at 100 %")
    axis.step(at, best, where="mid", color=COLOURS["fifo_tensor"], label="partition, best of each stretch")
    axis.step(at, medians("foresee"), where="mid", color=COLOURS["foresee"], label="foresee")
    axis.set_xticks(at, [f"{100 * share:g} %" for share in shares], fontsize=7)
    axis.set_yscale("log")
    axis.set_ylabel("ms")
    axis.legend(fontsize=7)
    return figure


def sizes(runs: Runs) -> Figure | None:
    """Draw 6: steps by packet size and window size."""
    found = runs.of_all("sizes")
    if not found:
        return None
    figure, axes = sheet(2, title="VGG-16, 200 Mbit/s: step by size of packet and window", share=True)
    usual = [1e3 * run.t_iter_s for run in found if run.arm == "foresee"]
    for axis, what in zip(axes, ("packets", "windows"), strict=True):
        prefix = f"foresee, {what} of "
        at = sorted({int(run.arm.removeprefix(prefix)) for run in found if run.arm.startswith(prefix)})
        values = [[1e3 * run.t_iter_s for run in found if run.arm == f"{prefix}{size}"] for size in at]
        points(axis, "foresee", [max(1, size) for size in at], values, f"{what} of this size")
        if usual:
            axis.axhline(statistics.median(usual), color=GREY, lw=0.8, label="sizes by our rule")
        axis.set_xscale("log", base=2)
        axis.set_xlabel("bytes")
        axis.legend(fontsize=7)
    axes[0].set_ylabel("ms")
    return figure


def colocated(runs: Runs) -> Figure | None:
    """Draw 7: the usable share of a link with colocated and dedicated servers."""
    found = [run for run in runs.of_all("bulk") if "+" in run.cluster]
    if not found:
        return None
    figure, (axis,) = sheet(title="Bulk over colocated and dedicated servers: share of a link, 100 Mbit/s")
    for ranks, colour in zip(
        (2, 4, 8), (COLOURS["foresee"], COLOURS["fifo_tensor"], COLOURS["fifo_packet"]), strict=True
    ):
        counts = sorted(
            {int(run.cluster.partition("+")[2]) for run in found if run.cluster.startswith(f"{ranks}+")}
        )
        axis.plot(
            counts,
            [network.shares(ranks, servers).of_link for servers in counts],
            color=colour,
            lw=1,
            label=f"{ranks} ranks, model",
        )
        for servers in counts:
            same = [run for run in found if run.cluster == f"{ranks}+{servers}"]
            middle, error = spread([run.goodput / bytes_per_s(run.rate) for run in same])
            axis.errorbar(servers, middle, yerr=error, color=colour, marker="o", ms=4, capsize=2)
    axis.set_xlabel("dedicated servers")
    axis.set_ylabel("payload per second over the link's rate")
    axis.legend(fontsize=7)
    return figure


def uneven(runs: Runs) -> Figure | None:
    """Draw 8: a slow rank, a narrow link, two jobs."""
    places = ("skewed", "narrow", "two jobs")
    found = [run for run in runs.valid if run.workload in places]
    if not found:
        return None
    figure, (axis,) = sheet(title="One rank slower, one link narrower, two jobs: step, ms")
    arms = [arm for arm in COLOURS if any(run.arm == arm for run in found)]
    bars(axis, places, arms, lambda place, arm: [1e3 * run.t_iter_s for run in runs.of(place, arm)])
    return figure


def killed(runs: Runs) -> Figure | None:
    """Draw 9: a server is killed and replaced at its address."""
    found = runs.of_all("killed")
    if not found:
        return None
    figure, (axis,) = sheet(title="A server is killed and replaced: steps of rank 0")
    for run in found:
        took = [1e3 * one for one in run.steps_s[0]]
        axis.plot(range(len(took)), took, color=COLOURS.get(run.arm, GREY), lw=0.8)
    for arm in drawing.unique(run.arm for run in found):
        lost = [
            sum(one) - len(one) * statistics.median(one)
            for one in (run.steps_s[0] for run in runs.of("killed", arm))
        ]
        axis.plot([], [], color=COLOURS.get(arm, GREY), label=f"{arm}: {statistics.median(lost):.2f} s lost")
    axis.set_xlabel("step")
    axis.set_ylabel("ms")
    axis.legend(fontsize=7)
    return figure


def cpu(runs: Runs) -> Figure | None:
    """Draw 10: CPU seconds per gigabyte."""
    found = [
        run for run in runs.valid if run.workload == "vgg16" and run.pushed_bytes and run.cluster == "four"
    ]
    if not found:
        return None
    rates = drawing.unique(run.rate for run in found)
    arms = [arm for arm in COLOURS if any(run.arm == arm for run in found)]
    figure, axes = sheet(2, title="VGG-16: CPU seconds per gigabyte pushed", share=True)
    seconds: tuple[tuple[str, Callable[[Run], float]], ...] = (
        ("ranks", lambda run: run.rank_cpu_s),
        ("servers", lambda run: run.server_cpu_s),
    )
    for axis, (who, of) in zip(axes, seconds, strict=True):

        def value(rate: str, arm: str, of: Callable[[Run], float] = of) -> list[float]:
            return [of(run) / run.pushed_bytes * 1e9 for run in runs.of("vgg16", arm, "four", rate)]

        bars(axis, rates, arms, value)
        axis.set_title(who, fontsize=9)
    return figure


def clip(runs: Runs) -> Figure | None:
    """Draw 11: the cost of a forward pass that waits for the last average."""
    models = [model for model in MODELS if runs.of_all(f"{model}, clipped")]
    if not models:
        return None
    figure, (axis,) = sheet(
        title="Exact clipping: the forward pass waits for the last average, 200 Mbit/s; step, ms"
    )
    bars(
        axis,
        models,
        ("foresee", "barrier"),
        lambda model, arm: [1e3 * run.t_iter_s for run in runs.of(f"{model}, clipped", arm)],
    )
    return figure


def machine(runs: Runs) -> Figure | None:
    """Draw 12: two ranks on each of two hosts."""
    found = runs.of_all("two on a host")
    if not found:
        return None
    figure, (axis,) = sheet(title="Two ranks on each of two hosts, VGG-16, 100 Mbit/s: step, ms")
    arms = drawing.unique(run.arm for run in found)
    for at, arm in enumerate(arms):
        middle, error = spread([1e3 * run.t_iter_s for run in runs.of("two on a host", arm)])
        axis.bar(at, middle, 0.5, yerr=error, color=COLOURS["foresee"], capsize=3)
    axis.set_xticks(range(len(arms)), arms)
    return figure


ALL: dict[str, Draw] = {
    "steps": steps,
    "bandwidths": bandwidths,
    "required": required,
    "urgent": urgent,
    "ablation": ablation,
    "changing": changing,
    "sizes": sizes,
    "beside": colocated,
    "uneven": uneven,
    "killed": killed,
    "cpu": cpu,
    "clip": clip,
    "machine": machine,
}


if __name__ == "__main__":
    sys.exit(drawing.draw_all(HERE, "gradients", read, ALL))
