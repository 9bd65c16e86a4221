# SPDX-License-Identifier: Apache-2.0
"""``repr`` of loaders and datasets, and ``report()``."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

import foresee
import foresee.torch as ft
from foresee._loading import summary
from foresee._loading.state_steps import avoiding


def make(data, **changes):
    return foresee.Loader(data, **({"batch_size": 4, "rank": 0, "world_size": 1} | changes))


def test_a_loader_shows_samples_batches_rank_and_cache(folder, tmp_path):
    cache = foresee.Cache(ram="64MB", disk=tmp_path / "cache", disk_size="1GB")
    loader = make(folder, rank=1, world_size=3, cache=cache)
    shown = "Loader(23 samples, 2 batches of 4 per epoch, rank 1 of 3, cache 64 MB of RAM"
    assert repr(loader) == f"{shown} and 1 GB of disk in {tmp_path / 'cache'})"
    assert not (tmp_path / "cache").exists(), "it starts nothing"
    loader.load_state_dict(avoiding(loader.state_dict(), [3]))
    assert "avoids 1" in repr(loader)
    loader.close()
    assert repr(loader).endswith("closed)")
    loader._session._process = -1
    assert repr(loader).endswith("of the parent process)"), "as in a forked child"


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("world", "batch"), [*itertools.product([1, 2, 5], [1, 4, 30])])
def test_the_batches_shown_are_those_of_an_epoch(folder, world, batch, drop_last):
    loader = make(folder, rank=0, world_size=world, batch_size=batch, drop_last=drop_last)
    assert loader._batches() == len(loader)


def test_the_repr_shows_a_provisional_rank_and_a_missing_cache(folder, monkeypatch):
    monkeypatch.setenv("FORESEE_OFF", "1")
    dataset = ft.FolderDataset(folder)
    loader = ft.DataLoader(dataset, 4, shuffle=True, seed=1)
    assert repr(loader) == (
        "DataLoader(23 samples, 6 batches of 4 per epoch, rank 0 of 1 until the first iter(), no cache (FORESEE_OFF))"
    )
    iter(loader)
    assert "rank 0 of 1, no cache" in repr(loader)
    assert "batches of 4 per epoch" in repr(ft.DataLoader(dataset, 4, shuffle=True))
    assert "batches of their own per epoch" in repr(ft.DataLoader(dataset, batch_sampler=[[0], [1, 2]]))


def test_unfinished_loaders_have_a_repr(folder):
    for kind in (foresee.Loader, ft.DataLoader, ft.FolderDataset):
        assert repr(object.__new__(kind)) == f"{kind.__name__}(not open)"


def test_datasets_show_samples_size_classes_and_place(folder, array):
    assert repr(ft.FolderDataset(folder)) == f"FolderDataset(23 samples, 184 B, 3 classes, {folder})"
    assert repr(ft.ArrayDataset(array)) == f"ArrayDataset(17 samples, 408 B, {array})"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://bucket/train", "s3://bucket/train"),
        ("https://user:secret@host/data?token=1#x", "https://host/data"),
        ("/data/what?", "/data/what?"),
    ],
)
def test_secrets_of_a_uri_are_not_shown(uri, shown):
    assert summary.shown_uri(uri) == shown


def test_a_report_has_the_sources_of_bytes_and_the_causes_of_waits(folder):
    loader = make(folder, shuffle=True, seed=1, cache=foresee.Cache(ram="64MB"))
    assert loader.report() == "nothing was read yet"
    for _ in range(2):
        list(loader)
    lines = loader.report().splitlines()
    assert [line.split()[0] for line in lines] == ["bytes", "hits", "cache", "waited", "hint"]
    assert "origin 184 B" in lines[0]
    assert "of 64 MB" in lines[2]
    loader.close()
    assert "origin 184 B" in loader.report().splitlines()[0]


def test_a_report_of_plain_reads_has_bytes_and_waits_only(folder, monkeypatch):
    monkeypatch.setenv("FORESEE_OFF", "1")
    loader = ft.DataLoader(ft.FolderDataset(folder), 4)
    assert loader.report().splitlines()[0] == "plain reads, FORESEE_OFF=1"
    assert sum(len(batch[0]) for batch in loader) == 23
    report = loader.report()
    assert "184 B of 23 samples from the origin" in report
    # The time of a plain read is all measured as `origin_read`; of reading and returning, either may take longer.
    assert re.search(r"origin_read [0-9.]+ m?s", report), report


def stats(waits, elapsed=100.0, **more):
    stats = {"elapsed_s": elapsed, "waits": {cause: {"seconds": seconds} for cause, seconds in waits.items()}}
    return stats | {"operations": {}, "on_error": {"replaced": 0, "skipped": 0}, "avoided": 0} | more


@pytest.mark.parametrize("cause", summary._HINTS)
def test_the_longest_wait_has_a_hint(cause):
    lines = summary.report(stats({"plan": 1.0, cause: 50.0})).splitlines()
    assert lines[0].startswith(
        f"waited    {50 if cause == 'plan' else 51} s of 100 s since start: {cause} 50 s"
    )
    assert lines[1] == f"hint      {cause}: {summary._HINTS[cause]}"


def test_every_cause_of_waiting_has_a_hint(folder):
    assert set(make(folder).stats()["waits"]) == set(summary._HINTS)


def node(**changes: Any) -> dict[str, Any]:
    def count(size: int) -> dict[str, int]:
        return {"samples": 1, "bytes": size}

    consumer = {"memory": count(4_000), "disk": count(3_000), "peers": count(1_000), "origin": count(2_000)}
    origin = {"requests": 2, "bytes": 4_000, "retries": 1, "throttles": 0, "hedges": 0}
    host = {"consumers": [consumer, consumer], "origin": origin}
    one = {"role": "rank_consumer", "attached": True, "ram_bytes": 10**9, "disk_bytes": 0, "host": host}
    return one | changes


def test_a_report_has_the_cache_of_the_node_and_all_that_it_delivered():
    assert summary.report(stats({}, node=None)) == "nothing was read yet"
    lines = summary.report(stats({}, node=node())).splitlines()
    assert lines == [
        "node      the host of the node's cache is in another rank's process, 1 GB of RAM",
        "          20 kB delivered to its 2 consumers; 4 kB read from the origin (1 retries)",
    ]


def test_a_report_names_the_end_of_the_host_of_the_cache():
    ended = node(role="service_consumer", attached=False, disk_bytes=2 * 10**12, host=None)
    assert summary.report(stats({}, node=ended)) == (
        "node      a service has the node's cache, 1 GB of RAM and 2 TB of disk; its host has ended, "
        "this rank reads the origin itself"
    )


def test_a_loop_with_little_wait_has_no_hint_and_changed_samples_are_counted():
    report = summary.report(
        stats(
            {"copy": 0.5},
            origin={"retries": 2, "throttles": 0, "hedges": 1},
            on_error={"replaced": 3, "skipped": 0},
            avoided=2,
        )
    )
    assert "hint      the loop waited for 0.5% of the time; nothing to gain here" in report
    assert "origin    2 retries, 1 hedges" in report
    assert "samples   3 replaced, 2 avoided" in report


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (999_600, "1 MB"), (1500, "1.5 kB"), (10**18, "1e+03 PB")],
)
def test_sizes_have_three_digits(count, shown):
    assert summary.shown_bytes(count) == shown
