# SPDX-License-Identifier: Apache-2.0
"""Tables from run folders and Darshan logs, their limits, and refused inputs."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest
from support.house import ROOT

import foresee
from foresee import storage
from foresee.errors import ConfigError, PackageMissing
from foresee.storage import analysis
from foresee.storage.analysis import IoTable, answers, darshan, epochs, ledger, node_caches, offers
from foresee.storage.analysis.table import build
from foresee.storage.purchases import Offer

MEASURED = np.array([[1, 3, 2, 0.5], [0.5, 1, 4.5, 0.4], [2, 2, 2, 0.2]])


def example(name: str) -> str:
    """Return the path of an example log of PyDarshan."""
    found = importlib.util.find_spec("darshan")
    assert found is not None, "PyDarshan is missing: make setup"
    assert found.origin is not None
    return str(Path(found.origin).parent / "examples" / "example_logs" / f"{name}.darshan")


def table(seconds: np.ndarray = MEASURED) -> IoTable:
    """A table by hand."""
    names = tuple(f"rank {at}" for at in range(len(seconds)))
    return IoTable(seconds.astype(float), storage.CLASSES, names, (0.0,) * 4, ())


@pytest.mark.parametrize("module", ["foresee.storage.analysis.darshan", "foresee.storage.analysis.offers"])
def test_the_examples_in_the_docstrings_are_true(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted
    assert not result.failed


# Darshan logs.


def test_without_pydarshan_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    log = example("dxt")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PackageMissing, match=r"foresee\[darshan\]"):
        darshan.read(log, {"/": "gfs"})


def test_a_missing_log_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.darshan"):
        darshan.read("gone.darshan", {"/": "gfs"})


@pytest.mark.parametrize(
    ("tiers", "between", "expected"),
    [
        ({"/a": "l fs"}, None, "--tier l fs=/a: a name of letters"),
        ({"a": "lfs"}, None, "a path that begins with /"),
        ({"/a": ""}, None, "--tier =/a"),
        ({"/": "gfs"}, (2.0, 1.0), "--between 2 1"),
        ({"/": "gfs"}, (-1.0, 1.0), "--between -1 1"),
        ({"/": "gfs"}, (math.nan, 1.0), "--between nan 1"),
    ],
)
def test_tiers_and_times_are_checked(tiers: dict, between: tuple | None, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        darshan.read("gone.darshan", tiers, between=between)


# Run folders.


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder: two epochs, the second from disk."""
    monkeypatch.setenv("FORESEE_TRACE", str(tmp_path / "run"))
    cache = foresee.Cache(ram="1MB", disk=tmp_path / "cache", disk_size="1GB")
    with foresee.Loader(folder, batch_size=8, shuffle=True, seed=0, cache=cache, epochs=2) as loader:
        for _ in range(2):
            for batch in loader:
                del batch
    return tmp_path / "run"


def entries(run: Path) -> list[dict]:
    """The ledger, as Arrow reads it."""
    with pyarrow.ipc.open_stream((run / "ledger" / "rank-0.arrow").read_bytes()) as stream:
        return list(stream.read_all().to_pylist())


def test_a_run_folders_table_adds_up_to_its_entries(run: Path) -> None:
    result = ledger.read(run)
    assert result.processes == ("rank 0",)
    reads = sum(
        entry["duration_ns"] for entry in entries(run) if (entry["op"], entry["source"]) == ("read", "origin")
    )
    assert result.seconds[0, result.column("gfs-read")] == pytest.approx(reads / 1e9)
    meta = sum(
        entry["duration_ns"]
        for entry in entries(run)
        if entry["op"] in {"list", "stat", "open", "close"} and entry["source"] == "origin"
    )
    assert result.seconds[0, result.column("gfs-meta")] == pytest.approx(meta / 1e9)
    assert result.known


