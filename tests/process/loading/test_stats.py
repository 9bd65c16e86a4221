# SPDX-License-Identifier: Apache-2.0
"""`stats()` and `audit()` compared with the counters of the origin, and all values of `on_error`."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.data import assert_exact, content, epoch, key, make_folder
from support.servers import Testbed
from support.waiting import moment, wait_until

import foresee
import foresee.torch as ft
from foresee.errors import SampleFault

OPTIONS = {"skip_signature": "true", "region": "us-east-1"}


@pytest.fixture
def remote(
    serve: Callable[[pathlib.Path], Testbed], tmp_path: pathlib.Path, sizes: list[int]
) -> tuple[Testbed, str]:
    """The tree of `folder` in a bucket without signatures."""
    make_folder(tmp_path / "origin" / "bucket" / "train", sizes)
    return serve(tmp_path / "origin"), "s3://bucket/train"


def test_bytes_samples_and_retries_agree_with_what_the_origin_counted(
    remote: tuple[Testbed, str], sizes: list[int]
) -> None:
    testbed, uri = remote
    options = {**OPTIONS, "endpoint": testbed.url}
    with foresee.Loader(
        uri, batch_size=8, shuffle=True, seed=0, epochs=2, storage_options=options, cache=foresee.Cache(ram=0)
    ) as loader:
        testbed.reset()
        testbed.faults(
            {"kind": "status", "status": 500, "path": "/train/", "percent": 10, "seed": 4, "next": 12}
        )
        for _ in range(2):
            assert_exact(epoch(loader), sizes)
        # The last sample arrives before the slower of two hedged requests is cancelled.
        wait_until(lambda: loader.stats()["origin"]["in_flight"] == 0, what="the end of all requests")
        stats = loader.stats()
    counters = testbed.counters()
    reads, origin = stats["operations"]["origin"]["read"], stats["origin"]
    # Without a cache every epoch reads everything, except for reads in flight that also serve the next epoch.
    # The slower of two hedged requests is cancelled during its answer.
    joined = stats["operations"]["staging"]["read"]["ok"]
    assert reads["ok"]["samples"] + (joined["samples"] if joined else 0) >= 2 * len(sizes)
    assert sum(sizes) <= reads["ok"]["bytes"] <= counters["body_bytes"]
    assert counters["body_bytes"] <= 2 * sum(sizes) + origin["hedged_bytes"]
    # One of two hedged requests may fail without a retry.
    assert origin["retries"] <= counters["faults"] <= origin["retries"] + origin["hedges"]
    assert counters["faults"] <= reads["failed"]["count"] <= counters["faults"] + origin["hedges"]
    assert origin["throttles"] == origin["in_flight"] == origin["queued"] == 0


def test_missing_values_are_none_and_not_0(folder: pathlib.Path) -> None:
    loader = foresee.Loader(folder, batch_size=8, epochs=1, cache=foresee.Cache(ram=0))
    before = loader.stats()
    assert set(before["waits"].values()) == {None}
    for operations in before["operations"].values():
        for outcomes in operations.values():
            assert set(outcomes.values()) == {None}
    with loader:
        epoch(loader)
        after = loader.stats()
    assert after["operations"]["origin"]["read"]["ok"]["bytes"] == loader.index.total_bytes
    assert after["operations"]["disk"]["read"]["ok"] is None
    assert after["operations"]["ram"]["write"]["ok"] is None
    assert after["waits"]["disk"] is None
    for figures in (f for f in after["waits"].values() if f is not None):
        assert 0 <= figures["p50_s"] <= figures["p95_s"] <= figures["p99_s"] <= figures["max_s"]


def test_opening_a_file_is_counted_apart_from_reading_it(folder: pathlib.Path) -> None:
    with foresee.Loader(folder, batch_size=8, epochs=1, cache=foresee.Cache(ram=0)) as loader:
        epoch(loader)
        origin = loader.stats()["operations"]["origin"]
    assert origin["open"]["ok"]["count"] == origin["read"]["ok"]["count"] == len(loader.index)
    assert origin["open"]["ok"]["bytes"] == 0
    assert origin["read"]["ok"]["bytes"] == loader.index.total_bytes


def test_waits_are_counted_by_their_cause(remote: tuple[Testbed, str]) -> None:
    testbed, uri = remote
    options = {**OPTIONS, "endpoint": testbed.url}
    arguments: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 0, "epochs": 1}
    # High latency: the loop waits for reads.
    with foresee.Loader(uri, storage_options=options, **arguments) as loader:
        testbed.limits(latency_ms=500)
        loader.start()
        wait_until(lambda: testbed.counters()["in_flight"] > 0, what="the first read")
        epoch(loader)
        waits = loader.stats()["waits"]
    assert waits["origin_read"]["count"] >= 1
    assert waits["origin_retry"] is None
    # Requests are refused before the training loop waits: it waits for retries.
    testbed.reset()
    with foresee.Loader(uri, storage_options=options, **arguments) as loader:
        testbed.faults({"kind": "status", "status": 503, "retry_after_s": 2, "path": "/train/", "next": 16})
        loader.start()
        # The loader's count, because it reads an answer after the origin has counted it.
        wait_until(lambda: refused(loader) == 16, what="16 refused requests")
        wait_until(lambda: loader.stats()["origin"]["in_flight"] == 0, what="the end of all requests")
        epoch(loader)
        waits = loader.stats()["waits"]
    assert waits["origin_retry"]["count"] >= 1
    for cause in ("disk", "transform", "collate", "workers"):
        assert waits[cause] is None
    assert sum(figures["samples"] for figures in waits.values() if figures) == len(loader.index)


@pytest.mark.parametrize(
    ("fault", "at_least_s"),
    [
        # The pause that the origin requests. A hedged request is refused twice.
        ({"kind": "status", "status": 503, "retry_after_s": 1, "path": key(0, 96), "next": 2}, 1.0),
        # The shortest pause after a second fault.
        ({"kind": "reset", "path": key(0, 96), "next": 3}, 0.25),
    ],
    ids=["refused", "dropped"],
)
def test_the_wait_during_throttling_counts_as_retry(
    remote: tuple[Testbed, str], fault: dict[str, Any], at_least_s: float
) -> None:
    testbed, uri = remote
    options = {**OPTIONS, "endpoint": testbed.url}
    with foresee.Loader(uri, storage_options=options, batch_size=8) as loader:
        testbed.faults(fault)
        began = moment()
        next(iter(loader))
        whole = moment() - began
        waits = {cause: each["seconds"] for cause, each in loader.stats()["waits"].items() if each}
    assert at_least_s <= sum(waits.values()) <= whole
    # The pause begins with the fault, but counts as a retry only after the driver has received the fault.
    assert waits["origin_retry"] >= at_least_s / 2


def refused(loader: foresee.Loader) -> int:
    """Return the number of failed reads at the origin."""
    failed = loader.stats()["operations"]["origin"]["read"]["failed"]
    return failed["count"] if failed else 0


# ---- on_error


def broken(folder: pathlib.Path, samples: list[int]) -> foresee.Index:
    """An index of the tree, of which some files were deleted afterwards."""
    index = foresee.Loader(folder, batch_size=1).index
    for sample in samples:
        (folder / key(sample, len(index))).unlink()
    return index


def lengths_of(loader: foresee.Loader) -> list[int]:
    """Return the number of samples of each batch of an epoch."""
    return [len(batch) for batch in loader]


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("on_error", ["replace", "skip", "callable"])
def test_the_number_of_steps_never_changes(
    folder: pathlib.Path, sizes: list[int], world: int, on_error: str
) -> None:
    gone = [3, 4, 50, 51, 95]
    index = broken(folder, gone)
    chosen: Any = (lambda error: (error.sample + 10) % len(sizes)) if on_error == "callable" else on_error
    steps, returned, replaced, skipped = set(), [], 0, 0
    for rank in range(world):
        with foresee.Loader(
            index,
            batch_size=8,
            shuffle=True,
            seed=2,
            rank=rank,
            world_size=world,
            on_error=chosen,
            epochs=2,
        ) as loader:
            for _ in range(2):
                batches = [[(int(i), bytes(b.sample(p))) for p, i in enumerate(b.ids)] for b in loader]
                assert all(batches)
                steps.add(len(batches))
                returned += [sample for batch in batches for sample in batch]
                report = loader.audit()
                assert report["ok"], "requested samples follow the order; substitutes are counted separately"
                replaced += len(report["replaced"])
                skipped += len(report["skipped"])
    assert steps == {len(sizes) // 8 // world}
    assert_exact(returned, sizes)
    assert not {sample for sample, _ in returned} & set(gone)
    assert (replaced, skipped) == ((0, 2 * len(gone)) if on_error == "skip" else (2 * len(gone), 0))


def test_raise_names_sample_place_rank_cause_and_remedy_at_its_own_batch(folder: pathlib.Path) -> None:
    index = broken(folder, [20])
    with foresee.Loader(index, batch_size=8, rank=0, world_size=1) as loader:
        iterator = iter(loader)
        assert [batch.ids.tolist() for batch in (next(iterator), next(iterator))] == [
            list(range(8)),
            list(range(8, 16)),
        ]
        with pytest.raises(SampleFault) as caught:
            next(iterator)
    message = str(caught.value)
    assert (caught.value.sample, caught.value.kind, caught.value.rank) == (20, "missing", 0)
    for part in ("sample 20", index.sample_uri(20), "rank 0", "foresee index --update"):
        assert part in message


def test_a_temporary_fault_is_never_handled_by_on_error(
    remote: tuple[Testbed, str], sizes: list[int]
) -> None:
    testbed, uri = remote
    options = {**OPTIONS, "endpoint": testbed.url}
    with foresee.Loader(
        uri, batch_size=8, storage_options=options, on_error="replace", epochs=1, cache=foresee.Cache(ram=0)
    ) as loader:
        testbed.faults({"kind": "status", "status": 500, "path": "/train/", "next": 20})
        assert_exact(epoch(loader), sizes)
        assert loader.audit()["replaced"] == []
        assert loader.stats()["on_error"] == {"replaced": 0, "skipped": 0}


def test_the_torch_loader_replaces_and_skips_samples_too(folder: pathlib.Path, sizes: list[int]) -> None:
    index = broken(folder, [9])
    dataset = ft.FolderDataset(folder, index=index, decode=None)
    with ft.DataLoader(dataset, batch_size=8, on_error="skip") as loader:
        lengths = [len(samples) for samples, _ in loader]
    assert lengths == [8, 7] + [8] * 10
    with ft.DataLoader(dataset, batch_size=8, on_error="replace") as loader:
        batches = [samples for samples, _ in loader]
        (change,) = loader.audit()["replaced"]
    assert [len(samples) for samples in batches] == [8] * 12
    assert change["sample"] == 9
    substitute = change["substitute"]
    assert bytes(batches[1][1].numpy()) == content(substitute, sizes[substitute])


def test_the_audit_detects_a_wrong_sample_of_the_engine(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with foresee.Loader(folder, batch_size=8, shuffle=True, seed=0) as loader:
        epoch(loader)
        assert loader.audit()["ok"]
        # The engine returns another sample than planned, once.
        record_batch = loader._session.record_batch

        class Wrong:
            def __init__(self, raw: Any) -> None:
                self._raw = raw
                self.ids = np.array(raw.ids)
                self.ids[0] = (self.ids[0] + 1) % len(loader.index)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._raw, name)

            def __len__(self) -> int:
                return len(self._raw)

        def wrong_once(token: int, raw: Any) -> None:
            record_batch(token, Wrong(raw) if raw.step == 4 else raw)

        monkeypatch.setattr(loader._session, "record_batch", wrong_once)
        epoch(loader)
        report = loader.audit()
        assert not report["ok"]
        assert report["sum"] != report["expected"]
