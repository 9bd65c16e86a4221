#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw the paper's figures 3 to 9 from the newest results, as one SVG in docs/figures: measured, and by the model.

``run.py --table`` prints the numbers. Run this with .bench-venv, which has matplotlib.

Exit status: 0 drawn, 2 bad arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import drawing  # noqa: E402 - needs the path above
from common.runs import Runs, read  # noqa: E402
from support.figure_points import (  # noqa: E402
    EPOCHS,
    WORKLOADS,
    Point,
    is_full_fetch,
    is_half_and_half,
    points,
)

COLOURS = {"figures_mnist": drawing.BLUE, "figures_cifar": drawing.RED}
#: Colours of the caches of figure 8, in order of size.
CACHES = (drawing.GREY, drawing.GREEN, drawing.BLUE, drawing.ORANGE)

#: A value of a point, measured or predicted.
Value = Callable[[Point, str], float | None]


def deli(found: Runs) -> Figure | None:
    """Draw figures 3 to 9."""
    if not any(points(found, part) for part in WORKLOADS):
        return None
    title = (
        "DELI's figures 3 to 9 with CachedDataset and PrefetchSampler. Points: measured; filled: misses and joined "
        "reads, as DELI counts, hollow: misses alone. Lines and marks: the model of DELI on this origin"
    )
    figure, axes = drawing.sheet(4, 2, title=title)
    figure.set_size_inches(17, 8)
    _loading_times(axes[0], found)
    _loading_by_misses(axes[1], found)
    _by_share(axes[2], found)
    _by_fetch(axes[3], found)
    _by_cache(axes[4], found)
    for axis, part in zip(axes[5:7], WORKLOADS, strict=True):
        _by_threshold(axis, found, part)
    _approaches(axes[7], found)
    return figure


def _loading_times(axis: Axes, found: Runs) -> None:
    labels = {"direct_obstore": "direct", "cache": "cache\nonly", "disk": "disk"}

    def label(point: Point) -> str:
        if is_half_and_half(point):
            return "50/50"
        return labels.get(point.arm, f"fetch\n{point.fetch}")

    by_label = {(label(point), part): point for part in WORKLOADS for point in points(found, part, 3)}
    # The order of the paper: from the slowest to the fastest, the disk last.
    order = ["direct", "cache\nonly"]
    groups = drawing.unique(name for name, _ in by_label)
    groups.sort(key=lambda name: order.index(name) if name in order else {"50/50": 3, "disk": 4}.get(name, 2))
    names = {WORKLOADS[part]: part for part in WORKLOADS}

    def value(group: str, workload: str) -> list[float]:
        point = by_label.get((group, names[workload]))
        return point.each("waited_s") if point else []

    def mark(group: str, workload: str) -> float:
        return by_label[group, names[workload]].predicted("waited_s") or 0.0

    drawing.bars(axis, groups, {WORKLOADS[part]: COLOURS[part] for part in WORKLOADS}, value, mark)
    axis.set_yscale("log")
    axis.set_title("Figure 3: loading time of two epochs", fontsize=9)
    axis.set_ylabel("s, logarithmic")


def _loading_by_misses(axis: Axes, found: Runs) -> None:
    for part, colour in COLOURS.items():
        at = points(found, part, 4)
        measured = _curve(
            at, lambda point: _rate(point, Point.measured), lambda point: point.measured("waited_s")
        )
        model = _curve(
            at, lambda point: _rate(point, Point.predicted), lambda point: point.predicted("waited_s")
        )
        axis.plot(*measured, "o", color=colour, ms=4, label=WORKLOADS[part])
        axis.plot(*model, color=colour, lw=1)
    _finish(
        axis,
        "Figure 4: loading time by miss rate",
        "miss rate of both epochs",
        "loading time of two epochs, s",
    )


def _by_share(axis: Axes, found: Runs) -> None:
    order = [0.25, 0.5, 0.75, 0.0]

    def place(point: Point) -> float:
        return float(order.index(round(point.share_of_partition, 2)))

    for part, colour in COLOURS.items():
        at = [point for point in points(found, part, 5) if round(point.share_of_partition, 2) in order]
        _draw(axis, at, place, colour, WORKLOADS[part], epochs=EPOCHS[1:])
    axis.set_xticks(range(4), ["25 %", "50 %", "75 %", "no limit"])
    _finish(axis, "Figure 5: cache without read-ahead", "cache, of the partition", "miss rate of epoch 2")


