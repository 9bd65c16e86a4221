# SPDX-License-Identifier: Apache-2.0
"""Calibration: values from repeated measurements, results of fio, and faults of the options."""

from __future__ import annotations

import copy
import datetime as dt
import doctest
import importlib
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.properties import TEXTS, properties

from foresee.calibrate import check, fio, parts, ranks
from foresee.calibrate.sweep import REPEATS, Sweep, counts, rate, spread, sweep, time_of
from foresee.errors import ConfigError
from foresee.jobspec import Profile

NAMES = {"read": "tier.disk.read", "latency": "tier.disk.latency"}

#: The part of fio 3.33's output for a job that is read.
JOB: dict[str, Any] = {
    "jobname": "r",
    "groupid": 0,
    "job options": {"rw": "randread", "bs": "128k", "direct": "1", "ioengine": "psync", "numjobs": "1"},
    "read": {
        "bw_bytes": 1225608311,
        "total_ios": 9360,
        "lat_ns": {"mean": 106500.5, "N": 9360},
        "clat_ns": {"mean": 106443.759509, "percentile": {"50.000000": 100864}},
    },
}


@pytest.mark.parametrize(
    "module", ["foresee.calibrate.sweep", "foresee.calibrate.parts", "foresee.calibrate.plan"]
)
def test_the_examples_in_the_docstrings_are_true(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted
    assert not result.failed


def measurement(rates: dict[int, float]) -> Callable[[int, float], tuple[int, float, float]]:
    """Return a measurement with known rates by threads, in bytes per second."""
    return lambda threads, seconds: (int(rates[threads] * 100), 100.0, seconds)


def points(result: Sweep) -> list[int]:
    return [point.at for point in result.points]


def test_a_sweep_ends_where_twice_the_threads_bring_less_than_5_percent() -> None:
    seen: list[int] = []
    flat = measurement({1: 100.0, 2: 180.0, 4: 188.0, 8: 900.0})
    assert points(sweep(flat, (1, 2, 4, 8), 1.0, seen.append)) == seen == [1, 2, 4]
    steep = measurement({1: 100.0, 2: 106.0, 4: 112.0, 8: 118.0})
    result = sweep(steep, (1, 2, 4, 8), 1.0, seen.append)
    assert points(result) == [1, 2, 4, 8]
    assert not result.cut
    assert points(sweep(measurement({1: 100.0, 2: 50.0, 4: 1.0}), (1, 2, 4), 1.0, seen.append)) == [1, 2]


def test_a_sweep_that_runs_out_of_time_is_marked_as_cut() -> None:
    now = iter(range(0, 1000, 2))
    rates = measurement({count: 100.0 * count for count in (1, 2, 4, 8)})
    result = sweep(rates, (1, 2, 4, 8), 1.0, lambda _: None, clock=lambda: next(now))
    assert result.cut
    assert points(result) == [1]


def test_the_first_repeat_does_not_count_and_the_time_is_divided() -> None:
    requests: list[tuple[int, float]] = []

    def measure(threads: int, seconds: float) -> tuple[int, float, float]:
        requests.append((threads, seconds))
        return (1 if len(requests) == 1 else 1000), 1.0, 0.5

    result = sweep(measure, (1, 2), 6.0, lambda _: None)
    assert result.points[0].rates == (1000.0,) * REPEATS
    assert math.isclose(sum(seconds for _, seconds in requests), 6.0)
    requests.clear()
    result = sweep(measure, (1,), 6.0, lambda _: None, small=measure)
    assert result.points[0].latencies == (0.5,) * REPEATS
    assert math.isclose(sum(seconds for _, seconds in requests), 6.0)


def test_a_figure_is_the_median_with_half_of_the_distance_between_the_quartiles() -> None:
    result = rate("memcpy.rate", 2, [1e6, 2e6, 3e6, 4e6, 90e6], "here")
    assert (result.value, result.unit, result.spread, result.base) == (3.0, "MB/s", 1.0, 3e6)
    result = time_of("origin.latency", 1, [0.020, 0.0212345, 0.030], "here")
    assert (result.value, result.unit) == (21230.0, "us")


@properties()
@given(st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=20))
def test_a_spread_is_never_negative_nor_more_than_half_of_the_range(values: list[float]) -> None:
    assert -1e-9 <= spread(values) <= (max(values) - min(values)) / 2 * (1 + 1e-9)


