# SPDX-License-Identifier: Apache-2.0
"""The report of the demo: when two trainings are equal, and how unknown counts are shown."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from support.house import ROOT

FILE = ROOT / "examples" / "demo" / "report.py"


@pytest.fixture(scope="module")
def report() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("demo_report", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def rank(number: int, *, counted: bool, own: bool) -> dict[str, Any]:
    """Two epochs of two steps; the origin counted 10 requests in each, the loader 4 and then 3."""

    def epoch(at: int) -> dict[str, Any]:
        read = {"ok": {"count": (4, 7)[at], "bytes": (400, 700)[at]}, "failed": None}
        return {
            "seconds": 2.0 + number,
            "waited_s": 1.0 - number / 2,
            "losses": [(0.5 + number).hex(), (0.1 * (at + 1)).hex()],
            "stats": {"operations": {"origin": {"read": read}}} if own else None,
            "origin": {"requests": 10, "listings": 0, "bytes": 1000} if counted and number == 0 else None,
        }

    return {
        "rank": number,
        "samples": 8,
        "classes": ["ant", "bee"],
        "listing": {"seconds": 0.1, "origin": None},
        "epochs": [epoch(0), epoch(1)],
        "weights_sha256": "ab",
        "without_io": {"seconds": 1.0, "waited_s": 0.0},
    }


def pair(*, counted: bool = True) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return (
        [rank(0, counted=counted, own=False), rank(1, counted=counted, own=False)],
        [rank(0, counted=counted, own=True), rank(1, counted=counted, own=True)],
    )


def test_equal_losses_and_weights_are_identical(report: ModuleType) -> None:
    result = report.compare(*pair())
    assert result["identical"] is True
    assert result["first_difference"] is None
    assert "identical bit for bit, 4 steps on each of 2 ranks" in report.table(
        result, origin="here", fastest_s=1.0
    )


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        (
            ("epochs", 1, "losses", 0),
            (1.5 + 2**-52).hex(),
            "rank 1, step 2: loss 1.5 with torch, 1.5000000000000002",
        ),
        (("epochs", 1, "losses"), [(1.5).hex()], "rank 1, step 3: loss 0.2 with torch, missing with Foresee"),
        (("weights_sha256",), "cd", "rank 1: the weights at the end"),
        (("samples",), 9, "rank 1: samples 8 with torch, 9 with Foresee"),
    ],
)
def test_the_first_difference_is_named(
    report: ModuleType, place: tuple[Any, ...], value: object, expected: str
) -> None:
    stock, ours = pair()
    target: Any = ours[1]
    for name in place[:-1]:
        target = target[name]
    target[place[-1]] = value
    result = report.compare(stock, ours)
    assert result["identical"] is False
    assert expected in result["first_difference"]
    assert "DIFFERENT. rank 1" in report.verdict(result)


def test_a_missing_rank_is_a_difference(report: ModuleType) -> None:
    stock, ours = pair()
    assert report.first_difference(stock, copy.copy(ours)[:1]) == "2 ranks with torch, 1 with Foresee"


def test_times_are_those_of_the_slowest_rank_and_counts_of_the_origin_take_precedence(
    report: ModuleType,
) -> None:
    loaders = report.compare(*pair())["loaders"]
    for name in ("torch", "foresee"):
        first = loaders[name]["epochs"][0]
        assert (first["seconds"], first["waited_s"]) == (3.0, 1.0)
        assert (first["requests"], first["bytes"], first["counted_by"]) == (10, 1000, "origin")


def test_without_counts_of_the_origin_only_those_of_the_loader_are_shown(report: ModuleType) -> None:
    result = report.compare(*pair(counted=False))
    stock, ours = (result["loaders"][name]["epochs"] for name in ("torch", "foresee"))
    assert [epoch["requests"] for epoch in stock] == [None, None]
    assert [(epoch["requests"], epoch["bytes"]) for epoch in ours] == [(8, 800), (6, 600)]
    table = report.table(result, origin="s3://bucket", fastest_s=None)
    assert [line.count(report.NOT_MEASURED) for line in table.splitlines()[1:5]] == [2, 2, 2, 0]
    assert "one pass" not in table


def test_the_live_line_shows_the_causes_of_waits_in_this_epoch(report: ModuleType) -> None:
    def stats(**seconds: float | None) -> dict[str, Any]:
        return {
            "waits": {cause: None if each is None else {"seconds": each} for cause, each in seconds.items()}
        }

    before = stats(transform=1.0, origin_read=None)
    assert (
        report.causes(before, stats(transform=1.5, origin_read=4.0, copy=0.2))
        == " (origin_read 4.0, transform 0.5)"
    )
    assert report.causes(before, stats(transform=1.01, origin_read=None)) == ""
    assert report.causes(None, stats(transform=1.01)) == " (transform 1.0)"
    assert report.causes(None, None) == ""
