# SPDX-License-Identifier: Apache-2.0
"""The storage that a training goal needs: MLPerf's numbers, agreement of the forms, and refused arguments."""

from __future__ import annotations

import doctest
import importlib
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.properties import properties

from foresee.errors import ConfigError
from foresee.storage import goal
from foresee.storage.model import Infeasible

positive = st.floats(1e-3, 1e9)


def test_the_examples_in_the_docstrings_are_true() -> None:
    result = doctest.testmod(importlib.import_module("foresee.storage.goal"))
    assert result.attempted
    assert not result.failed


def test_unet3d_of_mlperf_needs_three_gigabytes_a_second() -> None:
    # 7 samples of 146.6 MB for a step of 0.323 s on an H100; MLPerf's rules require 90 % of that.
    assert goal.rate_for_utilization(7 * 146.6e6, 0.323) == pytest.approx(3.18e9, abs=0.005e9)
    assert goal.rate_for_utilization(7 * 146.6e6, 0.323, 0.9) == pytest.approx(0.9 * 3.1771e9, rel=1e-4)


@properties()
@given(positive, positive, st.floats(0.01, 1))
def test_a_goal_in_any_words_needs_one_rate(batch_bytes: float, compute: float, share: float) -> None:
    rate = goal.rate_for_utilization(batch_bytes, compute, share)
    step = compute / share * (1 + 1e-12)
    assert goal.rate_for_steps(batch_bytes, compute, 1 / step) == pytest.approx(rate)
    assert goal.rate_for_hours(batch_bytes, compute, 10, 10 * step / 3600) == pytest.approx(rate)


def test_computing_alone_may_take_longer_than_a_goal() -> None:
    assert goal.rate_for_steps(1.0, 0.5, 4) == Infeasible(0.25, 0.5)
    assert goal.rate_for_hours(1.0, 0.5, 7201, 1) == Infeasible(3600.0, 3600.5)
    assert goal.rate_for_hours(1.0, 0.5, 7200, 1) == 2.0


@properties()
@given(needed=positive, share=st.floats(0, 2))
@example(needed=1.0, share=1.4174356095436635e-15)
def test_the_origin_suffices_for_the_uncached_share(needed: float, share: float) -> None:
    cached = goal.cached_share(needed, share * needed)
    assert 0 <= cached <= 1
    assert (1 - cached) * needed <= share * needed * (1 + 1e-9)
    assert cached == pytest.approx(max(0.0, 1 - share), abs=1e-9)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: goal.rate_for_utilization(0, 1), "batch_bytes = 0"),
        (lambda: goal.rate_for_utilization(1, math.nan), "compute_time = nan"),
        (lambda: goal.rate_for_utilization(1, 1, 0), "utilization = 0; above 0, at most 1"),
        (lambda: goal.rate_for_utilization(1, 1, 1.1), "utilization = 1.1"),
        (lambda: goal.rate_for_steps(1, 1, math.inf), "steps_per_s = inf"),
        (lambda: goal.rate_for_hours(1, 1, 0, 1), "steps = 0"),
        (lambda: goal.rate_for_hours(1, 1, 1, -1), "hours = -1"),
        (lambda: goal.cached_share(0, 1), "needed = 0"),
        (lambda: goal.cached_share(1, -1), "origin_rate = -1"),
        (lambda: goal.cached_share(1, math.inf), "origin_rate = inf"),
    ],
)
def test_arguments_outside_their_range_are_refused(call, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        call()


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as result:
        goal.rate_for_utilization(0, 0, 2)
    assert len(result.value.faults) == 3