def test_an_epoch_is_read_separately(run: Path) -> None:
    parts = ledger.read_epochs(run)
    whole = ledger.read(run)
    assert 0 in parts
    assert sum(part.seconds.sum() for part in parts.values()) == pytest.approx(whole.seconds.sum())
    assert ledger.read(run, epoch=0).seconds.sum() == pytest.approx(parts[0].seconds.sum())
    with pytest.raises(ConfigError, match="no I/O in epoch 7"):
        ledger.read(run, epoch=7)


def written(path: Path, rows: list[tuple], version: bytes | None = b"1") -> None:
    """A hand-made ledger: rank, epoch, op, source, nanoseconds, and optionally begin and subject."""
    words = pa.dictionary(pa.uint8(), pa.string())
    metadata = {} if version is None else {b"foresee.ledger": version}
    schema = pa.schema(
        [
            ("rank", pa.uint32()),
            ("epoch", pa.uint64()),
            ("op", words),
            ("source", words),
            ("duration_ns", pa.uint64()),
            ("start_ns", pa.uint64()),
            ("subject", words),
        ],
        metadata=metadata,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.ipc.new_stream(str(path), schema) as stream:
        for row in rows:
            columns = [
                pa.array([value]).cast(field.type)
                if field.type != words
                else pa.array([value]).dictionary_encode().cast(words)
                for value, field in zip([*row, *(0, "sample")[len(row) - 5 :]], schema, strict=True)
            ]
            stream.write_batch(pa.record_batch(columns, schema=schema))


def test_ranks_ops_and_tiers_become_rows_and_classes(tmp_path: Path) -> None:
    s = 10**9
    written(
        tmp_path / "ledger" / "rank-0.arrow",
        [(0, 0, "read", "origin", s), (0, 0, "open", "origin", 2 * s), (0, 1, "read", "disk", 3 * s)],
    )
    written(
        tmp_path / "ledger" / "rank-2.arrow",
        [(2, 0, "write", "disk", s), (2, 0, "wait", "origin", 9 * s), (2, 0, "read", "moon", 9 * s)],
    )
    written(tmp_path / "ledger" / "rank-2.2.arrow", [(2, 0, "read", "peer", s), (2, 0, "read", "server", s)])
    result = ledger.read(tmp_path)
    assert result.processes == ("rank 0", "rank 2")
    assert result.classes == (*storage.CLASSES, "LFS-WRITE", "PEER-READ")
    assert result.seconds.tolist() == [[1, 2, 3, 0, 0, 0], [0, 0, 0, 0, 1, 1]]
    assert ledger.read(tmp_path, epoch=1).seconds.tolist() == [[0, 0, 3, 0], [0, 0, 0, 0]]
    epochs = ledger.read_epochs(tmp_path)
    assert [epochs[at].seconds.sum(axis=1).tolist() for at in (0, 1)] == [[3, 2], [3, 0]]


def through_node(path: Path, host: str, role: str, rows: list[tuple[int, str, int]]) -> None:
    """A ledger of a rank that reads through a node's cache: epoch, source and bytes of each read, 1 s long."""
    words = pa.dictionary(pa.uint8(), pa.string())
    node = {"foresee.node.id": host, "foresee.node.role": role, "foresee.node.ram_bytes": "4000"}
    rank = int(path.stem.split("-")[1].split(".")[0])
    columns = {
        "rank": pa.array([rank] * len(rows), pa.uint32()),
        "epoch": pa.array([epoch for epoch, _, _ in rows], pa.uint64()),
        "op": pa.array(["read"] * len(rows), words),
        "source": pa.array([source for _, source, _ in rows], words),
        "outcome": pa.array(["ok"] * len(rows), words),
        "duration_ns": pa.array([10**9] * len(rows), pa.uint64()),
        "bytes": pa.array([size for _, _, size in rows], pa.uint64()),
    }
    table = pa.table(columns).replace_schema_metadata({"foresee.ledger": "1", **node})
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.ipc.new_stream(str(path), table.schema) as stream:
        stream.write_table(table)


def test_ranks_of_a_node_share_one_cache_and_save_bytes(tmp_path: Path) -> None:
    first, second = [(0, "origin", 600), (1, "ram", 500)], [(0, "origin", 400), (1, "disk", 500)]
    through_node(tmp_path / "ledger" / "rank-0.arrow", "a", "host", first)
    through_node(tmp_path / "ledger" / "rank-1.arrow", "a", "rank_consumer", second)
    through_node(tmp_path / "ledger" / "rank-1.2.arrow", "a", "rank_consumer", [(0, "ram", 100)])
    through_node(tmp_path / "ledger" / "rank-2.arrow", "b", "service_consumer", [(0, "ram", 50)])
    written(tmp_path / "ledger" / "rank-3.arrow", [(3, 0, "read", "origin", 10**9)])
    ours, service = node_caches.read(tmp_path)
    assert (ours["ranks"], ours["host_rank"], ours["is_service"]) == ([0, 1], 0, False)
    assert (ours["ram_bytes"], ours["disk_bytes"]) == (4000, 0)
    assert (ours["delivered_bytes"], ours["origin_bytes"], ours["saved_bytes"]) == (2100, 1000, 1100)
    assert (service["ranks"], service["host_rank"], service["is_service"]) == ([2], None, True)
    assert node_caches.read(tmp_path, epoch=0)[0]["delivered_bytes"] == 1100
    seconds = ledger.read(tmp_path)
    reads = seconds.seconds[:, [seconds.column("GFS-READ"), seconds.column("LFS-READ")]].tolist()
    assert reads == [[1, 0], [1, 1], [0, 0], [1, 0]]
    assert [limit.split()[0] for limit in seconds.limits] == ["ranks", "seconds"]


def test_runs_without_a_shared_cache_have_none(tmp_path: Path) -> None:
    written(tmp_path / "ledger" / "rank-0.arrow", [(0, 0, "read", "origin", 10**9)])
    assert node_caches.read(tmp_path) == []
    assert ledger.read(tmp_path).limits == (ledger.AT_ONCE,)


def test_an_epoch_lasts_as_long_as_its_slowest_rank(tmp_path: Path) -> None:
    s = 10**9
    waits = [
        (0, 0, "wait", "none", s, 0, "batch"),
        (0, 1, "read", "origin", s, 2 * s, "sample"),  # ahead of its epoch
        (0, 0, "wait", "none", s, 4 * s, "batch"),
        (0, 1, "wait", "disk", s, 6 * s, "batch"),
        (0, 1, "wait", "disk", 3 * s, 7 * s, "batch"),
        (0, 0, "wait", "none", 90 * s, 0, "tensor"),
    ]
    written(tmp_path / "ledger" / "rank-0.arrow", waits)
    # Another clock, and no waits: the reads define the epoch.
    reads = [(1, 1, "open", "origin", s, 100 * s), (1, 1, "read", "origin", s, 106 * s)]
    written(tmp_path / "ledger" / "rank-1.arrow", reads)
    assert ledger.epoch_seconds(tmp_path) == {0: 5.0, 1: 7.0}


def test_epochs_are_grouped_by_cache_rate(tmp_path: Path) -> None:
    s = 10**9
    rows = [
        (0, 0, "read", "origin", 2 * s, 0, "sample"),
        (0, 0, "wait", "origin", 3 * s, 0, "batch"),
        (0, 1, "wait", "none", s, 4 * s, "batch"),
    ]
    written(tmp_path / "a" / "ledger" / "rank-0.arrow", rows)
    written(tmp_path / "b" / "ledger" / "rank-0.arrow", [(0, 0, "read", "disk", s, 0)])
    written(tmp_path / "c" / "ledger" / "rank-0.arrow", [(0, 0, "write", "disk", 3 * s, 0)])
    folders = {0.5: [tmp_path / "b", tmp_path / "c"], 0.0: [tmp_path / "a"]}
    first, last = epochs.read(folders, change={"GFS-READ": 100.0, "LFS-WRITE": 0.0})
    assert (first["rate"], last["rate"]) == (0.0, 0.5)
    assert [(each["epoch"], each["seconds"]) for each in first["epochs"]] == [(0, 3.0), (1, 1.0)]
    assert [each["slowest"]["seconds"] for each in first["epochs"]] == [
        2.0,
        0.0,
    ]  # memory answered the second
    assert [each["what_if"]["seconds"] for each in first["epochs"]] == [1.0, 0.0]
    (only,) = last["epochs"]
    assert (only["seconds"], only["slowest"]["seconds"]) == (3.0, 3.0)
    assert only["slowest"]["process"] == f"{tmp_path / 'c'}: rank 0"
    with pytest.raises(ConfigError, match="no rank came to epoch 2; its I/O was read ahead"):
        epochs.read(folders, epoch=2)
    (first, last) = epochs.read(folders, epoch=1)
    assert "what_if" not in first["epochs"][0]
    assert (len(first["epochs"]), last["epochs"]) == (1, [])
    written(tmp_path / "d" / "ledger" / "rank-0.arrow", [(0, 0, "wait", "none", s, 0, "batch")])
    with pytest.raises(ConfigError, match="d: no I/O in its ledgers"):
        epochs.read({0.0: [tmp_path / "d"]})


def test_a_rank_whose_samples_were_all_in_the_memory_of_its_node_has_no_seconds(tmp_path: Path) -> None:
    rows = [(epoch, "ram", 500) for epoch in range(2)]
    through_node(tmp_path / "ledger" / "rank-0.arrow", "a", "service_consumer", rows)
    result = ledger.read(tmp_path)
    assert (result.processes, result.seconds.sum()) == (("rank 0",), 0)
    assert list(ledger.read_epochs(tmp_path)) == [0, 1]
    with pytest.raises(ConfigError, match="no I/O in epoch 2"):
        ledger.read(tmp_path, epoch=2)


def test_a_truncated_ledger_is_read_up_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "ledger" / "rank-0.arrow"
    written(path, [(0, 0, "read", "origin", 10**9)] * 3)
    path.write_bytes(path.read_bytes()[:-200])
    result = ledger.read(tmp_path)
    assert 0 < result.seconds[0, 0] < 3
    assert any("rank-0.arrow ends early" in limit for limit in result.limits)


def test_other_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no folder ledger in it"):
        ledger.read(tmp_path)
    (tmp_path / "ledger").mkdir()
    with pytest.raises(ConfigError, match=r"no file rank-K\.arrow"):
        ledger.read(tmp_path)
    path = tmp_path / "ledger" / "rank-0.arrow"
    for content in (b"", b"hello\n" * 20):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"rank-0\.arrow: no ledger"):
            ledger.read(tmp_path)
    written(path, [], version=None)
    with pytest.raises(ConfigError, match=r"foresee\.ledger is not there"):
        ledger.read(tmp_path)
    written(path, [], version=b"9")
    with pytest.raises(ConfigError, match=r"foresee\.ledger is '9'; this program reads ledgers of version 1"):
        ledger.read(tmp_path)
    written(path, [(0, 0, "wait", "none", 1)])
    with pytest.raises(ConfigError, match="no I/O in its ledgers"):
        ledger.read(tmp_path)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    written(tmp_path / "ledger" / "rank-0.arrow", [])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PackageMissing, match=r"foresee\[ledger\]"):
        ledger.read(tmp_path)


