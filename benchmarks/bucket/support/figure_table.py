# SPDX-License-Identifier: Apache-2.0
"""Tables of the paper's figures: what its text says next to the measurement and the model, and all points."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from common.runs import Runs

from .figure_points import EPOCHS, WORKLOADS, Point, is_full_fetch, is_half_and_half, miss_rate, points

#: A value of a point, measured or predicted.
Value = Callable[[Point, str], float | None]
#: A number of a figure, from its points; raises LookupError if one is missing.
Number = Callable[[Sequence[Point], Value], float]

CLAIMS_HEAD = "| figure | statement | workload | DELI | measured | model |\n|---|---|---|---|---|---|\n"
POINTS_HEAD = (
    "| figures | workload | arm | cache | fetch size | threshold | miss rate, epochs 1 and 2 | of it joined "
    "| model | loading, both epochs, s | model |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|\n"
)


def has_figures(found: Runs) -> bool:
    """Whether any figure was measured."""
    return any(points(found, part) for part in WORKLOADS)


def without_figures(found: Runs) -> Runs:
    """Return the runs of the other parts, and the void runs of all."""
    return Runs(run for run in found.all if run.void or run.part not in WORKLOADS)


def markdown(found: Runs) -> str:
    """Return both tables."""
    claims = "".join(_claims(found, part) for part in WORKLOADS)
    rows = "".join(_row(point) for part in WORKLOADS for point in points(found, part))
    return f"{CLAIMS_HEAD}{claims}\n{POINTS_HEAD}{rows}"


def _claims(found: Runs, part: str) -> str:
    is_mnist = part == "figures_mnist"
    rows: list[tuple[int, str, str, Number]] = [
        (3, "loading time saved by 50/50 against direct reads", "0.856" if is_mnist else "0.935", _saved),
        (3, "loading time of direct reads over that of the disk", "8 to 16", _over_disk),
        (4, "correlation of loading time and miss rate", "linear", _correlation),
        (5, "miss rate of epoch 2, cache of 25 % of a partition", "0.989", _rate_of_share(0.25)),
        (5, "the same, 50 %", "0.953", _rate_of_share(0.5)),
        (5, "the same, 75 %", "0.887", _rate_of_share(0.75)),
        (5, "the same, no limit", "0.667", _rate_of_share(0.0)),
        (6, "miss rate, largest fetch size over smallest", "below 1", _over_smallest_fetch),
        (7, "miss rate, cache of one fetch less that of three", "negligible", _lost_by_small_cache),
        (
            8,
            "misses saved by a threshold of 50 %, cache of two fetches",
            "0.31" if is_mnist else "0.80",
            _saved_by_threshold,
        ),
        (9, "misses saved by 50/50 against full fetch", "small" if is_mnist else "0.83", _saved_by_half),
    ]
    text = ""
    for figure, statement, deli, number in rows:
        found_points = points(found, part, figure)
        measured, model = (_text(number, found_points, of) for of in (Point.measured, Point.predicted))
        text += f"| {figure} | {statement} | {WORKLOADS[part]} | {deli} | {measured} | {model} |\n"
    return text


def _text(number: Number, found: Sequence[Point], of: Value) -> str:
    """Return a number with three digits; empty where a point is missing or the number is not defined."""
    try:
        return f"{number(found, of):.3f}"
    except (LookupError, ZeroDivisionError, statistics.StatisticsError):
        return ""


def _saved(found: Sequence[Point], of: Value) -> float:
    return 1 - _loading_s(_one(found, is_half_and_half), of) / _loading_s(
        _of_arm(found, "direct_obstore"), of
    )


def _over_disk(found: Sequence[Point], of: Value) -> float:
    return _loading_s(_of_arm(found, "direct_obstore"), of) / _loading_s(_of_arm(found, "disk"), of)


def _correlation(found: Sequence[Point], of: Value) -> float:
    rates = [miss_rate(point, of) for point in found]
    return statistics.correlation(rates, [_loading_s(point, of) for point in found])


def _rate_of_share(share: float) -> Number:
    """Return the number of a cache of that share of a partition; 0: without a limit."""

    def number(found: Sequence[Point], of: Value) -> float:
        # Capacities are whole samples.
        point = _one(found, lambda point: round(point.share_of_partition, 2) == share)
        return _known(of(point, "second_miss_rate"))

    return number


def _over_smallest_fetch(found: Sequence[Point], of: Value) -> float:
    by_fetch = sorted(found, key=lambda point: point.fetch)
    if not by_fetch:
        raise LookupError
    return miss_rate(by_fetch[-1], of) / miss_rate(by_fetch[0], of)


def _lost_by_small_cache(found: Sequence[Point], of: Value) -> float:
    one = _one(found, lambda point: point.cache == point.fetch)
    three = _one(found, lambda point: point.cache == 3 * point.fetch)
    return miss_rate(one, of) - miss_rate(three, of)


def _saved_by_threshold(found: Sequence[Point], of: Value) -> float:
    none = _one(found, lambda point: point.cache == 2 * point.fetch and not point.threshold)
    return 1 - miss_rate(_one(found, is_half_and_half), of) / miss_rate(none, of)


def _saved_by_half(found: Sequence[Point], of: Value) -> float:
    return 1 - miss_rate(_one(found, is_half_and_half), of) / miss_rate(_one(found, is_full_fetch), of)


def _row(point: Point) -> str:
    is_cached = point.arm in ("cache", "window")
    rates = (_pair(point, "miss_rate", Point.measured), _pair(point, "join_rate", Point.measured))
    cells = [
        ", ".join(map(str, point.figures)),
        WORKLOADS[point.part],
        point.arm,
        str(point.cache or "all") if is_cached else "",
        str(point.fetch) if point.fetch else "",
        str(point.threshold) if point.fetch else "",
        *rates,
        _pair(point, "miss_rate", Point.predicted),
        *(
            _seconds(of(point, "waited_s") if point.is_timed else None)
            for of in (Point.measured, Point.predicted)
        ),
    ]
    return "| " + " | ".join(cells) + " |\n"


def _pair(point: Point, name: str, of: Value) -> str:
    rates = [of(point, f"{epoch}_{name}") for epoch in EPOCHS]
    return ", ".join(f"{rate:.3f}" for rate in rates if rate is not None)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _one(found: Sequence[Point], is_wanted: Callable[[Point], bool]) -> Point:
    for point in found:
        if is_wanted(point):
            return point
    raise LookupError("the point was not measured")


def _of_arm(found: Sequence[Point], arm: str) -> Point:
    return _one(found, lambda point: point.arm == arm)


def _loading_s(point: Point, of: Value) -> float:
    return _known(of(point, "waited_s"))


def _known(value: float | None) -> float:
    if value is None:
        raise LookupError("the value was not measured")
    return value
