# SPDX-License-Identifier: Apache-2.0
"""The closed forms of staggering: vectors, single cases and refused arguments."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import json
import math
from typing import Any

import numpy as np
import pytest
from support.house import ROOT

from foresee import stagger
from foresee.errors import ConfigError, NotMeasured
from foresee.stagger.model import JobTimes

VECTORS = json.loads((ROOT / "testdata" / "models" / "stagger.json").read_text())["cases"]
COMPATS = ("physical", "paper")


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_every_vector_is_reproduced(vector: dict[str, Any]) -> None:
    inputs, expected, tolerance = vector["inputs"], vector["expected"], vector["tolerance"]

    def close(actual: object, expected: object) -> None:
        np.testing.assert_allclose(
            actual, expected, rtol=tolerance.get("relative", 0), atol=tolerance.get("absolute", 0)
        )

    if vector["ask"] == "plan":
        plan = stagger.plan([JobTimes(**job) for job in inputs["jobs"]], inputs["read"])
        assert plan.leader == expected.pop("leader")
        assert all(plan.within_cache)
        for field, value in expected.items():
            close(getattr(plan, field), value)
        return
    a, b = JobTimes(**inputs["leader"]), JobTimes(**inputs["follower"])
    compat = inputs.get("compat", "physical")
    if vector["ask"] == "predict":
        start = inputs["start"] if "start" in inputs else np.array(inputs["percent"]) / 100 * a.alone()
        prediction = stagger.predict(a, b, start, compat=compat)
        for field, value in expected.items():
            close(getattr(prediction, field), value)
        return
    assert vector["ask"] == "optimum"
    best = stagger.optimum(a, b, compat=compat)
    assert best is not None
    for field, value in expected.items():
        if field == "percent":
            close(100 * best.share, value)
        elif field == "sequential":
            close(stagger.sequential(a, b), value)
        else:
            close(getattr(best, field), value)


@pytest.mark.parametrize("module", ["times", "pair", "frontier"])
def test_the_examples_in_the_docstrings_are_true(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"foresee.stagger.model.{module}"))
    assert result.attempted
    assert not result.failed


def test_the_catch_up_approaches_the_end_of_the_leaders_epoch_as_the_start_approaches_the_threshold() -> None:
    a, b = pair_of_s1()
    prediction = stagger.predict(a, b, 792.792 * (1 - 1e-12))
    assert float(prediction.catch_up) == pytest.approx(1174.524)
    assert float(prediction.caught_steps) == pytest.approx(1560)


def pair_of_s1(**changes: Any) -> tuple[JobTimes, JobTimes]:
    (vector,) = [vector for vector in VECTORS if vector["id"] == "s-1"]
    a, b = (JobTimes(**vector["inputs"][role]) for role in ("leader", "follower"))
    return dataclasses.replace(a, **changes), dataclasses.replace(b, **changes)


def test_predictions_name_their_case() -> None:
    a, b = pair_of_s1()
    prediction = stagger.predict(a, b, [[0.0, 792.0], [793.0, 1174.524]])
    assert prediction.case.tolist() == [["catch", "catch"], ["cached", "serial"]]
    assert prediction.makespan.shape == (2, 2)
    slow = dataclasses.replace(b, compute=2.0)
    prediction = stagger.predict(a, slow, [0.0, 100.0, 2000.0])
    assert prediction.case.tolist() == ["never", "never", "serial"]
    assert np.isinf(prediction.catch_up).all()
    assert prediction.follower.tolist() == [slow.cached_epoch()] * 3


def test_a_follower_as_fast_as_the_leader_never_catches_up() -> None:
    a = JobTimes(compute=1.0, wait=1.0, wait_cached=0.5, steps=10)
    b = JobTimes(compute=1.5, wait=1.0, wait_cached=0.5, steps=10)
    prediction = stagger.predict(a, b, 0.0)  # neither needs to have wait_conc
    assert (prediction.case.item(), float(prediction.follower)) == ("never", 20.0)


def test_a_running_job_is_joined_later_than_now() -> None:
    a, b = pair_of_s1()
    best = stagger.optimum(a, b, now=500.0)
    assert best is not None
    assert best.start == pytest.approx(792.792)
    late = stagger.optimum(a, b, now=900.0)
    assert late is not None
    assert (late.start, late.case) == (900.0, "cached")
    assert late.makespan == pytest.approx(900 + b.cached_epoch())
    over = stagger.optimum(a, b, now=5000.0)
    assert over is not None
    assert (over.start, over.case) == (5000.0, "serial")


def test_the_two_compatibility_modes_differ_where_one_job_ends_its_epoch_first() -> None:
    a, b = pair_of_s1()
    physical, paper = (stagger.predict(a, b, 0.0, compat=compat) for compat in COMPATS)
    assert physical.leader == paper.leader
    assert physical.follower < paper.follower


def test_a_cache_of_a_share_of_the_data_limits_the_start_and_slows_later_epochs() -> None:
    a, b = pair_of_s1(epochs=3)
    half = stagger.optimum(a, b, cache=0.5)
    whole = stagger.optimum(a, b)
    assert half is not None
    assert whole is not None
    assert half.start <= 0.5 * a.cold_epoch() + 1e-9
    assert half.makespan > whole.makespan
    assert a.later_epoch(0.5) == pytest.approx((a.cold_epoch() + a.cached_epoch()) / 2)
    prediction = stagger.predict(a, b, [0.5 * a.cold_epoch(), 0.51 * a.cold_epoch()], cache=0.5)
    assert prediction.within_cache.tolist() == [True, False]
    assert stagger.optimum(a, b, now=0.51 * a.cold_epoch(), cache=0.5) is None
    # The pair's optimum needs 1 - b/a of the data.
    enough = 1 - b.cached_epoch() / a.cold_epoch()
    one_epoch = (dataclasses.replace(job, epochs=1) for job in (a, b))
    feasible = stagger.optimum(*one_epoch, cache=enough * 1.001)
    assert feasible is not None
    assert feasible.makespan == pytest.approx(a.cold_epoch())


def test_a_follower_that_falls_back_beyond_the_cache_has_no_optimum() -> None:
    a, _ = pair_of_s1()
    slow = JobTimes(compute=3.0, wait=0.0, wait_cached=0.0, steps=1560)
    assert stagger.optimum(a, slow, cache=0.5) is None
    assert stagger.optimum(a, slow) is not None
    assert not stagger.predict(a, slow, 0.0, cache=0.5).within_cache


def test_unequal_batches_count_the_same_samples() -> None:
    a, b = pair_of_s1()
    halved = dataclasses.replace(
        b, steps=780, compute=2 * b.compute, wait=2 * b.wait, wait_cached=2 * b.wait_cached, wait_conc=2 * 0.7
    )
    starts = np.linspace(0, 1500, 31)
    one, other = stagger.predict(a, b, starts), stagger.predict(a, halved, starts)
    for field in ("catch_up", "caught_steps", "leader", "follower", "makespan"):
        np.testing.assert_allclose(getattr(one, field), getattr(other, field))


def test_waits_add_up_to_the_time_without_computing() -> None:
    for epochs in (1, 3):
        a, b = pair_of_s1(epochs=epochs)
        for start in (0.0, 300.0, 792.792, 900.0, 4000.0):
            for compat in COMPATS:
                prediction = stagger.predict(a, b, start, compat=compat)
                for job, run, profile in zip(
                    (a, b),
                    (prediction.leader, prediction.follower),
                    stagger.waits(a, b, start, compat=compat),
                    strict=True,
                ):
                    assert (np.diff(profile.edges) > 0).all()
                    spans = np.diff(profile.edges)
                    assert spans.sum() == pytest.approx(float(run))
                    if compat == "physical":
                        steps = (spans / (job.compute + profile.wait)).sum()
                        assert steps == pytest.approx(job.steps * job.epochs)


def test_the_wait_from_the_storage_rate_is_the_part_that_computing_does_not_hide() -> None:
    assert stagger.wait_from_storage(0.25, 0.75) == 0.5
    assert stagger.wait_from_storage(0.25, 0.75, readers=2) == 1.25
    assert stagger.wait_from_storage(1.0, 0.75) == 0.0


def test_implausible_times_are_doubted() -> None:
    a, _ = pair_of_s1()
    assert a.doubts() == ()
    odd = dataclasses.replace(a, wait_cached=1.0, wait_conc=0.1)
    first, second = odd.doubts()
    assert "wait_cached 1 s is longer than wait 0.4493 s" in first
    assert "wait_conc 0.1 s is shorter" in second


def test_missing_measurements_are_requested() -> None:
    a, b = pair_of_s1()
    with pytest.raises(NotMeasured, match="EfficientNet-B0: wait_conc is not known") as raised:
        stagger.predict(a, dataclasses.replace(b, wait_conc=None), 10.0)
    assert raised.value.field == "EfficientNet-B0: wait_conc"
    stagger.predict(a, dataclasses.replace(b, wait_conc=None), 800.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"compute": 0.0}, "ResNet-50: compute is 0.0; seconds expected, finite and above 0"),
        ({"compute": "1"}, "compute is '1'"),
        ({"compute": True}, "compute is True"),
        ({"wait": -0.1}, "wait is -0.1; seconds expected, finite and 0 or more"),
        ({"wait": math.nan}, "wait is nan"),
        ({"wait_cached": math.inf}, "wait_cached is inf"),
        ({"wait_cached": None}, "wait_cached is None"),
        ({"wait_conc": -1}, "wait_conc is -1"),
        ({"wait": 10**400}, "wait is 1000"),
        ({"steps": 0}, "steps is 0; a whole number from 1 to 2**40 expected"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"epochs": True}, "epochs is True"),
        ({"epochs": 2**41}, "epochs is 2199023255552"),
        ({"name": ""}, "name is ''"),
        ({"name": "a\nb"}, "printable"),
        ({"estimated": {"speed"}}, "estimated has 'speed'"),
    ],
)
def test_each_invalid_time_is_named(changes: dict[str, Any], expected: str) -> None:
    a, _ = pair_of_s1()
    with pytest.raises(ConfigError) as raised:
        dataclasses.replace(a, **changes)
    assert expected in str(raised.value)


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        JobTimes(compute=0, wait=-1, wait_cached=-1, steps=0)
    assert len(raised.value.faults) == 4


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda a, b: stagger.predict(a, b, -1.0), "start is -1.0"),
        (lambda a, b: stagger.predict(a, b, [0.0, math.nan]), "start is nan"),
        (lambda a, b: stagger.predict(a, b, "soon"), "start is 'soon'"),
        (lambda a, b: stagger.predict(a, b, 0.0, compat="other"), "compat is 'other'"),
        (lambda a, b: stagger.predict(a, b, 0.0, cache=0.0), "cache is 0.0"),
        (lambda a, b: stagger.predict(a, b, 0.0, cache=1.1), "cache is 1.1"),
        (lambda a, b: stagger.optimum(a, b, now=-5.0), "now is -5.0"),
        (lambda a, b: stagger.optimum(a, b, now=math.inf), "now is inf"),
        (lambda a, b: stagger.sequential(a, b, cache=math.nan), "cache is nan"),
        (lambda a, b: stagger.plan([], 750.0), "jobs is empty"),
        (lambda a, b: stagger.plan([a], 0.0), "read is 0.0"),
        (lambda a, b: stagger.plan([a, b], arrivals=[0.0]), "1 arrivals for 2 jobs"),
        (lambda a, b: stagger.plan([a, b], arrivals=[0.0, -1.0]), "arrivals[1] is -1.0"),
        (lambda a, b: stagger.plan([a], 750.0, cache=2), "cache is 2"),
        (lambda a, b: stagger.wait_from_storage(0.0, 1.0), "compute is 0.0"),
        (lambda a, b: stagger.wait_from_storage(1.0, math.nan), "read is nan"),
        (lambda a, b: stagger.wait_from_storage(1.0, 1.0, readers=0), "readers is 0"),
    ],
)
def test_each_invalid_argument_is_named(call: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        call(*pair_of_s1())
    assert expected in str(raised.value)


@pytest.mark.parametrize("slack", [-0.1, 1.0, math.nan, True, "0.1"])
def test_slack_is_a_share(slack: float) -> None:
    job = JobTimes(compute=0.25, wait=0.5, wait_cached=0.0, wait_conc=0.5, steps=10)
    with pytest.raises(ConfigError, match=r"slack is .*; a share of the makespan expected"):
        stagger.optimum(job, job, slack=slack)


def test_a_leader_index_out_of_range_is_refused() -> None:
    job = JobTimes(compute=0.25, wait=0.5, wait_cached=0.0, steps=10)
    with pytest.raises(ConfigError, match="leader is 2; the place of one of 2 jobs expected"):
        stagger.led_by(2, [job, job], [0.0, 0.0])
    with pytest.raises(ConfigError, match=r"earliest\[1\] is -1.0; seconds expected"):
        stagger.led_by(0, [job, job], [0.0, -1.0])


def test_a_job_slower_than_the_origin_leads_where_that_costs_no_time() -> None:
    fast = JobTimes(compute=0.25, wait=0.5, wait_cached=0.0, steps=1000)
    slow = JobTimes(compute=2.0, wait=0.0, wait_cached=0.0, steps=1000)
    plan = stagger.plan([fast, slow], 750.0)
    assert (plan.leader, plan.starts, plan.makespan, plan.gpu_seconds) == (1, (1750.0, 0.0), 2000.0, 2250.0)


def test_a_cache_too_small_to_stay_behind_is_reported() -> None:
    a, b = pair_of_s1()
    enough = 1 - b.cached_epoch() / a.cold_epoch()
    assert all(stagger.plan([a, b], cache=enough * 1.001).within_cache)
    assert not all(stagger.plan([a, b], cache=enough * 0.7).within_cache)
    assert all(stagger.plan([a, b], a.cold_epoch(), cache=enough * 0.7).within_cache)


def test_a_cache_too_small_for_a_slow_follower_is_reported() -> None:
    fast = JobTimes(compute=0.5, wait=0.25, wait_cached=0.0, steps=1000)
    slow = JobTimes(compute=3.0, wait=0.0, wait_cached=0.0, steps=1000)
    assert stagger.plan([fast, slow], 750.0).within_cache == (True, True)
    assert stagger.plan([fast, slow], 750.0, cache=0.5).within_cache == (True, False)