# Tables and answers.


def test_logs_of_one_run_are_joined() -> None:
    one = build({("rank 0", "GFS-READ"): 1.0, ("rank 0", "GFS-WRITE"): 2.0}, ["rank 0"], limits=["a"])
    other = build({("rank 0", "LFS-READ"): 3.0}, ["rank 0"], unassigned={"LFS-META": 4.0}, limits=["a", "b"])
    result = analysis.join({"x": one, "y": other})
    assert result.processes == ("x: rank 0", "y: rank 0")
    assert result.seconds[0].tolist() == [1, 0, 0, 0, 2]
    assert result.seconds[1, :3].tolist() == [0, 0, 3]
    assert math.isnan(result.seconds[1, 3])
    assert (result.shared, result.limits) == ((0, 0, 0, 4, 0), ("a", "b"))
    assert analysis.join({"x": one}) is one
    with pytest.raises(ConfigError, match="no table"):
        analysis.join({})
    with pytest.raises(ConfigError, match="moon-read is no class"):
        one.column("moon-read")


def test_answers_are_those_of_the_model() -> None:
    question = answers.Question(change=[0, 50, 0, 0], goal=5.5, pair=("gfs-meta", "lfs-read"))
    result = answers.answer({0.5: table()}, question)
    (at,) = result["tables"]
    assert (at["slowest"]["process"], at["slowest"]["bottleneck"]) == ("rank 0", "GFS-META")
    assert at["what_if"]["seconds"] == pytest.approx(6.066667, abs=1e-6)
    assert at["what_if"]["process"] == "rank 1"
    assert sum(at["what_if"]["by_class"].values()) == pytest.approx(at["what_if"]["seconds"])
    assert not result["goal"]["met"]
    assert result["goal"]["best"] == pytest.approx(6.066667, abs=1e-6)
    assert result["what_if"]["GFS-META"] == 50
    (alone,) = result["goal"]["alone"]
    assert alone["percent"]["GFS-META"] == pytest.approx(900)
    corners = result["goal"]["pair"][0]["corners"]
    assert [*corners[0], *corners[-1]] == pytest.approx([0, 100, 900, 0])
    assert "optimistic bound" in result["limits"][-1]