def _by_fetch(axis: Axes, found: Runs) -> None:
    for part, colour in COLOURS.items():
        _draw(axis, points(found, part, 6), lambda point: float(point.fetch), colour, WORKLOADS[part])
    _finish(axis, "Figure 6: fetch size, cache without limit", "fetch size, samples")


def _by_cache(axis: Axes, found: Runs) -> None:
    for part, colour in COLOURS.items():
        _draw(axis, points(found, part, 7), lambda point: point.cache / point.fetch, colour, WORKLOADS[part])
    _finish(axis, "Figure 7: cache at a fixed fetch size", "cache, in fetch sizes")


def _by_threshold(axis: Axes, found: Runs, part: str) -> None:
    at = points(found, part, 8)
    caches = sorted({point.cache for point in at})
    for cache, colour in zip(caches, CACHES, strict=False):
        same = [point for point in at if point.cache == cache]
        label = f"cache of {cache / same[0].fetch:g} fetches"
        _draw(axis, same, lambda point: 100 * point.threshold / point.cache, colour, label)
    _finish(axis, f"Figure 8: threshold, {WORKLOADS[part]}", "threshold, % of the cache")


def _approaches(axis: Axes, found: Runs) -> None:
    for part, colour in COLOURS.items():
        at = [point for point in points(found, part, 9) if is_full_fetch(point) or is_half_and_half(point)]
        _draw(axis, at, lambda point: float(is_half_and_half(point)), colour, WORKLOADS[part], line="_")
    axis.set_xticks([0, 1], ["full fetch", "50/50"])
    axis.set_xlim(-0.5, 1.5)
    _finish(axis, "Figure 9: one large fetch, or two halves", "window of the same cache")


def _draw(
    axis: Axes,
    at: Sequence[Point],
    x: Callable[[Point], float],
    colour: str,
    label: str,
    *,
    epochs: Sequence[str] = EPOCHS,
    line: str = "-",
) -> None:
    """Draw miss rates by ``x``: measured with joins and without, and by the model."""
    filled = _curve(at, x, lambda point: _rate(point, Point.measured, epochs))
    hollow = _curve(at, x, lambda point: _rate(point, Point.measured, epochs, without_joins=True))
    model = _curve(at, x, lambda point: _rate(point, Point.predicted, epochs))
    axis.plot(*filled, "o", color=colour, ms=5, label=label)
    axis.plot(*hollow, "o", color=colour, ms=5, mfc="none")
    axis.plot(*model, line, color=colour, lw=1, ms=16)


def _curve(
    at: Sequence[Point], x: Callable[[Point], float | None], y: Callable[[Point], float | None]
) -> tuple[list[float], list[float]]:
    """Return the coordinates of the points that have both, in order."""
    both = [(x(point), y(point)) for point in at]
    known = sorted((left, right) for left, right in both if left is not None and right is not None)
    return [left for left, _ in known], [right for _, right in known]


def _rate(
    point: Point, of: Value, epochs: Sequence[str] = EPOCHS, *, without_joins: bool = False
) -> float | None:
    """Return the mean miss rate of the epochs; None if one has none."""
    rates = []
    for epoch in epochs:
        rate, joined = of(point, f"{epoch}_miss_rate"), of(point, f"{epoch}_join_rate")
        if rate is None:
            return None
        rates.append(rate - (joined or 0.0) if without_joins else rate)
    return sum(rates) / len(rates)


def _finish(axis: Axes, title: str, x: str, y: str = "miss rate of both epochs") -> None:
    axis.set_title(title, fontsize=9)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    # No point lies on the border.
    axis.set_ylim(0, 1.05 * axis.get_ylim()[1])
    axis.legend(fontsize=7)


if __name__ == "__main__":
    sys.exit(drawing.draw_all(HERE, "bucket", read, {"deli": deli}))
