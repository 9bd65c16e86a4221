# SPDX-License-Identifier: Apache-2.0
"""The ledger on disk: Arrow reads it, and the sums of its rows equal `stats()`."""

from __future__ import annotations

import pathlib
import signal
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pytest
from support.data import epoch
from support.processes import child
from support.waiting import moment

import foresee

COLUMNS = {
    "start_ns": pa.uint64(),
    "duration_ns": pa.uint64(),
    "rank": pa.uint32(),
    "epoch": pa.uint64(),
    "step": pa.uint64(),
    "subject": pa.dictionary(pa.uint8(), pa.string()),
    "subject_id": pa.uint64(),
    "op": pa.dictionary(pa.uint8(), pa.string()),
    "source": pa.dictionary(pa.uint8(), pa.string()),
    "cause": pa.dictionary(pa.uint8(), pa.string()),
    "bytes": pa.uint64(),
    "samples": pa.uint32(),
    "attempt": pa.uint32(),
    "outcome": pa.dictionary(pa.uint8(), pa.string()),
}


def rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """Read the whole ledger with Arrow."""
    with pyarrow.ipc.open_stream(path.read_bytes()) as stream:
        return list(stream.read_all().to_pylist())


def added_up(entries: list[dict[str, Any]]) -> dict[str, Counter[Any]]:
    """Return count, samples, bytes and nanoseconds by (op, source, success), and of waits by cause."""
    sums: dict[str, Counter[Any]] = {name: Counter() for name in ("count", "samples", "bytes", "ns")}
    for entry in entries:
        key = (
            entry["cause"]
            if entry["op"] == "wait"
            else (entry["op"], entry["source"], entry["outcome"] == "ok")
        )
        sums["count"][key] += 1
        sums["samples"][key] += entry["samples"]
        sums["bytes"][key] += entry["bytes"]
        sums["ns"][key] += entry["duration_ns"]
    return sums


@pytest.mark.parametrize("cached", [True, False], ids=["ram_and_disk", "nothing_cached"])
def test_the_rows_add_up_to_the_statistics(
    folder: pathlib.Path, tmp_path: pathlib.Path, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORESEE_TRACE", str(tmp_path / "run"))
    cache = (
        foresee.Cache(ram="1MB", disk=tmp_path / "cache", disk_size="1GB") if cached else foresee.Cache(ram=0)
    )
    loader = foresee.Loader(folder, batch_size=8, shuffle=True, seed=0, cache=cache, epochs=3)
    for _ in range(3):
        epoch(loader)
    loader.close()
    stats = loader.stats()
    assert stats["ledger_lost"] is None
    sums = added_up(rows(tmp_path / "run" / "ledger" / "rank-0.arrow"))
    seen = set()
    for source, operations in stats["operations"].items():
        for op, outcomes in operations.items():
            for outcome, figures in outcomes.items():
                key = (op, source, outcome == "ok")
                seen.add(key)
                if figures is None:
                    assert sums["count"][key] == 0, key
                    continue
                assert (figures["count"], figures["samples"], figures["bytes"]) == tuple(
                    sums[name][key] for name in ("count", "samples", "bytes")
                ), key
                assert figures["seconds"] == pytest.approx(sums["ns"][key] / 1e9), key
    for cause, figures in stats["waits"].items():
        seen.add(cause)
        assert sums["count"][cause] == (0 if figures is None else figures["count"]), cause
        assert sums["ns"][cause] / 1e9 == pytest.approx(0 if figures is None else figures["seconds"]), cause
    # Nothing is in the ledger that the statistics do not show.
    assert set(sums["count"]) <= seen
    waited = sum(figures["samples"] for figures in stats["waits"].values() if figures is not None)
    assert waited == 3 * len(loader.index)


def test_columns_are_those_of_the_format_and_bounds_hold(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORESEE_TRACE", str(tmp_path / "run"))
    began = moment()
    with foresee.Loader(folder, batch_size=8, rank=1, world_size=2, shuffle=True, seed=0, epochs=2) as loader:
        for _ in range(2):
            epoch(loader)
    whole = moment() - began
    path = tmp_path / "run" / "ledger" / "rank-1.arrow"
    schema = pyarrow.ipc.open_stream(path.read_bytes()).schema
    assert {field.name: field.type for field in schema} == COLUMNS
    assert schema.metadata == {b"foresee.ledger": b"1"}
    for entry in rows(path):
        assert entry["rank"] == 1
        assert entry["epoch"] < 2
        assert entry["step"] < 6
        assert entry["start_ns"] + entry["duration_ns"] <= whole * 1e9
        assert entry["attempt"] >= 1
        assert (entry["cause"] is not None) == (entry["op"] == "wait")
        assert entry["subject_id"] is None or entry["subject_id"] < len(loader.index)


def test_a_second_loader_of_a_rank_has_its_own_ledger(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORESEE_TRACE", str(tmp_path / "run"))
    for _ in range(3):
        with foresee.Loader(folder, batch_size=8) as loader:
            epoch(loader)
    names = sorted(path.name for path in (tmp_path / "run" / "ledger").iterdir())
    assert names == ["rank-0.2.arrow", "rank-0.3.arrow", "rank-0.arrow"]
    for name in names:
        entries = rows(tmp_path / "run" / "ledger" / name)
        assert sum(entry["samples"] for entry in entries if entry["op"] == "wait") == len(loader.index)


def test_after_kill_9_the_ledger_lacks_only_its_last_rows(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source = """
        import sys
        import foresee
        from support.data import epoch
        from support.processes import print_json
        with foresee.Loader(sys.argv[1], batch_size=1, shuffle=True, seed=0) as loader:
            while True:
                epoch(loader)
                print_json(steps=loader.stats()["waits"]["copy"]["count"])
    """
    with child(source, str(folder), env={"FORESEE_TRACE": str(tmp_path / "run")}) as program:
        steps = 0
        while steps < 10_000:
            steps = program.line()["steps"]
        program.send(signal.SIGKILL)
        program.wait()
    with pyarrow.ipc.open_stream((tmp_path / "run" / "ledger" / "rank-0.arrow").read_bytes()) as stream:
        whole = 0
        try:
            for batch in stream:
                whole += batch.num_rows
        except (pa.ArrowInvalid, OSError):
            pass
    assert whole >= 4096


def test_a_run_folder_that_cannot_be_written_is_an_error_before_the_run(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("FORESEE_TRACE", str(tmp_path / "file" / "run"))
    with foresee.Loader(folder, batch_size=8) as loader, pytest.raises(foresee.ForeseeError) as caught:
        loader.start()
    assert str(tmp_path / "file") in str(caught.value)
