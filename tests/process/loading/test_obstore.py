# SPDX-License-Identifier: Apache-2.0
"""Stores of the package obstore as ``storage_options=``: their settings and credentials are used by our own requests."""

from __future__ import annotations

import json
import pathlib
import pickle
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from obstore import store as stores
from support.data import content, epoch, key
from support.node_ranks import launched
from support.processes import child
from support.servers import ACCESS, SECRET, Bucket, MemoryBucket

import foresee
import foresee.torch as ft
from foresee.errors import ConfigError, OriginError

SAMPLES = 12

RANKS = """
    import json, sys
    from obstore.store import S3Store
    from support.processes import print_json
    import foresee
    uri, name, url, access, secret = json.loads(sys.argv[1])
    keys = {"access_key_id": access, "secret_access_key": secret, "expires_at": None}
    store = S3Store(name, endpoint=url, region="us-east-1", credential_provider=lambda: keys)
    with foresee.Loader(uri, batch_size=4, storage_options=store) as loader:
        print_json(samples=sum(len(batch.ids) for batch in loader), node=loader.stats()["node"])
"""


class Provider:
    """Returns keys that end after ``lifetime``, and counts its calls; can be pickled."""

    def __init__(self, lifetime: timedelta, secret: str = SECRET) -> None:
        self.lifetime, self.secret, self.calls = lifetime, secret, 0

    def __call__(self) -> dict[str, Any]:
        self.calls += 1
        end = datetime.now(timezone.utc) + self.lifetime
        return {"access_key_id": ACCESS, "secret_access_key": self.secret, "token": None, "expires_at": end}


class LaterProvider(Provider):
    """The same as a coroutine."""

    async def __call__(self) -> dict[str, Any]:  # type: ignore[override]
        return super().__call__()


@pytest.fixture(autouse=True)
def filled(bucket: Bucket) -> None:
    """Fill the bucket."""
    for sample in range(SAMPLES):
        bucket.put(key(sample, SAMPLES), content(sample, 100))


def store_of(bucket: Bucket, **arguments: Any) -> stores.S3Store:
    """A store of the bucket."""
    place = {"endpoint": bucket.testbed.url, "region": "us-east-1"}
    return stores.S3Store(bucket.name, config=place, client_options={"allow_http": True}, **arguments)


def test_a_store_with_keys_is_read(bucket: Bucket) -> None:
    dataset = ft.FolderDataset(
        bucket.uri, storage_options=store_of(bucket, access_key_id=ACCESS, secret_access_key=SECRET)
    )
    assert [len(bytes(dataset[i][0].numpy())) for i in range(SAMPLES)] == [100] * SAMPLES


@pytest.mark.parametrize("kind", [Provider, LaterProvider])
def test_keys_of_a_provider_are_renewed_during_a_run(bucket: Bucket, kind: Callable[..., Provider]) -> None:
    provider = kind(timedelta(seconds=1))
    store = store_of(bucket, credential_provider=provider)
    with foresee.Loader(
        bucket.uri, batch_size=4, cache=foresee.Cache(ram=0), storage_options=store
    ) as loader:
        bucket.testbed.limits(latency_ms=15)
        while provider.calls < 3:
            assert len(epoch(loader)) == SAMPLES
        assert loader.audit()["ok"]


def test_a_pickled_data_set_has_its_provider_and_none_of_its_keys(bucket: Bucket) -> None:
    store = store_of(bucket, credential_provider=(provider := Provider(timedelta(hours=1))))
    pickled = pickle.dumps(ft.FolderDataset(bucket.uri, storage_options=store))
    assert ACCESS.encode() + b"\x94" not in pickled
    assert len(bytes(pickle.loads(pickled)[3][0].numpy())) == 100
    assert provider.calls == 1, "the copy has a provider of its own"


@pytest.mark.parametrize(
    ("secret", "message"),
    [("notthesecret", "SignatureDoesNotMatch"), ("", "secret_access_key is missing")],
)
def test_a_provider_of_wrong_keys_is_an_error(bucket: Bucket, secret: str, message: str) -> None:
    store = store_of(bucket, credential_provider=Provider(timedelta(hours=1), secret))
    with pytest.raises(OriginError, match=message) as caught:
        ft.FolderDataset(bucket.uri, storage_options=store)
    assert "notthesecret" not in str(caught.value)


def test_the_ranks_of_a_node_read_a_store_with_a_provider_themselves(
    bucket: Bucket, job: pathlib.Path
) -> None:
    facts = json.dumps([bucket.uri, bucket.name, bucket.testbed.url, ACCESS, SECRET])
    with (
        child(RANKS, facts, env=launched(0, 2, job)) as one,
        child(RANKS, facts, env=launched(1, 2, job)) as two,
    ):
        for program in (one, two):
            status, output, errors = program.end()
            assert status == 0, errors
            assert json.loads(output) == {"samples": SAMPLES / 2, "node": None}
            assert "give the keys or an AWS profile" in errors


def test_stores_of_google_azure_and_web_servers_have_their_settings() -> None:
    objects = {"train/a/1.jpg": b"one", "train/b/2.jpg": b"two"}
    with MemoryBucket(objects) as memory:
        url = memory.options["endpoint"]
        for uri, store in (
            ("gs://b", stores.GCSStore("b", config={"base_url": url, "skip_signature": True})),
            ("az://b", stores.AzureStore("b", account_name="me", account_key="aHVzaA==", endpoint=url)),
        ):
            assert ft.FolderDataset(f"{uri}/train", storage_options=store).classes == ["a", "b"]
        web = stores.HTTPStore(f"{url}/b", client_options={"allow_http": True})
        dataset = ft.FileDataset([f"{url}/b/train/a/1.jpg"], storage_options=web)
        assert bytes(dataset[0].numpy()) == b"one"


def test_settings_that_cannot_be_used_are_errors(bucket: Bucket, tmp_path: pathlib.Path) -> None:
    for store, message in (
        (stores.LocalStore(tmp_path), "give its directory as the data"),
        (stores.MemoryStore(), "cannot read its memory"),
        (
            stores.HTTPStore("https://host", client_options={"default_headers": {"x": "y"}}),
            "with default_headers",
        ),
        ({"credential_provider": "1"}, "only a store of obstore has"),
    ):
        with pytest.raises(ConfigError, match=message):
            ft.FolderDataset(bucket.uri, storage_options=store)  # type: ignore[arg-type]
    with pytest.raises(OriginError, match='settings are of "other"'):
        ft.FolderDataset(bucket.uri, storage_options=stores.S3Store("other", region="us-east-1"))
