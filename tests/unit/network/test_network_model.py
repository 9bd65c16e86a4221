# SPDX-License-Identifier: Apache-2.0
"""The model of a step whose gradients cross a network: golden steps, arrays, laws, refused arguments."""

from __future__ import annotations

import doctest
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.house import ROOT
from support.properties import properties

from foresee import network
from foresee.errors import ConfigError

GOLDEN = sorted((ROOT / "testdata" / "network").glob("*.txt"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_golden_step_has_its_expected_results(path: Path) -> None:
    layers: list[list[Fraction]] = []
    bandwidth = 1.0
    checked = 0
    for question, answers in query_lines(path.read_text()):
        word, *rest = question.split()
        if word == "layer":
            layers.append([Fraction(figure) for figure in rest])
            continue
        if word == "bandwidth":
            bandwidth = float(Fraction(rest[0]))
            continue
        checked += 1
        assert len(answers) == (4 if word == "follow" else 1), question
        if word in {"servers", "dedicated"}:
            ranks, servers = map(int, rest)
            actual = network.shares(ranks, servers, dedicated_only=word == "dedicated")
            close(actual, answers[0].split())
            assert network.effective_bandwidth(8.0, ranks, servers, dedicated_only=word == "dedicated") == (
                8.0 * actual.of_link
            )
            continue
        step = golden_step(layers)
        policy, _, compat = (rest[0] if rest else "oracle").partition(":")
        given_compat = {"compat": compat} if compat else {}
        if word == "need":
            need = network.minimum_bandwidth(step, policy, goal=float(rest[1]), **given_compat)
            if answers == ["infeasible"]:
                assert need == network.Infeasible(float(rest[1]))
            else:
                close([need], answers)
        elif word == "cost":
            close([network.barrier_cost(step, bandwidth)], answers)
        elif word == "time":
            close([network.t_iter(step, policy, bandwidth, **given_compat)], answers)
            close([network.timeline(step, policy, bandwidth, **given_compat).t_iter], answers)
        elif word == "backward":
            close(network.timeline(step, "oracle", bandwidth).backward, answers[0].split())
        else:
            assert word == "follow", question
            followed = network.timeline(step, policy, bandwidth, **given_compat)
            for name, line in zip(("push", "pull", "forward"), answers, strict=False):
                assert line.split()[0] == name
                close(getattr(followed, name), line.split()[1:])
            carried = [re.split(r"[:-]", transfer) for transfer in answers[3].split()[1:]]
            assert followed.uplink.layer.tolist() == [int(layer) for layer, _, _ in carried]
            close(followed.uplink.start, [start for _, start, _ in carried])
            close(followed.uplink.end, [end for _, _, end in carried])
    assert checked >= 10


def query_lines(text: str) -> list[tuple[str, list[str]]]:
    """Return each query line with its results."""
    queries: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("> "):
            queries[-1][1].append(line[2:])
        elif line and not line.startswith("#"):
            queries.append((line, []))
    return queries


def golden_step(layers: list[list[Fraction]]) -> network.Step:
    columns = list(zip(*layers, strict=True))
    backward, forward, update = ([float(figure) for figure in column] for column in columns[1:])
    return network.Step([int(size) for size in columns[0]], backward=backward, forward=forward, update=update)


def close(actual, expected) -> None:
    np.testing.assert_allclose(list(actual), [float(Fraction(word)) for word in expected], rtol=1e-9)


@pytest.mark.parametrize("module", ["foresee.network.model", "foresee.network.trace"])
def test_the_examples_in_the_docstrings_are_true(module: str) -> None:
    import importlib

    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted >= 3
    assert not result.failed


A = network.Step([1, 4, 3], backward=[2, 2, 2], forward=[1, 1, 1])


def test_results_have_the_documented_types_and_shapes() -> None:
    assert type(network.t_iter(A, "mercury", 1.0)) is float
    assert type(network.speed(A, "mercury", 1.0)) is float
    assert type(network.minimum_bandwidth(A, "mercury")) is float
    assert (type(A.oracle), type(A.total_bytes), len(A)) == (float, int, 3)
    swept = network.sweep(A, np.array([1, 2], np.int64), policies=["oracle", "barrier"])
    assert (swept.t_iter.shape, swept.t_iter.dtype) == ((2, 2), np.float64)
    assert swept.policies == ("oracle", "barrier")
    np.testing.assert_array_equal(swept.of("barrier"), swept.speed[1])
    np.testing.assert_allclose(swept.t_iter * swept.speed, A.oracle)
    followed = network.timeline(A, "fifo_tensor", 1.0)
    for name in ("backward", "push", "pull", "forward"):
        array = getattr(followed, name)
        assert (array.shape, array.dtype) == ((3,), np.float64)
    assert followed.uplink.layer.dtype == np.uint64
    assert network.sweep(A, []).t_iter.shape == (5, 0)


def test_a_step_keeps_read_only_copies() -> None:
    sizes = np.array([1, 4, 3], np.int32)
    step = network.Step(sizes, backward=np.full(6, 2.0)[::2], forward=(1, 1, 1), names=["a", "b", "c"])
    sizes[0] = 99
    assert network.t_iter(step, "mercury", 1.0) == 11.0
    assert (step.names, A.names) == (("a", "b", "c"), ("0", "1", "2"))
    with pytest.raises(ValueError, match="read-only"):
        step.bytes[0] = 3
    with pytest.raises(AttributeError):
        step.bytes = sizes  # type: ignore[misc]


def test_efficiency_is_a_factor_on_the_bandwidth() -> None:
    for policy in network.POLICIES:
        assert network.t_iter(A, policy, 4.0, efficiency=0.25) == network.t_iter(A, policy, 1.0)
    need = network.minimum_bandwidth(A, "mercury", efficiency=0.25)
    assert need == 4 * network.minimum_bandwidth(A, "mercury")
    assert network.barrier_cost(A, 4.0, efficiency=0.25) == 2.0


def test_shares_of_ranks_and_dedicated_servers_follow_the_formula() -> None:
    assert network.shares(4) == network.Shares(2 / 3, 0.25, 0.0)
    assert network.shares(8, 8) == network.Shares(1.0, 0.0, 0.125)
    assert network.effective_bandwidth(100.0, 8, 4, efficiency=0.5) == pytest.approx(50 * 11 / 14)


def seconds() -> st.SearchStrategy[float]:
    return st.one_of(st.just(0.0), st.floats(1e-6, 1.0))


@st.composite
def steps(draw: st.DrawFn) -> network.Step:
    count = draw(st.integers(1, 12))
    sizes = draw(st.lists(st.integers(0, 10**9), min_size=count, max_size=count))
    backward, forward, update = (draw(st.lists(seconds(), min_size=count, max_size=count)) for _ in range(3))
    backward[0] += 1e-3  # some time in all
    return network.Step(sizes, backward=backward, forward=forward, update=update)


@properties()
@given(steps(), st.floats(1e6, 1e11))
def test_timeline_and_closed_form_agree_and_policies_keep_their_order(
    step: network.Step, bandwidth: float
) -> None:
    times = network.sweep(step, [bandwidth]).t_iter[:, 0]
    paper = network.t_iter(step, "fifo_tensor", bandwidth, compat="paper")
    for policy, time in zip(network.POLICIES, times, strict=True):
        assert network.timeline(step, policy, bandwidth).t_iter == pytest.approx(time, rel=1e-9)
    assert (times[:-1] <= times[1:] * (1 + 1e-12)).all()
    assert times[3] <= paper * (1 + 1e-12)
    assert paper <= times[4] * (1 + 1e-12)


@properties()
@given(steps(), st.floats(0.1, 0.999), st.sampled_from(network.POLICIES[1:]))
def test_the_minimum_bandwidth_just_reaches_the_goal(step: network.Step, goal: float, policy) -> None:
    need = network.minimum_bandwidth(step, policy, goal=goal)
    assert isinstance(need, float)
    if step.total_bytes == 0:
        assert need == 0
    else:
        assert network.speed(step, policy, need) == pytest.approx(goal, rel=1e-9)


def test_no_bandwidth_keeps_the_whole_speed() -> None:
    assert network.minimum_bandwidth(A, "mercury", goal=1.0) == network.Infeasible(goal=1.0, best=1.0)
    free = network.Step([0, 5], backward=[1, 1], forward=[1, 1])
    assert network.minimum_bandwidth(free, "mercury", goal=1.0) == 2.5
    assert network.minimum_bandwidth(free, "mercury", goal=1.1) == network.Infeasible(1.1)
    assert network.minimum_bandwidth(A, "oracle", goal=1.0) == 0.0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"bytes": []}, "list of layers has no entries"),
        ({"bytes": [-1, 2, 3]}, "bytes=[-1, 2, 3]; whole numbers"),
        ({"bytes": [1.5, 2, 3]}, "whole numbers"),
        ({"bytes": [[1, 2, 3]]}, "shape (layers,)"),
        ({"bytes": ["a", "b", "c"]}, "whole numbers"),
        ({"bytes": [1, 2]}, "backward has shape (3,), bytes (2,)"),
        ({"bytes": [2**52, 1, 1]}, "bytes of all layers"),
        ({"forward": [1, 1, np.nan]}, "layer 2: forward is NaN"),
        ({"backward": [1, -2, 1]}, "layer 1: backward is -2"),
        ({"update": [np.inf, 0, 0]}, "layer 0: update is inf"),
        ({"update": "soon"}, 'update="soon"; numbers'),
        ({"forward": [1]}, "forward has shape (1,)"),
        ({"names": ["a"]}, "1 names for 3 layers"),
        ({"backward": [0, 0, 0], "forward": [0, 0, 0]}, "time of all layers is 0"),
    ],
)
def test_an_invalid_step_is_refused(arguments: dict[str, object], expected: str) -> None:
    usual: dict[str, object] = {"bytes": [1, 4, 3], "backward": [2, 2, 2], "forward": [1, 1, 1]}
    if arguments.get("bytes") == []:
        usual = {"backward": [], "forward": []}
    with pytest.raises(ConfigError) as raised:
        network.Step(**(usual | arguments))  # type: ignore[arg-type]
    assert expected in str(raised.value)