def test_the_cheapest_offer_wins_over_rates() -> None:
    book = offers.loads(
        "version = 1\n"
        + "".join(
            f'[[offer]]\nname = "{name}"\nimprovement = {gain}\nprice = {price}\n'
            for name, gain, price in (
                ("gfs-meta", 50, 40),
                ("GFS-META", 100, 90),
                ("lfs-read", 30, 50),
                ("lfs-read", 50, 80),
                ("lfs-read", 100, 150),
            )
        )
        + "[[capacity]]\nrate = 1.0\nprice = 110\n"
    )
    question = answers.Question(goal=5.0, offers=book)
    result = answers.answer({0.5: table()}, question)["goal"]
    assert result["met"]
    assert [way["price"] for way in result["offers"]["front"]] == [120, 140]
    assert result["offers"]["cheapest"]["percent"] == {"GFS-META": 50.0, "LFS-READ": 50.0}
    result = answers.answer({0.5: table(), 1.0: table(MEASURED / 2)}, question)["goal"]
    assert (result["offers"]["cheapest"]["price"], result["offers"]["cheapest"]["rate"]) == (110, 1.0)
    assert result["minimum_rate"] == 1.0
    result = answers.answer({0.5: table()}, answers.Question(goal=1.0, offers=book))["goal"]
    assert not result["met"]
    assert result["offers"]["best"] == pytest.approx(4.2)