@properties()
@given(st.integers(1, 5000))
def test_counts_ascend_from_1_to_the_most_and_at_most_double(most: int) -> None:
    result = counts(most)
    assert result[0] == 1
    assert result[-1] == most
    assert all(low < high <= 2 * low for low, high in itertools.pairwise(result))


def write(folder: Path, *jobs: dict[str, Any], **table: Any) -> str:
    """Write a file of results."""
    path = folder / "fio.json"
    content = {"fio version": "fio-3.33", "timestamp": 1795364184, **table, "jobs": list(jobs)}
    path.write_text(json.dumps(content))
    return str(path)


def job(**options: Any) -> dict[str, Any]:
    result = copy.deepcopy(JOB)
    result["job options"].update(options)
    result["jobname"] = "-".join(map(str, options.values()))
    return result


def test_fio_gives_rate_and_latency_against_reads_in_flight(tmp_path: Path) -> None:
    read, latency = fio.read(write(tmp_path, JOB), NAMES)
    assert (read.name, read.at, read.unit) == ("tier.disk.read", 1, "MB/s")
    assert read.base == pytest.approx(1225608311)
    assert read.date == dt.date(2026, 11, 22)
    assert read.conditions == "fio-3.33, psync, randread, blocks of 128k, 1 jobs x 1 deep, direct"
    assert read.spread is None
    assert (latency.name, latency.at) == ("tier.disk.latency", 1)
    assert latency.base == pytest.approx(100.864e-6)


def test_fio_depth_counts_where_the_engine_has_one_and_global_options_count(tmp_path: Path) -> None:
    deep = job(ioengine="libaio", iodepth="8", numjobs=4)
    path = write(tmp_path, deep, **{"global options": {"iodepth": "1"}})
    assert {figure.at for figure in fio.read(path, NAMES)} == {32}
    assert {figure.at for figure in fio.read(write(tmp_path, job(iodepth="8", numjobs="4")), NAMES)} == {4}
    result = copy.deepcopy(JOB)
    path = write(tmp_path, result, **{"global options": result.pop("job options")})
    assert {figure.at for figure in fio.read(path, NAMES)} == {1}


def test_fio_copies_of_a_job_are_added_up_and_their_mean_latency_is_taken(tmp_path: Path) -> None:
    one, other = job(numjobs="2"), job(numjobs="2")
    other["read"].update(total_ios=2 * 9360, lat_ns={"mean": 400000.0})
    read, latency = fio.read(write(tmp_path, one, other), NAMES)
    assert read.at == 2
    assert read.base == pytest.approx(2 * 1225608311)
    assert latency.base == pytest.approx((106500.5 + 2 * 400000.0) / 3 * 1e-9)
    assert latency.conditions is not None
    assert latency.conditions.endswith("; mean")


def without(*path: str) -> dict[str, Any]:
    result = copy.deepcopy(JOB)
    table = result
    for key in path[:-1]:
        table = table[key]
    del table[path[-1]]
    return result


