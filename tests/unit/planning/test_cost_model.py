# SPDX-License-Identifier: Apache-2.0
"""The cost model: published and hand-made examples, laws, and refused arguments."""

from __future__ import annotations

import doctest
import importlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.house import ROOT
from support.properties import properties

from foresee import _native
from foresee.errors import ConfigError, NotMeasured
from foresee.planning import cost, window
from foresee.planning.cost import Bill, Rates, Workload

VECTORS = json.loads((ROOT / "testdata" / "models" / "cost.json").read_text())
RATES = Rates(machine=0.546, disk=0.04, bucket=0.02, lists=0.05, gets=0.004)


def work(**changes: object) -> Workload:
    """A workload like the paper's, with changes."""
    given_ = {"machines": 3, "samples": 42000, "epochs": 2, "data_bytes": 0.27e9, "root_bytes": 16e9}
    return Workload(**{**given_, "compute_time": 100.0, "wait_time": 200.0, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("module", ["foresee.planning.cost", "foresee.planning.window"])
def test_the_examples_in_the_docstrings_are_true(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_every_vector_has_its_expected_answer(vector: dict) -> None:
    requested, expected = vector["inputs"], vector["expected"]
    tolerance = {"rel" if key == "relative" else "abs": value for key, value in vector["tolerance"].items()}
    if requested["kind"] == "miss_rate":
        share = math.inf if requested["share"] is None else requested["share"]
        result = {"miss_rate": window.miss_rate(requested["ranks"], share)}
    else:
        run = Workload(
            machines=requested["machines"],
            samples=requested["samples"],
            epochs=requested["epochs"],
            data_bytes=requested["data_GB"] * 1e9,
            root_bytes=requested["root_GB"] * 1e9,
            compute_time=0.0,
            wait_time=requested["seconds"],
            page=requested["page"],
        )
        options = {"compat": requested["compat"], "period": requested["period"]}
        if requested["kind"] == "disk":
            bill = cost.disk(run, Rates(**requested["rates"]), **options)
        else:
            lists = -(-run.samples // run.page) if requested.get("listed_once") else None
            bill = cost.bucket(
                run,
                Rates(**requested["rates"]),
                cached=requested["cached"],
                fetch=requested["fetch"],
                lists=lists,
                **options,
            )
        result = {name: getattr(bill, name) for name in expected}
    for name, value in expected.items():
        assert result[name] == pytest.approx(value, **tolerance), name


def test_the_default_period_is_the_run_and_in_the_paper_a_month() -> None:
    assert (
        cost.disk(work(), RATES, compat="paper").storage == cost.disk(work(), RATES, period="month").storage
    )
    run = cost.disk(work(), RATES)
    assert run.storage == pytest.approx(cost.disk(work(), RATES, period="month").storage * 300 / 3600 / 730)


def test_misses_are_paid_except_in_the_paper() -> None:
    assert cost.bucket(work(), RATES, misses=7).gets == 84_007
    assert cost.bucket(work(), RATES, misses=7, compat="paper").gets == 84_000


def test_given_counts_replace_formulas() -> None:
    bill = cost.bucket(work(), RATES, lists=42, gets=1000, misses=5)
    assert (bill.lists, bill.gets) == (42, 1005)
    assert bill.requests == pytest.approx((42 * 0.05 + 1005 * 0.004) / 1e4)


def test_a_cache_in_memory_takes_no_disk() -> None:
    on_disk = cost.bucket(work(), RATES, cached=42000)
    in_ram = cost.bucket(work(), RATES, cached=42000, cache_in="ram")
    assert on_disk.storage > in_ram.storage == cost.bucket(work(), RATES).storage
    assert on_disk.machines == in_ram.machines


def test_egress_is_paid_by_tier() -> None:
    tariff = ((1e8, 10.0), (math.inf, 1.0))
    bill = cost.bucket(work(), RATES, egress=tariff)
    assert bill.egress == pytest.approx(0.1 * 10 + 0.44 * 1)
    assert bill.total == pytest.approx(bill.storage + bill.machines + bill.requests + bill.egress)
    with pytest.raises(NotMeasured, match="egress beyond"):
        cost.bucket(work(), RATES, egress=((1e8, 10.0),))


def test_given_bytes_replace_the_mean_size() -> None:
    bill = cost.bucket(work(), RATES, gets=10, misses=5, read_bytes=3e9, egress=((math.inf, 0.5),))
    assert (bill.gets, bill.read_bytes, bill.egress) == (15, 3e9, 1.5)
    assert cost.bucket(work(), RATES, gets=10).read_bytes == pytest.approx(10 * 0.27e9 / 42000)


def test_an_empty_disk_needs_no_price() -> None:
    rates = Rates(machine=1.0, bucket=1.0, lists=1.0, gets=1.0)
    assert cost.bucket(work(root_bytes=0), rates, cached=42000, cache_in="ram").total > 0
    for held in (work(), work(root_bytes=0)):
        with pytest.raises(NotMeasured, match="the price disk is not known"):
            cost.bucket(held, rates, cached=1)


def test_runs_of_a_month_share_the_tiers_of_egress() -> None:
    tariff = ((15e12, 0.1), (math.inf, 0.01))
    bill = Bill(storage=7.0, machines=2.0, requests=1.0, egress=1000.0, lists=0, gets=1, read_bytes=10e12)
    # 15 TB of three runs' 30 leave at the first price, the rest at the second.
    assert cost.runs_cost(bill, 3, tariff) == pytest.approx(7 + 3 * 3 + 1500 + 150)
    assert cost.runs_cost(bill, 3) == 16.0
    with pytest.raises(NotMeasured, match="egress beyond"):
        cost.runs_cost(bill, 2, ((15e12, 0.1),))


def test_two_ranks_of_a_machine_list_and_fetch_each_for_itself() -> None:
    one = cost.bucket(work(), RATES, fetch=1000)
    two = cost.bucket(work(ranks=6), RATES, fetch=1000)
    assert (one.lists, two.lists) == (2 * 3 * 42 * 14, 2 * 6 * 42 * 7)
    assert two.machines == one.machines


@pytest.mark.parametrize("name", ["machine", "disk", "bucket", "lists", "gets"])
def test_an_unknown_price_is_named(name: str) -> None:
    rates = Rates(**{key: 1.0 for key in ("machine", "disk", "bucket", "lists", "gets") if key != name})
    with pytest.raises(NotMeasured, match=f"the price {name} is not known") as caught:
        cost.bucket(work(), rates)
    assert caught.value.field == f"the price {name}"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"machines": 0}, "machines = 0"),
        ({"samples": 0}, "samples = 0"),
        ({"epochs": 0}, "epochs = 0"),
        ({"page": 0}, "page = 0"),
        ({"ranks": 0}, "ranks = 0"),
        ({"data_bytes": 0}, "data_bytes = 0"),
        ({"data_bytes": math.nan}, "data_bytes = nan"),
        ({"root_bytes": -1}, "root_bytes = -1"),
        ({"compute_time": -1}, "compute_time = -1"),
        ({"wait_time": math.inf}, "wait_time = inf"),
    ],
)
def test_a_workload_outside_its_range_is_refused(changes: dict, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        work(**changes)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"cached": -1}, "cached = -1"),
        ({"cached": 42001}, "at most all 42000 samples"),
        ({"cached": True}, "cached = True"),
        ({"fetch": 0}, "fetch = 0; a whole number of 1 or more"),
        ({"misses": -1}, "misses = -1"),
        ({"lists": -1}, "lists = -1"),
        ({"gets": -1}, "gets = -1"),
        ({"read_bytes": -1}, "read_bytes = -1"),
        ({"read_bytes": math.inf}, "read_bytes = inf"),
        ({"cache_in": "tape"}, "cache_in = 'tape'"),
        ({"period": "year"}, "period = 'year'"),
        ({"compat": "print"}, "compat = 'print'"),
    ],
)
def test_an_argument_outside_its_range_is_refused(arguments: dict, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        cost.bucket(work(), RATES, **arguments)


def test_negative_prices_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Rates(machine=-1, disk=math.nan)
    assert len(caught.value.faults) == 2


amounts = st.floats(0, 1e6)
counts = st.integers(1, 10**6)


@given(counts, counts, counts, counts, st.integers(1, 10**9), amounts, amounts, st.integers(0, 10**6))
@properties()
def test_bills_are_never_negative_and_grow_with_the_workload(
    machines: int,
    samples: int,
    fetch: int,
    epochs: int,
    size: int,
    computing: float,
    waiting: float,
    misses: int,
) -> None:
    run = work(
        machines=machines,
        samples=samples,
        epochs=epochs,
        data_bytes=size,
        compute_time=computing,
        wait_time=waiting,
    )
    bills: list[Bill] = [
        cost.disk(run, RATES),
        cost.bucket(run, RATES),
        cost.bucket(run, RATES, fetch=fetch),
        cost.bucket(run, RATES, fetch=fetch, misses=misses),
        cost.bucket(run, RATES, fetch=fetch, compat="paper"),
    ]
    for bill in bills:
        assert min(bill.storage, bill.machines, bill.requests, bill.egress) >= 0
        assert bill.total == bill.storage + bill.machines + bill.requests + bill.egress
    assert bills[1].lists <= bills[2].lists <= bills[4].lists
    assert bills[2].requests <= bills[3].requests


@given(amounts, amounts, amounts, amounts, st.floats(1e-3, 1e3))
@properties()
def test_break_even_is_where_both_cost_the_same(a: float, b: float, c: float, d: float, scale: float) -> None:
    point = cost.break_even(lambda x: a + b * x, lambda x: c + d * x, scale=scale)
    if point is not None:
        assert point >= 0
        slope, start = abs(b - d), abs(a - c)
        # Rounding decides where two lines meet that nearly coincide or are nearly flat.
        result = slope * scale > 1e-9 * max(a, c)
        if result and slope > 1e-3 * max(b, d) and start > 1e-3 * max(a, c):
            assert a + b * point == pytest.approx(c + d * point, rel=1e-3)


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.1, 5)), min_size=1, max_size=4),
    st.floats(0.5, 20),
    st.floats(0, 6),
)
@properties()
def test_break_even_of_bent_lines_is_the_first_point_at_which_they_meet(
    tiers: list[tuple[float, float]], start: float, slope: float
) -> None:
    tariff, to = [], 0.0
    for width, price in tiers:
        to += width
        tariff.append((to, price * 1e9))

    def left(x: float) -> float:
        return cost.egress_cost(x, tuple(tariff))

    point = cost.break_even(left, lambda x: start + slope * x, bends=[end for end, _ in tariff], end=to)
    before = [end for end, _ in tariff if point is None or end < point]
    # Egress begins below the other line and does not reach it at any bend before they meet.
    assert all(left(end) <= (start + slope * end) * (1 + 1e-9) for end in before)
    if point is not None:
        assert left(point) == pytest.approx(start + slope * point)


