# SPDX-License-Identifier: Apache-2.0
"""Training from a bucket: a real S3 server that checks signatures, and faults in front of it.

The testbed between the two counts the requests; the loader's own counters are not used.
"""

from __future__ import annotations

import logging
import pathlib
import socket
from collections.abc import Callable

import pytest
from support.data import assert_exact, content, epoch, key
from support.servers import SECRET, Bucket, Testbed
from torchvision.datasets import ImageFolder

import foresee
import foresee.torch as ft
from foresee.errors import OriginDenied, OriginError, OriginMissing, SampleFault, StallTimeout


def loader(bucket: Bucket, **arguments: object) -> foresee.Loader:
    """A loader with shuffled batches of 8 and memory for all data, by default."""
    settings = {
        "batch_size": 8,
        "shuffle": True,
        "seed": 3,
        "cache": foresee.Cache(ram="64MB"),
        "storage_options": bucket.options,
        **arguments,
    }
    return foresee.Loader(bucket.uri, **settings)  # type: ignore[arg-type]


def only_fault(bucket: Bucket, damaged: int, index: foresee.Index, **arguments: object) -> SampleFault:
    """Run an epoch over a bucket with one damaged sample; returns its error."""
    with foresee.Loader(
        index, batch_size=8, storage_options=bucket.options, cache=foresee.Cache(ram="64MB"), **arguments
    ) as damaged_loader:
        with pytest.raises(SampleFault) as caught:
            epoch(damaged_loader)
        error = caught.value
    assert error.sample == damaged
    assert error.uri == f"{bucket.uri}/{key(damaged, len(index))}"
    assert error.permanent
    return error