def reading(**values: Any) -> dict[str, Any]:
    result = copy.deepcopy(JOB)
    result["read"].update(values)
    return result


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (without("read"), "jobs[0].read is missing; a table expected"),
        (reading(total_ios=0), "jobs[0].read.total_ios = 0; the job has no reads"),
        (without("read", "bw_bytes"), "jobs[0].read.bw_bytes is missing; bytes per second, as fio 3 writes"),
        (reading(bw_bytes="1 GB/s"), 'jobs[0].read.bw_bytes = "1 GB/s"; bytes per second, as fio 3 writes'),
        (reading(bw_bytes=math.nan), "jobs[0].read.bw_bytes = nan"),
        (reading(bw_bytes=-1), "jobs[0].read.bw_bytes = -1"),
        (reading(bw_bytes=0), "jobs[0].read.bw_bytes = 0; a rate above 0"),
        (reading(lat_ns=None, clat_ns={}), "jobs[0].read.lat_ns is missing; nanoseconds, as fio 3 writes"),
        (reading(lat_ns={"mean": 0}, clat_ns={}), "jobs[0].read.lat_ns.mean = 0; a time above 0"),
        (reading(clat_ns=7), "jobs[0].read.clat_ns = 7; a table expected"),
        (job(rw="randwrite"), 'jobs[0]["job options"].rw = "randwrite"; the figures are of random reads'),
        (job(rw="read"), 'jobs[0]["job options"].rw = "read"; the figures are of random reads'),
        (job(direct="0"), 'jobs[0]["job options"].direct = "0"; reads of the device and of the page cache'),
        (job(numjobs="many"), 'jobs[0]["job options"].numjobs = "many"; a whole number of 1 or more'),
        (job(iodepth=0), 'jobs[0]["job options"].iodepth = "0"; a whole number of 1 or more'),
        (job(bs="4k\n"), "printable words expected"),
    ],
)
def test_fio_results_of_other_measurements_are_refused(
    tmp_path: Path, result: dict[str, Any], expected: str
) -> None:
    path = write(tmp_path, result)
    with pytest.raises(ConfigError) as caught:
        fio.read(path, NAMES)
    (fault,) = caught.value.faults
    assert fault.startswith(f"{path}: jobs[0]")
    assert expected in fault


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fio-3.33: no such option", "no JSON"),
        ("[1]", "no results of fio"),
        ("{}", "jobs is missing"),
        ('{"jobs": [1]}', "jobs[0] = 1; a table expected"),
        ('{"jobs": [{"job options": 1}]}', ".job options = 1; a table expected"),
    ],
)
def test_a_file_of_another_program_than_fio_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(ConfigError) as caught:
        fio.read(str(tmp_path / "x"), NAMES)
    assert expected in str(caught.value)


def test_fio_jobs_that_contradict_one_another_are_refused_all_at_once(tmp_path: Path) -> None:
    twice, torn = [job(bs="4k"), job(bs="8k")], [job(numjobs="3"), job(numjobs="3")]
    with pytest.raises(ConfigError) as caught:
        fio.read(write(tmp_path, *twice, *torn), NAMES)
    assert len(caught.value.faults) == 3
    assert "jobs[1]: another job has 1 reads in flight" in caught.value.faults[0]
    assert "jobs[2]: 2 entries of a job with numjobs = 3; 1 or 3 expected" in caught.value.faults[2]


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
)


RESULTS = json.dumps(
    {"fio version": "fio-3.33", "timestamp": 1795364184, "jobs": [job(numjobs="2"), job(numjobs="2")]}
)


def places(within: Any) -> list[tuple[Any, Any]]:
    """Return every key, and the table that contains it."""
    found = []
    reached = [within]
    for each in reached:
        if isinstance(each, dict | list):
            keys = each if isinstance(each, dict) else range(len(each))
            found += [(each, key) for key in keys]
            reached += each.values() if isinstance(each, dict) else each
    return found


@properties()
@given(st.data())
def test_any_value_at_any_key_of_results_is_read_or_refused_in_one_line(data: st.DataObject) -> None:
    table = json.loads(RESULTS)
    for _ in range(data.draw(st.integers(1, 3))):
        found = places(table)
        within, key = found[data.draw(st.integers(0, len(found) - 1))]
        within[key] = data.draw(json_values)
    assert all(fault and "\n" not in fault for fault in faults(table))


def faults(table: dict[str, Any]) -> list[str]:
    """Return the faults of results; any other error fails the test."""
    try:
        assert all(figure.base > 0 for figure in fio.figures(table, NAMES))
    except ConfigError as error:
        return error.faults or [""]
    return []