def test_offers_come_on_top_of_a_what_if_and_either_may_meet_the_goal() -> None:
    weak = '[[offer]]\nname = "gfs-read"\nimprovement = 10\nprice = 7\n'
    book = offers.loads(f"version = 1\n{weak}")
    change = [0, 140, 120, 0]
    # 3.94 s with the changes: the goal is met without a purchase.
    result = answers.answer({0.0: table()}, answers.Question(change=change, goal=4.0, offers=book))["goal"]
    assert result["met"]
    assert result["offers"]["cheapest"]["price"] == 0
    assert result["offers"]["cheapest"]["percent"] == {}
    # 3.8 s needs both.
    result = answers.answer({0.0: table()}, answers.Question(change=change, goal=3.8, offers=book))["goal"]
    assert result["met"]
    assert (result["minimum_rate"], result["offers"]["cheapest"]["price"]) == (None, 7)
    assert result["offers"]["cheapest"]["seconds"] == storage.slowest(MEASURED, [10, 140, 120, 0]).seconds
    # 3.5 s needs more.
    result = answers.answer({0.0: table()}, answers.Question(change=change, goal=3.5, offers=book))["goal"]
    assert not result["met"]
    assert result["offers"]["best"] == pytest.approx(storage.slowest(MEASURED, [10, 140, 120, 0]).seconds)


