# SPDX-License-Identifier: Apache-2.0
"""The smallest sets of classes that meet a goal: hand-made examples, and brute force over a grid of gains."""

from __future__ import annotations

import doctest
import importlib
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.properties import properties

from foresee import storage
from foresee.errors import ConfigError, NotMeasured
from foresee.storage import smallest_sets

MEASURED = np.array([[1, 3, 2, 0.5], [0.5, 1, 4.5, 0.4], [2, 2, 2, 0.2]])

seconds = st.one_of(st.just(0.0), st.floats(1e-2, 1e2))
tables = st.integers(1, 5).flatmap(
    lambda rows: st.lists(st.lists(seconds, min_size=4, max_size=4), min_size=rows, max_size=rows)
)


def test_the_examples_in_the_docstrings_are_true() -> None:
    result = doctest.testmod(importlib.import_module("foresee.storage.smallest_sets"))
    assert result.attempted
    assert not result.failed


def test_fewest_classes_come_first_then_the_least_gain() -> None:
    found = smallest_sets.smallest(MEASURED, 4.0)
    assert [each.classes for each in found] == [
        *((1, 2), (0, 2)),
        *((0, 1, 2), (1, 2, 3), (0, 2, 3)),
        (0, 1, 2, 3),
    ]
    # No class alone meets it. Of two, process 2 needs the most: 4 s in 1.8 s; of all, process 0: 6.5 s in 4 s.
    assert found[0].improvement == pytest.approx(100 * (4 / 1.8 - 1))
    assert found[-1].improvement == pytest.approx(100 * (6.5 / 4 - 1))


def test_a_goal_that_is_met_needs_no_class() -> None:
    assert smallest_sets.smallest(MEASURED, 6.5) == []
    assert smallest_sets.smallest(MEASURED, 4.0, [0, 140, 120, 0]) == []
    assert smallest_sets.smallest([[0.0, 0.0]], 1.0) == []


def test_improvements_apply_only_to_classes_outside_a_set() -> None:
    found = {each.classes: each.improvement for each in smallest_sets.smallest(MEASURED, 5.5, [0, 50, 0, 0])}
    assert found[1,] == pytest.approx(900.0)
    assert found[2,] == pytest.approx(storage.sufficient(MEASURED, 5.5, 2, [0, 50, 0, 0]))


@given(tables, st.floats(0.05, 1.1))
@properties()
def test_exactly_the_minimal_sets_are_returned(table: list, share: float) -> None:
    before = storage.slowest(table).seconds
    if before == 0:
        return
    goal = share * before
    found = {each.classes: each.improvement for each in smallest_sets.smallest(table, goal)}
    missed = before > storage.latest(goal)
    assert bool(found) == missed
    for count in range(1, 5):
        for chosen in itertools.combinations(range(4), count):
            need = storage.sufficient(table, goal, chosen)
            parts = [gain for classes, gain in found.items() if set(classes) < set(chosen)]
            if chosen in found:
                assert found[chosen] == need
                assert need < min(parts, default=math.inf)
                improvement = [need if column in chosen else 0.0 for column in range(4)]
                assert storage.slowest(table, improvement).seconds <= goal * (1 + 1e-9)
            elif missed and math.isfinite(need):
                assert need >= min(parts) * (1 - 1e-6)


def test_classes_that_took_no_time_are_in_no_set() -> None:
    table = np.insert(MEASURED, 2, 0.0, axis=1)
    assert smallest_sets.contributing(table) == [0, 1, 3, 4]
    assert all(2 not in each.classes for each in smallest_sets.smallest(table, 4.0))


def test_more_classes_than_can_be_tried_are_refused() -> None:
    with pytest.raises(ConfigError, match="13 classes that took any time; at most 12 expected"):
        smallest_sets.smallest(np.ones((1, 13)), 1.0)
    assert smallest_sets.smallest(np.ones((1, 12)), 11.5)[0].classes == (0,)


def test_missing_values_are_named() -> None:
    with pytest.raises(NotMeasured, match="GFS-READ of process 0"):
        smallest_sets.smallest([[math.nan, 1.0, 1.0, 1.0]], 1.0)
    with pytest.raises(ConfigError, match="goal = 0"):
        smallest_sets.smallest(MEASURED, 0)
