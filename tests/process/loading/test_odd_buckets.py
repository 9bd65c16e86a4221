# SPDX-License-Identifier: Apache-2.0
"""Buckets with keys that a directory cannot have, and endpoints with wrong answers: batches, or errors with a remedy."""

from __future__ import annotations

import pathlib

import pytest
from support.servers import MemoryBucket

import foresee
import foresee.torch as ft
from foresee._loading import credentials
from foresee.errors import IndexInvalid, OriginDenied, OriginError, OriginMissing

PLAIN = {"train/cat/1.png": b"one", "train/dog/1.png": b"two"}


def data_of(bucket: MemoryBucket, **arguments: object) -> ft.FolderDataset:
    """The bucket's pictures."""
    return ft.FolderDataset("s3://b/train", storage_options=bucket.options, **arguments)


@pytest.mark.parametrize(
    "key",
    [
        "train/_temporary//0/part",
        "train/../x.txt",
        "train//x.txt",
        "train/cat/./x.txt",
        "train/cat/a\tb.txt",
        "train/cat/",
        "train/",
        "train/.ipynb_checkpoints/x",
    ],
)
def test_a_bucket_with_other_objects_than_samples_is_usable(key: str) -> None:
    with MemoryBucket({**PLAIN, key: b"odd"}) as bucket:
        assert data_of(bucket).class_to_idx == {"cat": 0, "dog": 1}
        assert len(data_of(bucket)) == 2


def test_a_key_with_an_empty_part_is_a_sample() -> None:
    with MemoryBucket({**PLAIN, "train/cat//x.png": b"odd", "train/cat//y/ z.png": b"nested"}) as bucket:
        data = data_of(bucket)
        assert [
            (bytes(picture.numpy()), label) for picture, label in (data[i] for i in range(len(data)))
        ] == [
            (b"one", 0),
            (b"odd", 0),
            (b"nested", 0),
            (b"two", 1),
        ]
        with ft.DataLoader(data, batch_size=4) as loader:
            assert [bytes(one.numpy()) for one in next(iter(loader))[0]] == [
                b"one",
                b"odd",
                b"nested",
                b"two",
            ]


@pytest.mark.parametrize(
    ("key", "pattern"),
    [
        ("train/cat/./x.png", "cat/./"),
        ("train/../x.png", ".."),
        ("train/cat/a\nb.png", "a?b.png"),
        ("train//x.png", "/x.png"),
    ],
)
def test_a_sample_with_an_unusable_key_is_named_and_can_be_excluded(key: str, pattern: str) -> None:
    with MemoryBucket({**PLAIN, key: b"odd"}) as bucket:
        with pytest.raises((OriginError, IndexInvalid), match=r"x\.png|a\\nb\.png") as caught:
            data_of(bucket)
        assert "rename the object, or leave it out with exclude=" in str(caught.value)
        if key != "train//x.png":
            assert len(data_of(bucket, exclude=pattern)) == 2
            with foresee.Loader(
                "s3://b/train", batch_size=2, exclude=[pattern], storage_options=bucket.options
            ) as loader:
                assert len(loader.index) == 2


def test_an_empty_class_is_treated_alike_in_a_bucket_and_a_directory(tmp_path: pathlib.Path) -> None:
    for name, data in PLAIN.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "train" / "between").mkdir()
    with MemoryBucket({**PLAIN, "train/between/": b""}) as bucket:
        messages = []
        for uri, options in ((tmp_path / "train", None), ("s3://b/train", bucket.options)):
            with pytest.raises(IndexInvalid, match="the first is between") as caught:
                ft.FolderDataset(uri, storage_options=options)
            messages.append(str(caught.value).partition("first is")[2])
            data = ft.FolderDataset(uri, allow_empty=True, storage_options=options)
            assert data.class_to_idx == {"between": 0, "cat": 1, "dog": 2}
            assert data.targets == [1, 2]
            data = ft.FolderDataset(uri, exclude="between", storage_options=options)
            assert data.class_to_idx == {"cat": 0, "dog": 1}
        assert messages[0] == messages[1]


def test_the_error_of_an_empty_prefix_names_its_neighbours() -> None:
    with (
        MemoryBucket(PLAIN) as bucket,
        pytest.raises(OriginMissing, match=r's3://b has the prefixes "train"$'),
    ):
        foresee.Loader("s3://b/trains", batch_size=1, storage_options=bucket.options)


ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>no</Message></Error>"


@pytest.mark.parametrize(
    ("answer", "kind", "remedies"),
    [
        (
            (200, "<html><title>MinIO Console</title></html>", {"Content-Type": "text/html"}),
            OriginError,
            ["a web page came instead of the list", "MinIO Console", "endpoint", "AWS_ENDPOINT_URL"],
        ),
        ((200, "hello", {}), OriginError, ["it is no list of a bucket", "AWS_ENDPOINT_URL"]),
        (
            (403, ERROR.format("RequestTimeTooSkewed"), {}),
            OriginDenied,
            ["Z here and ", " GMT at the store", "set this host's clock"],
        ),
        (
            (301, ERROR.format("PermanentRedirect"), {"x-amz-bucket-region": "eu-west-1"}),
            OriginError,
            ['set region "eu-west-1"', "AWS_REGION=eu-west-1"],
        ),
    ],
    ids=["html", "text", "clock", "region"],
)
def test_each_answer_of_an_endpoint_has_the_remedy_of_its_cause(
    answer: tuple[int, str, dict[str, str]], kind: type[OriginError], remedies: list[str]
) -> None:
    status, body, headers = answer
    rule = {"kind": "answer", "status": status, "body": body, "headers": headers}
    with MemoryBucket(PLAIN, rule) as bucket, pytest.raises(kind) as caught:
        data_of(bucket)
    assert type(caught.value) is kind
    for remedy in remedies:
        assert remedy in str(caught.value)


def test_a_profile_that_is_not_read_without_botocore_is_named_where_credentials_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    denied = {"kind": "status", "status": 403, "code": "AccessDenied"}
    monkeypatch.setattr(credentials, "reads_profiles", lambda: False)
    monkeypatch.setenv("AWS_PROFILE", "lab")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with MemoryBucket(PLAIN, denied) as bucket:
        given = bucket.options
        # No instance answers there.
        without_keys = {"endpoint": given["endpoint"], "metadata_endpoint": "http://127.0.0.1:1"}
        for options, is_named in ((given, False), (without_keys, True)):
            with pytest.raises(OriginError) as caught:
                foresee.Loader("s3://b/train", batch_size=1, storage_options=options)
            text = str(caught.value)
            assert ("pip install botocore" in text) is is_named
            assert ("aws configure export-credentials --profile lab" in text) is is_named