def test_without_prices_the_smallest_sets_of_classes_are_returned() -> None:
    tables = {0.5: table(), 1.0: table(MEASURED * 0.9)}
    result = answers.answer(tables, answers.Question(goal=4.5))["goal"]["sets"]
    assert [tuple(each["percent"]) for each in result[:2]] == [("LFS-READ",), ("GFS-META", "LFS-READ")]
    assert [each["rate"] for each in result[:2]] == [1.0, 1.0]
    counts = [len(each["percent"]) for each in result]
    assert counts == sorted(counts)
    assert counts[-1] == 4
    by_rate = [each for each in result if each["rate"] == 0.5]
    assert by_rate[0]["percent"] == pytest.approx({"GFS-META": 73.913, "LFS-READ": 73.913}, abs=1e-3)
    assert answers.answer(tables, answers.Question(goal=6.0))["goal"]["sets"] == []
    many = build({("rank 0", f"T{at}-READ"): 1.0 for at in range(13)}, ["rank 0"])
    result = answers.answer({0.0: many}, answers.Question(goal=4.0))
    assert result["goal"]["sets"] is None
    assert any("more than 12 classes took any time" in limit for limit in result["limits"])


def test_a_what_if_has_every_process_before_and_after() -> None:
    (at,) = answers.answer({0.0: table()}, answers.Question(change=[0, 50, 0, 0]))["tables"]
    assert at["totals"] == pytest.approx([6.5, 6.4, 6.2])
    assert at["what_if"]["totals"] == pytest.approx([5.5, 6.066667, 5.533333], abs=1e-6)
    assert at["what_if"]["seconds_by_process"][0] == [1.0, 2.0, 2.0, 0.5]
    assert at["what_if"]["seconds"] == max(at["what_if"]["totals"])
    unknown = MEASURED.copy()
    unknown[1, 2] = math.nan
    (at,) = answers.answer({0.0: table(unknown)}, answers.Question())["tables"]
    assert at["totals"] == [6.5, None, pytest.approx(6.2)]


def test_the_offers_page_has_every_key_and_its_example_is_read() -> None:
    page = (ROOT / "docs" / "formats" / "offers.md").read_text()
    book = offers.loads(page.split("```toml\n")[1].split("```")[0])
    assert book.by_class(storage.CLASSES) == {1: [Offer(50.0, 40.0)]}
    assert book.cache_prices == {0.5: 12.5}
    for key in ("name", "improvement", "price", "rate"):
        assert f"| `{key}` |" in page


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "version is missing"),
        ("version = 2", "version = 2"),
        ("version = 1\noffers = 1", "did you mean offer?"),
        ('version = 1\n[[offer]]\nname = "a"\nimprovement = -100\nprice = 1', "offer[0].improvement = -100"),
        ('version = 1\n[[offer]]\nname = "a"\nimprovement = nan\nprice = 1', "offer[0].improvement = nan"),
        ('version = 1\n[[offer]]\nname = "a"\nimprovement = 1\nprice = -1', "offer[0].price = -1"),
        ('version = 1\n[[offer]]\nname = "a"\nimprovement = 1', "offer[0].price is missing"),
        (
            "version = 1\n[[capacity]]\nrate = 1.5\nprice = 1",
            "capacity[0].rate = 1.5; a finite number expected, 0 or",
        ),
        (
            "version = 1\n[[capacity]]\nrate = 1\nprice = 1\n" + "[[capacity]]\nrate = 1\nprice = 2",
            "each rate once",
        ),
    ],
)
def test_every_fault_of_offers_is_named(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "offers.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        offers.read(path)
    (fault,) = caught.value.faults
    assert fault.startswith(f"{path}: ")
    assert expected in fault


def test_offers_for_unknown_classes_are_named() -> None:
    book = offers.loads('version = 1\n[[offer]]\nname = "moon"\nimprovement = 1\nprice = 1')
    with pytest.raises(ConfigError, match=r"offer\[0\]\.name = 'moon' is no class of the table"):
        book.by_class(storage.CLASSES)