def plan_of(**words: Any) -> Any:
    return check(**{"seconds": 1.0, "disks": (), "results": (), "only": (), "environ": {}, **words})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"seconds": 0.0}, "--seconds 0: seconds above 0, at most 3600 expected"),
        ({"seconds": -1.0}, "--seconds -1:"),
        ({"seconds": math.nan}, "--seconds nan:"),
        ({"seconds": math.inf}, "--seconds inf:"),
        ({"port": 0}, "--port 0: 1 to 65535"),
        ({"only": ["rma"]}, "--only rma: no such part or tier; known are memcpy, checksum, ram"),
        ({"disks": ["/no/such"]}, "--disk /no/such: no such folder"),
        ({"disks": ["ram=/tmp"]}, "'ram' is no name for a tier"),
        ({"disks": ["a.b=/tmp"]}, "'a.b' is no name for a tier"),
        ({"disks": ["a="]}, "--disk a=: [NAME=]PATH expected"),
        ({"disks": ["a=/tmp", "a=/"]}, "'a' is repeated"),
        ({"results": ["/no/such"]}, "--fio /no/such: No such file"),
        ({"results": ["memcpy=x"]}, "'memcpy' is no name for a tier"),
        ({"environ": {"RANK": "0"}}, "RANK=0 is set but WORLD_SIZE is not"),
        ({"environ": {"RANK": "0", "WORLD_SIZE": "2"}}, "MASTER_ADDR and MASTER_PORT not set"),
        (
            {"environ": {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "x"}},
            "MASTER_PORT='x'; a port from 1 to 65535",
        ),
    ],
)
def test_each_invalid_option_is_named_with_its_rule(words: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(**words)
    assert expected in str(caught.value)


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(seconds=0.0, port=0, disks=["/no/such"], only=["x"])
    assert len(caught.value.faults) == 4


def test_disks_have_names_and_parts_can_be_chosen(tmp_path: Path) -> None:
    options = plan_of(disks=[str(tmp_path), f"fast={tmp_path}", str(tmp_path / ".." / tmp_path.name)])
    assert [each.name for each in options.disks] == ["disk", "fast", "disk3"]
    assert options.includes("ram")
    assert options.includes("fast")
    chosen = plan_of(disks=[f"fast={tmp_path}"], only=["fast", "memcpy"])
    assert [part for part in ("memcpy", "ram", "fast") if chosen.includes(part)] == ["memcpy", "fast"]


def test_rank_0_listens_on_the_port_after_the_launchers() -> None:
    launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert ranks.rendezvous(None, launched) == "127.0.0.1:29501"
    assert ranks.rendezvous(None, {**launched, "MASTER_PORT": "65535"}) == "127.0.0.1:65534"
    assert ranks.rendezvous(7000, {"MASTER_ADDR": "::1"}) == "[::1]:7000"
    whole = {**launched, "RANK": "1", "WORLD_SIZE": "2"}
    assert plan_of(environ=whole).rendezvous == "127.0.0.1:29501"
    assert plan_of(environ=whole, only=["ram"]).rendezvous is None


def limit_of(per_second: float | None) -> tuple[list, list[str]]:
    """Return the figures of an origin with a latency of 10 ms and this limit of requests per second."""

    def small(threads: int, seconds: float) -> tuple[int, float, float]:
        each = 0.01 if per_second is None else max(0.01, threads / per_second)
        return 4096 * threads, seconds, each

    recorder = parts.Recorder(lambda _: None)
    return list(recorder.limit("origin.requests", small, 64, 1.0, "at most 4 KiB")), recorder.left_out


def test_the_limit_of_requests_is_the_rate_that_more_readers_do_not_raise() -> None:
    (figure,), left_out = limit_of(1500)
    assert (figure.name, figure.base, figure.at) == ("origin.requests", pytest.approx(1500, rel=0.01), None)
    assert not left_out
    profile = Profile(machine="a", date=dt.date(2026, 11, 22), figure=(figure,))
    assert profile.complete({})["origin"] == {"requests": round(figure.base)}


def test_an_origin_whose_rate_still_rises_has_no_limit_in_the_profile() -> None:
    seen, left_out = limit_of(None)
    assert seen == []
    assert left_out == ["origin.requests: it still rises at 64 readers, so no limit was found"]