def test_classes_labels_and_order_of_a_bucket_are_those_of_torchvision_on_the_same_tree(
    bucket: Bucket, folder: pathlib.Path
) -> None:
    # Names whose order differs by bytes, by locale and without case.
    for name in (
        "Zebra/b.PNG",
        "Zebra/A.jpeg",
        "zebra/a b+c%d.jpg",
        "Öl/ä.jpg",
        "ant/x/deep.jpg",
        "bee/no.txt",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    bucket.put_folder(folder)
    theirs = ImageFolder(str(folder))
    ours = ft.FolderDataset(bucket.uri, storage_options=bucket.options)
    assert ours.classes == theirs.classes
    assert ours.class_to_idx == theirs.class_to_idx
    assert ours.targets == theirs.targets
    assert [uri.removeprefix(f"{bucket.uri}/") for uri, _ in ours.samples] == [
        pathlib.Path(path).relative_to(folder).as_posix() for path, _ in theirs.samples
    ]
    assert [bytes(ours[i][0].numpy()) for i in range(len(ours))] == [
        pathlib.Path(path).read_bytes() for path, _ in theirs.samples
    ]


def test_three_epochs_deliver_exact_bytes_and_read_each_object_once(
    bucket: Bucket, folder: pathlib.Path, sizes: list[int]
) -> None:
    bucket.put_folder(folder)
    with loader(bucket, epochs=3) as training:
        bucket.testbed.reset()
        orders = []
        for _ in range(3):
            returned = epoch(training)
            assert_exact(returned, sizes)
            assert training.audit()["ok"]
            orders.append([sample for sample, _ in returned])
    for order in orders:
        assert sorted(order) == list(range(len(sizes)))
    assert orders[0] != orders[1] != orders[2]
    counters, origin = bucket.testbed.counters(), training.stats()["origin"]
    assert origin["retries"] == 0
    # The answer to a hedge may arrive too, or be cancelled, which costs some bytes.
    assert 0 <= counters["body_bytes"] - sum(sizes) <= origin["hedged_bytes"]
    assert 0 <= counters["requests"]["GET"]["200"] - counters["lists"] - len(sizes) <= origin["hedges"]


def test_two_ranks_together_read_the_bucket_once_per_epoch_without_a_cache(
    bucket: Bucket, folder: pathlib.Path, sizes: list[int]
) -> None:
    bucket.put_folder(folder)
    index = loader(bucket).index
    bucket.testbed.reset()
    returned: list[tuple[int, bytes]] = []
    hedged = 0
    for rank in range(2):
        with foresee.Loader(
            index,
            batch_size=8,
            shuffle=True,
            seed=1,
            rank=rank,
            world_size=2,
            epochs=1,
            storage_options=bucket.options,
            cache=foresee.Cache(ram=0),
        ) as one:
            returned += epoch(one)
            hedged += one.stats()["origin"]["hedged_bytes"]
    assert_exact(returned, sizes)
    assert sorted(sample for sample, _ in returned) == list(range(len(sizes)))
    assert 0 <= bucket.testbed.counters()["body_bytes"] - sum(sizes) <= hedged


def test_with_a_disk_cache_of_an_earlier_run_the_bucket_is_not_read(
    bucket: Bucket, folder: pathlib.Path, tmp_path: pathlib.Path, sizes: list[int]
) -> None:
    bucket.put_folder(folder)
    index = loader(bucket).index

    def run() -> int:
        cache = foresee.Cache(ram=0, disk=tmp_path / "cache", disk_size="1GB")
        bucket.testbed.reset()
        # With the latency of real buckets: a local one would be as fast as the disk for a loop that only waits.
        bucket.testbed.limits(latency_ms=40)
        with foresee.Loader(
            index, batch_size=8, shuffle=True, seed=0, storage_options=bucket.options, cache=cache
        ) as training:
            for _ in range(3):
                assert_exact(epoch(training), sizes)
            return bucket.testbed.counters()["body_bytes"] - training.stats()["origin"]["hedged_bytes"]

    # A copy that the disk has not written when its batch is due is dropped: at most the first batch.
    assert run() <= sum(sizes) + 8 * max(sizes)
    assert run() == 0


def test_a_changed_object_is_read_anew_and_not_taken_from_the_cache_of_an_earlier_run(
    bucket: Bucket, folder: pathlib.Path, tmp_path: pathlib.Path, sizes: list[int]
) -> None:
    bucket.put_folder(folder)
    cache = {"disk": tmp_path / "cache", "disk_size": "1GB"}
    for round_ in range(2):
        with loader(bucket, cache=foresee.Cache(ram=0, **cache)) as training:  # type: ignore[arg-type]
            returned = dict(epoch(training) + epoch(training))
        expected = b"another" if round_ else content(7, sizes[7])
        assert returned[7] == expected
        bucket.put(key(7, len(sizes)), b"another")


def test_wrong_credentials_are_refused_before_training_and_are_not_shown(
    bucket: Bucket, folder: pathlib.Path
) -> None:
    bucket.put_folder(folder)
    index = loader(bucket).index
    options = {**bucket.options, "secret_access_key": "not-the-right-one"}
    with pytest.raises(OriginDenied, match=bucket.uri) as listing:
        foresee.Loader(bucket.uri, batch_size=8, storage_options=options)
    with (
        foresee.Loader(index, batch_size=8, storage_options=options) as training,
        pytest.raises(OriginDenied, match=bucket.name) as starting,
    ):
        training.start()
    for error in (listing, starting):
        assert isinstance(error.value, PermissionError)
        assert "credentials" in str(error.value)
        assert "not-the-right-one" not in str(error.value)
        assert SECRET not in str(error.value)


def test_an_unknown_user_gets_the_servers_message(bucket: Bucket, folder: pathlib.Path) -> None:
    bucket.put_folder(folder)
    options = {**bucket.options, "access_key_id": "nobody"}
    with pytest.raises(OriginError, match="access key ID") as caught:
        foresee.Loader(bucket.uri, batch_size=8, storage_options=options)
    assert SECRET not in str(caught.value)


def test_an_endpoint_without_a_server_is_an_error_with_bucket_and_remedy(bucket: Bucket) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        options = {**bucket.options, "endpoint": f"http://127.0.0.1:{listener.getsockname()[1]}"}
        with pytest.raises(OriginError, match=f"{bucket.uri}.*check the endpoint"):
            foresee.Loader(bucket.uri, batch_size=8, storage_options=options)


def test_a_bucket_that_does_not_exist_is_missing(bucket: Bucket) -> None:
    with pytest.raises(OriginMissing, match="s3://no-such-bucket/train") as caught:
        foresee.Loader("s3://no-such-bucket/train", batch_size=8, storage_options=bucket.options)
    assert isinstance(caught.value, FileNotFoundError)


def test_an_empty_prefix_is_an_error_that_names_it(bucket: Bucket) -> None:
    bucket.put("elsewhere/a.jpg", b"x")
    with pytest.raises(OriginMissing, match=f'{bucket.uri}/none; .* has the prefixes "elsewhere"'):
        foresee.Loader(f"{bucket.uri}/none", batch_size=8, storage_options=bucket.options)


def test_an_object_deleted_after_indexing_is_named_at_its_batch(bucket: Bucket, folder: pathlib.Path) -> None:
    bucket.put_folder(folder)
    index = loader(bucket).index
    bucket.delete(key(40, len(index)))
    error = only_fault(bucket, 40, index)
    assert error.kind == "missing"
    assert isinstance(error.__cause__, FileNotFoundError)


@pytest.mark.parametrize(
    "body", [b"", b"short", b"x" * 5000, None], ids=["emptied", "truncated", "grown", "same_size"]
)
def test_an_object_that_changed_since_it_was_indexed_is_an_error_and_versions_never_mix(
    bucket: Bucket, folder: pathlib.Path, sizes: list[int], body: bytes | None
) -> None:
    bucket.put_folder(folder)
    index = loader(bucket).index
    bucket.put(key(17, len(index)), b"y" * sizes[17] if body is None else body)
    error = only_fault(bucket, 17, index)
    assert error.kind == "changed"
    assert "foresee index --update" in str(error)


def test_plain_reads_of_a_dataset_share_connections(
    bucket: Bucket, folder: pathlib.Path, sizes: list[int]
) -> None:
    bucket.put_folder(folder)
    dataset = ft.FolderDataset(bucket.uri, decode=len, storage_options=bucket.options)
    bucket.testbed.reset()
    assert sorted(dataset[i][0] for i in range(len(dataset))) == sorted(sizes)
    counters = bucket.testbed.counters()
    assert sum(counters["requests"]["GET"].values()) == len(sizes)
    # A connection may not be free again when the next read begins.
    assert counters["connections"] <= len(sizes) // 4


def test_a_storm_of_refusals_slows_the_epoch_and_costs_no_sample(
    bucket: Bucket, folder: pathlib.Path, sizes: list[int]
) -> None:
    bucket.put_folder(folder)
    with loader(bucket, cache=foresee.Cache(ram=0)) as training:
        bucket.testbed.reset()
        bucket.testbed.faults({"kind": "status", "status": 503, "next": 30, "path": "/train/"})
        for _ in range(5):
            assert_exact(epoch(training), sizes)
        after = training.stats()["origin"]
    counters = bucket.testbed.counters()
    assert counters["requests"]["GET"]["503"] == 30
    # The client must recover after the storm.
    assert after["throttles"] == after["retries"] == 30
    assert after["limit"] > 1
    assert counters["max_in_flight"] > 1


def test_broken_bodies_resets_and_server_errors_are_read_again(
    bucket: Bucket, folder: pathlib.Path, sizes: list[int]
) -> None:
    bucket.put_folder(folder)
    with loader(bucket) as training:
        bucket.testbed.reset()
        bucket.testbed.faults(
            {"kind": "short_body", "path": "/train/", "next": 9, "percent": 20, "seed": 1},
            {"kind": "reset", "path": "/train/", "next": 9, "percent": 20, "seed": 2},
            {"kind": "status", "status": 500, "path": "/train/", "next": 9, "percent": 20, "seed": 3},
        )
        assert_exact(epoch(training), sizes)
        assert training.audit()["ok"]
    assert bucket.testbed.counters()["faults"] >= 10


def test_a_stalled_connection_is_closed_and_the_request_repeated(
    bucket: Bucket, folder: pathlib.Path, sizes: list[int]
) -> None:
    bucket.put_folder(folder)
    bucket.testbed.faults({"kind": "stall", "path": "/train/", "next": 2})
    with loader(bucket) as training:
        assert_exact(epoch(training), sizes)
        origin = training.stats()["origin"]
        assert origin["hedges"] + origin["retries"] >= 2
    assert bucket.testbed.counters()["faults"] == 2


def test_an_origin_that_never_answers_ends_in_the_given_timeout(
    bucket: Bucket, folder: pathlib.Path, sizes: list[int]
) -> None:
    bucket.put_folder(folder)
    with loader(bucket, timeout=0.5) as training:
        bucket.testbed.faults({"kind": "stall", "path": "/train/"})
        iterator = iter(training)
        with pytest.raises(StallTimeout, match="500 ms"):
            next(iterator)


def test_secrets_reach_neither_index_ledger_log_nor_message(
    bucket: Bucket,
    folder: pathlib.Path,
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket.put_folder(folder)
    run = tmp_path / "run"
    monkeypatch.setenv("FORESEE_TRACE", str(run))
    monkeypatch.setenv("FORESEE_LOG", "debug")
    caplog.set_level(logging.DEBUG)
    shown = []
    with loader(bucket, on_error="replace") as training:
        training.index.save(tmp_path / "index.fidx")
        bucket.delete(key(5, len(training.index)))
        bucket.testbed.faults({"kind": "status", "status": 503, "next": 3, "path": "/train/"})
        epoch(training)
        shown += [repr(training), repr(training.stats()), repr(training.state_dict()), repr(training.audit())]
    with pytest.raises(OriginError) as caught:
        foresee.Loader(
            bucket.uri,
            batch_size=1,
            storage_options={**bucket.options, "region": "", "no_such_option": SECRET},
        )
    shown += [str(caught.value), repr(caught.value), caplog.text]
    files = [path for path in [tmp_path / "index.fidx", *run.rglob("*")] if path.is_file()]
    assert any(path.suffix == ".arrow" for path in files)
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path
    for text in shown:
        assert SECRET not in text


def test_the_query_of_a_presigned_url_is_used_and_never_shown(
    serve: Callable[[pathlib.Path], Testbed],
    folder: pathlib.Path,
    tmp_path: pathlib.Path,
    sizes: list[int],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    testbed = serve(folder.parent)
    run = tmp_path / "run"
    monkeypatch.setenv("FORESEE_TRACE", str(run))
    caplog.set_level(logging.DEBUG)
    signature = "5ignature-0f-nobody"
    uri = f"{testbed.url}/data?X-Amz-Credential=who&X-Amz-Signature={signature}"
    keys = [key(sample, len(sizes)).encode() for sample in range(len(sizes))]
    index = foresee.Index.build(uri, layout="flat", keys=keys, options={})
    index.save(tmp_path / "index.fidx")
    shown = [index.uri, index.sample_uri(0), repr(index.describe(3))]
    with pytest.raises(OriginMissing) as caught:
        foresee.Index.build(uri, layout="flat", keys=[b"none.jpg"], options={})
    shown.append(str(caught.value))
    (folder / key(5, len(sizes))).unlink()
    with foresee.Loader(index, uri=uri, batch_size=8, on_error="replace") as training:
        assert len(epoch(training)) == len(sizes)
        shown += [repr(training.stats()), repr(training.state_dict()), repr(training.audit())]
    testbed.faults({"kind": "status", "status": 401})
    with foresee.Loader(index, uri=uri, batch_size=8) as training, pytest.raises(OriginError) as caught:
        training.start()
    shown += [str(caught.value), caplog.text]
    for text in shown:
        assert signature not in text
    files = [path for path in [tmp_path / "index.fidx", *run.rglob("*")] if path.is_file()]
    assert any(path.suffix == ".arrow" for path in files)
    for path in files:
        assert signature.encode() not in path.read_bytes(), path
