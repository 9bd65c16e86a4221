# SPDX-License-Identifier: Apache-2.0
"""``foresee node``: its options and their faults, the idle time, and the text of a status."""

from __future__ import annotations

from typing import Any

import pytest

from foresee.cli import main
from foresee.cli._durations import read_seconds
from foresee.cli.node import status
from foresee.cli.node.service import IdleTimer


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--ram is missing"),
        (["--ram", "lots"], "--ram='lots' is no size"),
        (["--ram", "1kB"], "--ram 1kB: 1 MiB or more"),
        (["--ram", "1GB", "--disk", "/x"], "--disk /x without --disk-size"),
        (["--ram", "1GB", "--disk-size", "9GB"], "--disk-size 9GB without --disk"),
        (["--ram", "1GB", "--idle-exit", "soon"], "--idle-exit 'soon'"),
        (["--ram", "1GB", "--idle-exit", "0s"], "a time above 0"),
        (["--ram", "1GB", "--allow-uid", "65534"], "--allow-uid 65534"),
        (["--ram", "1GB", "--allow-uid", "1", "4294967295"], "--allow-uid 4294967295"),
        (["--ram", "1GB", "--socket", "/" + "x" * 107], "has 108 bytes, and at most 107 fit"),
        (["status", "--socket", "/" + "x" * 107], "has 108 bytes, and at most 107 fit"),
        (["status", "--watch", "--json"], "--json with --watch"),
    ],
)
def test_bad_input_has_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["node", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


def test_a_service_is_not_started_where_the_environment_turns_it_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORESEE_NODE", "off")
    assert main(["node", "--ram", "2MB"]) == 2
    assert "unset FORESEE_OFF and FORESEE_NODE" in capsys.readouterr().err


def test_all_faults_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "--ram", "x", "--disk", "/x", "--idle-exit", "y"]) == 2
    err = capsys.readouterr().err
    assert all(word in err for word in ("--ram=", "--disk-size", "--idle-exit"))


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600.0), ("1.5 h", 5400.0), ("250ms", 0.25)])
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert read_seconds("--idle-exit", text, zero=False) == seconds


def test_the_idle_time_counts_from_the_last_consumer() -> None:
    timer = IdleTimer(10.0, 100.0)
    assert not timer.is_over(109.0, is_used=False)
    assert not timer.is_over(120.0, is_used=True)
    assert not timer.is_over(129.0, is_used=False)
    assert timer.is_over(130.0, is_used=False)


def consumer(**changes: Any) -> dict[str, Any]:
    """Return a consumer of a status, with samples, hit rate and saved bytes."""
    return {
        "job": "train",
        "rank": 3,
        "samples": 1200,
        "hit_rate": 0.75,
        "saved_bytes": 3 * 10**9,
        "waiting": 8,
        "idle_ns": 1_500_000_000,
        "data_set": "s3://b/train",
        **changes,
    }


def test_the_status_has_a_row_per_consumer_and_the_totals() -> None:
    text = status.report(
        {
            "foresee": "0.1.0",
            "pid": 7,
            "uptime_seconds": 60,
            "memory": {"capacity_bytes": 64 * 10**9, "used_bytes": 10**9},
            "disk": {"capacity_bytes": 0, "used_bytes": 0},
            "origin": {"requests": 1000, "bytes": 10**9, "retries": 3, "throttles": 0, "hedges": 12},
            "peers": None,
            "consumers": [consumer(), consumer(job="new\x1b[2J", hit_rate=None, data_set=None)],
            "omitted_consumers": 2,
        }
    )
    first = text.splitlines()[1].split()
    assert first == ["train", "3", "1,200", "75%", "3", "GB", "8", "1.5", "s", "s3://b/train"]
    assert "\x1b" not in text
    assert "and 2 more" in text
    assert (
        "memory    1 GB of 64 GB\ndisk      none\norigin    1 GB in 1,000 reads (3 retries, 12 hedges)"
        in text
    )


def test_the_status_shows_what_is_exchanged_with_other_nodes() -> None:
    peers = {
        "received": {"samples": 1200, "bytes": 3 * 10**9},
        "sent": {"samples": 7, "bytes": 10**6},
        "missing": 2,
        "late": 0,
        "silent": 1,
    }
    facts = {
        "foresee": "0.1.0",
        "pid": 7,
        "uptime_seconds": 60,
        "memory": {"capacity_bytes": 64 * 10**9, "used_bytes": 10**9},
        "disk": {"capacity_bytes": 0, "used_bytes": 0},
        "origin": {"requests": 1000, "bytes": 10**9, "retries": 0, "throttles": 0, "hedges": 0},
        "peers": peers,
        "consumers": [consumer()],
        "omitted_consumers": 0,
    }
    text = status.report(facts)
    assert (
        "\npeers     3 GB in 1,200 samples received, 1 MB in 7 samples sent (2 missing, 1 silent)\n" in text
    )
    assert "\npeers" not in status.report({**facts, "peers": None})
