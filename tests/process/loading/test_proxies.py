# SPDX-License-Identifier: Apache-2.0
"""Stores behind a forward proxy, by the environment and by ``proxy_url``.

The store's name cannot be resolved, so requests reach it only through the proxy.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from support.forward_proxy import ForwardProxy
from support.servers import MemoryBucket

import foresee.torch as ft
from foresee.errors import OriginError

OBJECTS = {"train/a/1.jpg": b"one", "train/b/2.jpg": b"two"}
# URI and options of the bucket for each store at `url`.
STORES = {
    "s3://b": {"endpoint": "{url}", "access_key_id": "a", "secret_access_key": "hush", "region": "here"},
    "gs://b": {"base_url": "{url}", "bearer_token": "hush"},
    "az://b": {"endpoint": "{url}", "account_name": "me", "account_key": "aHVzaA=="},
    "hf://datasets/me/b": {"endpoint": "{url}", "token": "hush"},
    "{url}/b": {},
}
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")


@pytest.fixture(scope="module")
def bucket() -> Iterator[MemoryBucket]:
    """A bucket with two samples."""
    with MemoryBucket(OBJECTS) as running:
        yield running


@pytest.fixture
def proxy(bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForwardProxy]:
    """A proxy that knows the bucket's server as `store.test`."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with ForwardProxy({"store.test": bucket.options["endpoint"].removeprefix("http://")}) as running:
        yield running


def read(store: str, url: str, **options: str) -> bytes:
    """Read one object of the bucket at ``url``."""
    given = {name: value.replace("{url}", url) for name, value in STORES[store].items()}
    uri = store.replace("{url}", url)
    dataset = ft.FileDataset([f"{uri}/train/a/1.jpg"], storage_options={**given, **options})
    return bytes(dataset[0].numpy())


@pytest.mark.parametrize("store", STORES)
def test_requests_go_through_the_proxy_of_the_options_or_the_environment(
    store: str, proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(store, "http://store.test", proxy_url=proxy.url) == b"one"
    sent = len(proxy.requests)
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    assert read(store, "http://store.test") == b"one"
    assert len(proxy.requests) > sent > 0
    assert all(line.split(" ")[1].startswith("http://store.test/") for line in proxy.requests)


@pytest.mark.parametrize("store", STORES)
def test_excluded_hosts_are_reached_without_the_proxy(
    store: str, proxy: ForwardProxy, bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket.options["endpoint"]
    assert read(store, url, proxy_url=proxy.url, proxy_excludes="127.0.0.1") == b"one"
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert read(store, url) == b"one"
    assert proxy.requests == []


# The clients of the hub and of all other stores; a proxy that refuses is tried for seconds.
@pytest.mark.parametrize("store", ["s3://b", "hf://datasets/me/b"])
def test_https_is_tunnelled_with_the_login_of_the_proxy_and_a_refusal_shows_no_secret(
    store: str, bucket: MemoryBucket
) -> None:
    login = "Basic " + base64.b64encode(b"me:swordfish").decode()
    with ForwardProxy({}, login=login) as proxy:
        address = proxy.url.removeprefix("http://")
        for user, status in (("me:swordfish@", "502"), ("", "407|tunnel")):
            with pytest.raises(OriginError, match="cannot be reached") as caught:
                read(store, "https://store.test", proxy_url=f"http://{user}{address}")
            assert "swordfish" not in str(caught.value)
            assert any(word in str(caught.value).lower() for word in (*status.split("|"), "proxy", "tunnel"))
        assert {line.rsplit(" ", 1)[0] for line in proxy.requests} == {"CONNECT store.test:443"}