def test_break_even_evaluates_nothing_beyond_the_end() -> None:
    def known(x: float) -> float:
        assert x <= 4.0
        return 2 * x

    assert cost.break_even(known, lambda x: 7.0 + 0 * x, bends=(1.0, 4.0, 9.0), end=4.0) == 3.5
    assert cost.break_even(known, lambda x: 9.0 + 0 * x, end=4.0) is None


def test_lines_that_never_meet_have_no_point() -> None:
    assert cost.break_even(lambda x: x, lambda x: x + 1) is None
    assert cost.break_even(lambda x: 2 + x, lambda x: 1 + 0 * x) is None


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75, 1.0, 1.2, 1.5, 2.5])
def test_the_miss_rate_is_the_limit_of_a_counted_order(ranks: int, share: float) -> None:
    part = 12_000
    orders = [_native.order_distributed(part * ranks, ranks, 0, seed=5, epoch=epoch) for epoch in range(2)]
    first, second = window.misses(orders, int(share * part))
    assert first == part
    assert second / part == pytest.approx(window.miss_rate(ranks, share), abs=0.02)


@given(st.integers(1, 64), st.floats(0, 4), st.floats(0, 4))
@properties()
def test_a_larger_cache_misses_no_more(ranks: int, one: float, other: float) -> None:
    small, large = sorted((one, other))
    rates = window.miss_rate(ranks, small), window.miss_rate(ranks, large)
    assert -1e-9 <= rates[1] <= rates[0] + 1e-9 <= 1 + 2e-9


@given(st.lists(st.permutations(range(8)), min_size=1, max_size=4), st.integers(0, 9))
@properties()
def test_misses_are_evicted_or_new_samples(orders: list[list[int]], capacity: int) -> None:
    counts = window.misses(orders, capacity)
    held: list[int] = []
    for ids, count in zip(orders, counts, strict=True):
        missed = 0
        for sample in ids:
            if sample not in held:
                missed += 1
                held.append(sample)
                held = held[-capacity:] if capacity else []
        assert missed == count


@pytest.mark.parametrize(("ranks", "share"), [(0, 1.0), (True, 1.0), (3, -0.1), (3, math.nan)])
def test_invalid_arguments_of_the_miss_rate_are_refused(ranks: int, share: float) -> None:
    with pytest.raises(ConfigError, match="expected"):
        window.miss_rate(ranks, share)


def test_a_negative_capacity_is_refused() -> None:
    with pytest.raises(ConfigError, match="capacity = -1"):
        window.misses([[0]], -1)
