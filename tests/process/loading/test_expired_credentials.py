# SPDX-License-Identifier: Apache-2.0
"""Credentials that a store refuses, at the start and in the middle of a run, for each kind of store."""

from __future__ import annotations

import collections
from collections.abc import Iterator

import pytest
from support.servers import MemoryBucket

import foresee
import foresee.torch as ft
from foresee.errors import OriginDenied, SampleFault

SAMPLES = {f"train/{'ab'[i % 2]}/{i:02}.jpg": bytes([i]) * (i + 1) for i in range(12)}
# Settings of the environment, the answer to wrong or expired credentials, and a source that the error names.
STORES = {
    "s3://b": (
        {
            "AWS_ENDPOINT_URL": "{url}",
            "AWS_ACCESS_KEY_ID": "AKIAKEY",
            "AWS_SECRET_ACCESS_KEY": "hush",
            "AWS_SESSION_TOKEN": "hush",
            "AWS_REGION": "here",
        },
        (400, "ExpiredToken"),
        "AWS_SESSION_TOKEN",
    ),
    "gs://b": ({"STORAGE_EMULATOR_HOST": "{url}"}, (401, "InvalidToken"), "GOOGLE_APPLICATION_CREDENTIALS"),
    "az://b": (
        {
            "AZURE_STORAGE_CONNECTION_STRING": "BlobEndpoint={url};AccountName=me;SharedAccessSignature=sig=hush"
        },
        (403, "AuthenticationFailed"),
        "AZURE_STORAGE_SAS_TOKEN",
    ),
    "hf://datasets/me/b": ({"HF_TOKEN": "hush", "HF_ENDPOINT": "{url}"}, (401, ""), "HF_TOKEN"),
}


@pytest.fixture
def bucket() -> Iterator[MemoryBucket]:
    """A bucket with the samples."""
    with MemoryBucket(SAMPLES) as running:
        yield running


def read_forever(loader: foresee.Loader) -> None:
    """Read epochs until an error."""
    while True:
        collections.deque(loader, maxlen=0)


@pytest.mark.parametrize("store", STORES)
def test_a_refusal_names_the_sources_of_credentials_at_the_start_and_during_a_run(
    store: str, bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, (status, code), source = STORES[store]
    for name, value in settings.items():
        monkeypatch.setenv(name, value.replace("{url}", bucket.options["endpoint"]))
    refusal = {"kind": "status", "status": status, "code": code}
    with foresee.Loader(f"{store}/train", batch_size=4, cache=foresee.Cache(ram=0)) as loader:
        assert sum(len(batch.ids) for batch in loader) == len(SAMPLES)
        bucket.faults(refusal)
        # Some batches have been read ahead.
        with pytest.raises(SampleFault, match=source) as refused:
            read_forever(loader)
    assert refused.value.kind == "denied"
    with pytest.raises(OriginDenied, match=source) as denied:
        ft.FolderDataset(f"{store}/train")
    for error in (refused, denied):
        assert str(status) in str(error.value)
        assert "hush" not in str(error.value)
    bucket.faults()
    assert ft.FolderDataset(f"{store}/train").classes == ["a", "b"], "later credentials are used"
