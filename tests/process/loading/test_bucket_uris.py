# SPDX-License-Identifier: Apache-2.0
"""One bucket through the interface of each kind of store, with settings of the environment."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from support.servers import MemoryBucket

import foresee
import foresee.torch as ft
from foresee.errors import OriginDenied, OriginError, OriginMissing

SAMPLES = {f"train/{'ab'[i % 2]}/{i:02} é.jpg": bytes([i]) * (i + 1) for i in range(24)}
SETTINGS = {
    "gs://b": {"STORAGE_EMULATOR_HOST": "{url}"},
    "az://b": {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=me;AccountKey=aHVzaA==;BlobEndpoint={url}"},
    "abfss://b": {
        "AZURE_STORAGE_ACCOUNT": "me",
        "AZURE_STORAGE_KEY": "aHVzaA==",
        "AZURE_STORAGE_ENDPOINT": "{url}",
    },
    "abfss://b@me.dfs.core.windows.net": {"AZURE_STORAGE_KEY": "aHVzaA==", "AZURE_STORAGE_ENDPOINT": "{url}"},
    "hf://datasets/me/b": {"HF_TOKEN": "hush", "HF_ENDPOINT": "{url}/"},
}
SECRETS = ("aHVzaA", "hush")


@pytest.fixture(scope="module")
def bucket() -> Iterator[MemoryBucket]:
    """A bucket with the samples, and an object next to them."""
    with MemoryBucket({**SAMPLES, "other/x": b"no sample"}) as running:
        yield running


@pytest.fixture(params=SETTINGS)
def uri(request: pytest.FixtureRequest, bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch) -> str:
    """The bucket's URI for each kind of store, whose settings are in the environment."""
    for name, value in SETTINGS[request.param].items():
        monkeypatch.setenv(name, value.replace("{url}", bucket.options["endpoint"]))
    return str(request.param)


def test_a_bucket_is_the_same_data_set_by_each_uri(uri: str) -> None:
    dataset = ft.FolderDataset(f"{uri}/train")
    assert dataset.classes == ["a", "b"]
    keys = [sample_uri.split("/train/")[1] for sample_uri, _ in dataset.samples]
    read = {f"train/{key}": bytes(dataset[i][0].numpy()) for i, key in enumerate(keys)}
    assert read == SAMPLES


def test_an_epoch_of_an_index_returns_every_object_and_the_next_run_reads_the_disk(
    uri: str, tmp_path: pathlib.Path
) -> None:
    foresee.Index.build(f"{uri}/train", layout="folder", extensions=[".jpg"]).save(tmp_path / "train.fidx")
    for run in range(2):
        cache = foresee.Cache(ram=0, disk=tmp_path / "cache", disk_size="64MB")
        with foresee.Loader(
            tmp_path / "train.fidx", batch_size=4, shuffle=True, seed=3, epochs=2, cache=cache
        ) as loader:
            for _ in range(2):
                bodies = [
                    bytes(batch.data[batch.offsets[i] : batch.offsets[i + 1]])
                    for batch in loader
                    for i in range(len(batch.ids))
                ]
                assert sorted(bodies) == sorted(SAMPLES.values())
            assert loader.audit()["ok"]
            if run == 1:
                read = loader.stats()["operations"]["origin"]["read"]["ok"]
                assert read is None or read["bytes"] < loader.index.total_bytes


def test_a_missing_prefix_is_named_with_its_uri(uri: str) -> None:
    with pytest.raises(OriginMissing, match="/none") as caught:
        ft.FolderDataset(f"{uri}/none")
    assert not any(secret in str(caught.value) for secret in SECRETS)


def test_settings_that_are_missing_or_wrong_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(OriginError, match="set AZURE_STORAGE_ACCOUNT_NAME"):
        ft.FolderDataset("az://b/train")
    with pytest.raises(OriginError, match="az://container/prefix, and name the account"):
        ft.FolderDataset("abfss://b@onelake.example.com/train")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(OriginError, match=r"gs://b/train: .*none\.json"):
        ft.FolderDataset("gs://b/train")
    with pytest.raises(OriginError, match="it has token, endpoint, proxy_url"):
        ft.FolderDataset("hf://datasets/me/b/train", storage_options={"region": "x"})


def test_a_private_repository_needs_a_token(bucket: MemoryBucket) -> None:
    options = {"endpoint": bucket.options["endpoint"], "token": "hush"}
    with pytest.raises(OriginDenied, match=r"RepoNotFound.*HF_TOKEN") as caught:
        ft.FolderDataset("hf://datasets/you/b", storage_options=options)
    assert "hush" not in str(caught.value)