def test_all_faults_of_shape_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        network.Step([1.5], backward="x", forward=[[1]])
    assert len(raised.value.faults) == 3


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: network.t_iter(A, "wfbp", 1.0), 'policy="wfbp"; one of oracle, mercury'),
        (lambda: network.t_iter(A, "mercury", 0.0), "bandwidth is 0"),
        (lambda: network.t_iter(A, "mercury", 1e-320), "finite time"),
        (lambda: network.t_iter(A, "mercury", 1.0, compat="strict"), 'compat="strict"; physical or paper'),
        (lambda: network.timeline(A, "mercury", float("nan")), "bandwidth is NaN"),
        (lambda: network.timeline(A, "mercury", 1.0, efficiency=1.5), "efficiency is 1.5"),
        (lambda: network.minimum_bandwidth(A, "mercury", goal=0.0), "goal is 0"),
        (lambda: network.minimum_bandwidth(A, "mercury", goal=-1.0), "goal is -1"),
        (lambda: network.sweep(A, [[1.0]]), "bandwidths=[[1.0]]"),
        (lambda: network.sweep(A, [1.0, -1.0]), "bandwidth is -1"),
        (lambda: network.shares(1), "ranks is 1; it must be 2 or more"),
        (lambda: network.shares(-3), "ranks=-3"),
        (lambda: network.shares(2.0), "ranks=2.0"),
        (lambda: network.shares(2, 2**32), "servers=4294967296"),
        (lambda: network.shares(4, 0, dedicated_only=True), "dedicated servers is 0"),
        (lambda: network.effective_bandwidth(-1.0, 4, efficiency=2.0), "efficiency=2.0"),
        (lambda: network.linear_scaling(A, ranks=0, batch=1), "ranks=0"),
        (lambda: network.goodput(0), "packet is 0"),
        (lambda: network.packet_delay(window_bytes=-1, packet_bytes=1, bandwidth=1.0), "window_bytes=-1"),
        (lambda: network.packet_delay(window_bytes=0, packet_bytes=0, bandwidth=1.0), "packet is 0"),
    ],
)
def test_arguments_outside_their_range_are_refused_by_name(call, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        call()
    assert expected in str(raised.value)
    assert isinstance(raised.value, ValueError)
