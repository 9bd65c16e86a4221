# SPDX-License-Identifier: Apache-2.0
"""The least values that meet a goal: minimal on the grid, never failing, and undominated."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.properties import properties
from support.small_job import small

from foresee.errors import ConfigError
from foresee.planning import simulation
from foresee.planning.sizing import Axis, cells, cost, count_queries, least, tighten, undominated


@properties()
@given(st.floats(-1e6, 1e6), st.floats(1, 1e6), st.booleans(), st.floats(0, 1))
def test_the_least_is_the_first_grid_value_that_meets_the_goal(start, length, falling, share) -> None:
    axis = Axis("x", start, start - length if falling else start + length)
    values = axis.grid(128)
    assert (len(values), values[0], values[-1]) == (129, axis.low, axis.high)
    border = axis.low + share * (axis.high - axis.low)
    requested = []

    def meets(value: float) -> bool:
        requested.append(value)
        return value <= border if falling else value >= border

    found = least(axis, meets)
    assert found is None or (found in requested and meets(found))
    assert found == next((value for value in values if meets(value)), None)
    assert len(set(requested)) <= count_queries([axis], 8) + len(values)


def test_the_least_takes_few_queries() -> None:
    requested: list[float] = []
    axis = Axis("x", 0, 1)
    assert least(axis, lambda value: bool(requested.append(value)) or value >= 0.3) == pytest.approx(
        0.3047, abs=1e-4
    )
    assert len(requested) <= count_queries([axis], 8) == 9
    assert least(axis, lambda value: False) is None
    assert least(axis, lambda value: True) == 0


@properties()
@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 200))
def test_whole_numbers_stay_whole(low, high, count) -> None:
    if low == high:
        return
    values = Axis("x", low, high, whole=True).grid(count)
    assert all(value == int(value) for value in values)
    assert len(set(values)) == len(values) == min(count, abs(high - low)) + 1
    assert (values[0], values[-1]) == (low, high)


@properties()
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), max_size=12))
def test_undominated_points_undercut_all_others(points) -> None:
    axes = [Axis("a", 0, 4), Axis("b", 4, 0), Axis("c", 0, 4)]

    def no_more(one, other) -> bool:
        return one[0] <= other[0] and one[1] >= other[1] and one[2] <= other[2]

    stored = undominated(axes, points)
    assert set(stored) <= set(points)
    assert all(any(no_more(one, point) for one in stored) for point in points)
    assert not any(no_more(one, other) for one, other in itertools.permutations(stored, 2))


def test_cells_combine_all_axes_except_the_last() -> None:
    axes = [Axis("a", 0, 2), Axis("b", 1, 3, whole=True), Axis("c", 0, 1)]
    assert cells(axes, 2) == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    assert cells(axes[2:], 2) == [()]


def test_a_cost_is_the_sum_over_priced_axes() -> None:
    axes = [Axis("a", 0, 2, price=3), Axis("b", 0, 2), Axis("c", 0, 2, price=0.5)]
    assert cost(axes, (1, 2, 2)) == 4
    assert cost([Axis("a", 0, 2)], (1,)) is None


@pytest.mark.parametrize("wrong", [{"high": 1.0}, {"price": -1.0}, {"price": float("nan")}])
def test_an_axis_has_two_ends_and_no_negative_price(wrong) -> None:
    with pytest.raises(ConfigError, match="ram"):
        Axis("ram", **{"low": 1.0, "high": 2.0} | wrong)


@pytest.mark.parametrize(
    "key", ["cluster__tiers__ram__capacity", "cluster__origin__read", "cluster__network__rate"]
)
def test_more_of_a_machine_is_no_worse_for_placement_by_next_use_with_equal_samples(key) -> None:
    """The assumption of the bisection."""
    took = []
    for factor in range(1, 12):
        value = factor * 20e6
        job = small(data__size_sigma=0.0, **{key: value})
        took.append(simulation.Run(job, "foresee").finish().total_s)
    assert all(more <= less * (1 + 1e-9) for less, more in itertools.pairwise(took)), took


@properties()
@given(st.floats(0.1, 1), st.floats(1, 200), st.floats(1, 200), st.floats(1, 200))
def test_no_key_of_a_point_could_have_a_hundredth_less(share, a, b, c) -> None:
    axes = [Axis("a", 0, a), Axis("b", b, 0), Axis("c", 0, c)]
    highs, ways = (a, b, c), (1, -1, 1)

    def met(at) -> bool:
        parts = [
            (value if way > 0 else high - value) / high
            for value, way, high in zip(at, ways, highs, strict=True)
        ]
        return sum(parts) / 3 >= share * 0.9 and parts[2] >= 0.2

    start = (axes[0].high, axes[1].high)
    last = least(axes[2], lambda number: met((*start, number)))
    assert last is not None
    found = tighten(axes, (*start, last), met)
    assert met(found)
    for place, axis in enumerate(axes):
        less = list(found)
        less[place] -= (axis.high - axis.low) / 100
        if abs(found[place] - axis.low) > abs(axis.high - axis.low) / 100:
            assert not met(less), (place, found)
