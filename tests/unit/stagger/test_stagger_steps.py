# SPDX-License-Identifier: Apache-2.0
"""Jobs simulated step by step in the native core: against the closed forms, and in cases that these do not cover."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.house import ROOT
from support.properties import properties

from foresee import _native, stagger
from foresee.errors import ConfigError, NotMeasured
from foresee.stagger.model import JobTimes

VECTORS = json.loads((ROOT / "testdata" / "models" / "stagger.json").read_text())["cases"]


def pair_of_s1(**changes: Any) -> tuple[JobTimes, JobTimes]:
    (vector,) = [vector for vector in VECTORS if vector["id"] == "s-1"]
    a, b = (JobTimes(**vector["inputs"][role]) for role in ("leader", "follower"))
    return dataclasses.replace(a, **changes), dataclasses.replace(b, **changes)


def test_the_examples_in_the_docstrings_are_true() -> None:
    result = doctest.testmod(importlib.import_module("foresee.stagger.model.steps"))
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize("compat", ["physical", "paper"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_simulations_match_the_closed_forms_within_some_steps(compat: stagger.Compat, epochs: int) -> None:
    a, b = pair_of_s1(epochs=epochs)
    starts = np.linspace(0, 1.2 * a.cold_epoch(), 25)
    prediction = stagger.predict(a, b, starts, compat=compat)
    for i, start in enumerate(starts.tolist()):
        simulated = stagger.simulate([a, b], [0.0, start], compat=compat)
        for run, expected in zip(simulated.runs, (prediction.leader[i], prediction.follower[i]), strict=True):
            assert run.end - run.start == pytest.approx(expected, abs=4 * 0.91)
        assert simulated.makespan == pytest.approx(prediction.makespan[i], abs=4 * 0.91)
        assert simulated.gpu_seconds == pytest.approx(prediction.gpu_seconds[i], abs=8 * 0.91)
        caught = simulated.runs[1].caught
        if prediction.case[i] == "catch":
            assert caught == pytest.approx(prediction.catch_up[i], abs=4 * 0.91)
        elif start > 792.792 + 1:
            assert caught is None


def test_the_parts_of_a_run_add_up() -> None:
    a, b = pair_of_s1(epochs=2)
    for run in stagger.simulate([a, b], [5.0, 300.0], cache=0.7).runs:
        assert sum(run.steps.values()) == 2 * 1560
        assert run.start + sum(run.seconds.values()) + run.held == pytest.approx(run.end)
        assert run.hits + run.reads == pytest.approx(2)
        assert run.start < run.first_epoch < run.end
        assert set(run.steps) == set(run.seconds) == set(stagger.STATES)


def test_a_follower_beyond_the_reach_of_the_cache_reads_from_storage() -> None:
    a, b = pair_of_s1()
    start = 0.6 * a.cold_epoch()
    assert not stagger.predict(a, b, start, cache=0.5).within_cache
    beyond = stagger.simulate([a, b], [0.0, start], cache=0.5)
    within = stagger.simulate([a, b], [0.0, start])
    assert beyond.runs[1].reads > 0.4
    assert within.runs[1].reads < beyond.runs[1].reads
    assert beyond.makespan > within.makespan


def test_a_held_follower_does_not_slow_the_leader() -> None:
    a, b = pair_of_s1()
    held = stagger.simulate([a, b], [0.0, 100.0], hold=0.01)
    assert held.runs[0].end == pytest.approx(a.alone())
    assert held.runs[1].held > 0
    assert held.runs[1].reads == 0
    assert held.makespan < stagger.simulate([a, b], [0.0, 100.0]).makespan


def test_batch_sizes_may_differ() -> None:
    a, b = pair_of_s1()
    double = dataclasses.replace(
        b, steps=780, compute=2 * b.compute, wait=2 * b.wait, wait_cached=0.08, wait_conc=1.4
    )
    one, other = (stagger.simulate([a, job], [0.0, 300.0]) for job in (b, double))
    assert other.makespan == pytest.approx(one.makespan, rel=0.01)
    assert sum(other.runs[1].steps.values()) == 780


milliseconds = st.integers(1, 900)


@properties(soak=100)
@given(st.lists(st.tuples(milliseconds, st.integers(1, 3)), min_size=1, max_size=5), milliseconds)
def test_simulated_plans_behind_a_coalescing_cache_match(jobs: list[tuple[int, int]], read: int) -> None:
    job_times = [
        JobTimes(compute=step / 1e3, wait=0, wait_cached=0, steps=50, epochs=epochs) for step, epochs in jobs
    ]
    plan = stagger.plan(job_times, 50 * read / 1e3)
    simulated = stagger.simulate(job_times, plan.starts, read=50 * read / 1e3)
    assert simulated.makespan == pytest.approx(plan.makespan, abs=1e-7)
    assert simulated.gpu_seconds == pytest.approx(plan.gpu_seconds, abs=1e-7)
    at_once = stagger.simulate(job_times, [0.0] * len(job_times), read=50 * read / 1e3)
    assert at_once.makespan == pytest.approx(plan.makespan, abs=1e-7)
    assert at_once.gpu_seconds == pytest.approx(plan.gpu_seconds_simultaneous, abs=1e-7)


@properties(soak=100)
@given(st.lists(st.tuples(milliseconds, milliseconds, st.integers(1, 3)), min_size=2, max_size=5))
def test_simulated_plans_without_coalescing_read_the_data_once(jobs: list[tuple[int, int, int]]) -> None:
    job_times = [
        JobTimes(compute=step / 1e3, wait=wait / 1e3, wait_cached=0, wait_conc=50.0, steps=50, epochs=epochs)
        for step, wait, epochs in jobs
    ]
    plan = stagger.plan(job_times)
    # Whole steps: a step that the leader has in flight is not cached yet.
    step = job_times[plan.leader].compute + job_times[plan.leader].wait
    starts = [start + step * (i != plan.leader) for i, start in enumerate(plan.starts)]
    simulated = stagger.simulate(job_times, starts)
    assert simulated.makespan <= plan.makespan + step + 1e-6
    assert sum(run.reads for run in simulated.runs) == 1


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda a, b: stagger.simulate([], []), "jobs is empty"),
        (lambda a, b: stagger.simulate([a, b], [0.0]), "1 starts for 2 jobs"),
        (lambda a, b: stagger.simulate([a, b], [0.0, -1.0]), "starts[1] is -1.0"),
        (lambda a, b: stagger.simulate([a, b], [math.nan, 0.0]), "starts[0] is nan"),
        (
            lambda a, b: stagger.simulate([a, b], [0.0, 1e10]),
            "starts[1] is 10000000000.0; less than 2**63 ns",
        ),
        (lambda a, b: stagger.simulate([a, b], [0, 0], read=0), "read is 0"),
        (lambda a, b: stagger.simulate([a, b], [0, 0], cache=0), "cache is 0"),
        (lambda a, b: stagger.simulate([a, b], [0, 0], hold=-0.1), "hold is -0.1"),
        (lambda a, b: stagger.simulate([a, b], [0, 0], hold=0.5, cache=0.3), "margin is 780"),
        (lambda a, b: stagger.simulate([a, b], [0, 0], compat="other"), "compat is 'other'"),
        (
            lambda a, b: stagger.simulate([a, dataclasses.replace(b, epochs=2**30)], [0, 0]),
            "at most 10**9 are played",
        ),
        (
            lambda a, b: stagger.simulate([dataclasses.replace(a, compute=1e9)], [0]),
            "the clock has room for",
        ),
        (
            lambda a, b: stagger.simulate([dataclasses.replace(a, compute=1e-10)], [0]),
            "job 0: compute is 0",
        ),
        (
            lambda a, b: stagger.simulate(
                [dataclasses.replace(a, steps=prime) for prime in (99999989, 99999971, 99999959)], [0, 0, 0]
            ),
            "no batches of whole samples",
        ),
        (lambda a, b: _native.jobs_simulate([], 1, 1, compat="other"), 'compat="other"'),
    ],
)
def test_each_invalid_argument_is_named(call: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        call(*pair_of_s1())
    assert expected in str(raised.value)


def test_missing_measurements_are_requested() -> None:
    a, b = pair_of_s1()
    bare = dataclasses.replace(b, wait_conc=None)
    with pytest.raises(NotMeasured, match="EfficientNet-B0: wait_conc"):
        stagger.simulate([a, bare], [0.0, 10.0])
    assert stagger.simulate([bare], [0.0]).makespan == pytest.approx(bare.alone())
