# SPDX-License-Identifier: Apache-2.0
"""Data sets in emulators of Google Cloud Storage and Azure, which other projects wrote."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.servers import Testbed
from support.stores import AzureEmulator, GoogleEmulator

import foresee
import foresee.torch as ft
from foresee.errors import OriginDenied, OriginMissing, SampleFault

pytestmark = [pytest.mark.systems, pytest.mark.timeout(120)]

SAMPLES = {f"train/{'ab'[i % 2]}/é {i:02}+.jpg": bytes([i]) * (i * 977 + 1) for i in range(40)}


def fill(store: GoogleEmulator | AzureEmulator) -> None:
    """Store `SAMPLES` and an array of 100 rows."""
    for key, body in SAMPLES.items():
        store.put(key, body)
    store.put("rows.bin", np.arange(600, dtype="<i4").tobytes())


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureEmulator]:
    """Azurite with the samples."""
    running = AzureEmulator(tmp_path_factory.mktemp("azure"))
    fill(running)
    yield running
    running.close()


@pytest.fixture(scope="module")
def google() -> Iterator[GoogleEmulator]:
    """fake-gcs-server with the samples."""
    running = GoogleEmulator()
    fill(running)
    yield running
    running.close()


@pytest.fixture(params=["google", "azure"])
def store(request: pytest.FixtureRequest) -> GoogleEmulator | AzureEmulator:
    """Each of the emulators."""
    found: GoogleEmulator | AzureEmulator = request.getfixturevalue(request.param)
    return found


def test_classes_and_bytes_are_those_that_were_stored(store: GoogleEmulator | AzureEmulator) -> None:
    dataset = ft.FolderDataset(f"{store.uri}/train", storage_options=store.options(store.url))
    assert dataset.classes == ["a", "b"]
    found = {
        uri.removeprefix(f"{store.uri}/"): bytes(dataset[i][0].numpy())
        for i, (uri, _) in enumerate(dataset.samples)
    }
    assert found == SAMPLES


def test_rows_are_read_by_their_ranges(store: GoogleEmulator | AzureEmulator) -> None:
    dataset = ft.ArrayDataset(
        f"{store.uri}/rows.bin", dtype="int32", shape=(6,), storage_options=store.options(store.url)
    )
    assert dataset[17].tolist() == list(range(102, 108))
    assert len(dataset) == 100


def test_an_epoch_survives_refusals_and_broken_bodies(azure: AzureEmulator) -> None:
    testbed = Testbed.before(azure.url)
    options = azure.options(testbed.url)
    try:
        with foresee.Loader(
            f"{azure.uri}/train", batch_size=8, shuffle=True, seed=1, storage_options=options
        ) as loader:
            testbed.faults(
                {"kind": "status", "status": 503, "path": "/train", "next": 9, "percent": 30, "seed": 1},
                {"kind": "short_body", "path": "/train", "next": 9, "percent": 30, "seed": 2},
            )
            bodies = [
                bytes(batch.data[batch.offsets[i] : batch.offsets[i + 1]])
                for batch in loader
                for i in range(len(batch.ids))
            ]
            assert loader.audit()["ok"]
    finally:
        testbed.close()
    assert sorted(bodies) == sorted(SAMPLES.values())


def test_an_object_that_changed_is_an_error(store: GoogleEmulator | AzureEmulator) -> None:
    options = store.options(store.url)
    store.put("changed/a/1.jpg", b"old")
    index = foresee.Index.build(f"{store.uri}/changed", layout="folder", extensions=[".jpg"], options=options)
    store.put("changed/a/1.jpg", b"new")
    with (
        foresee.Loader(index, batch_size=1, storage_options=options) as loader,
        pytest.raises(SampleFault, match="foresee index --update") as caught,
    ):
        next(iter(loader))
    assert caught.value.kind == "changed"


def test_a_prefix_without_objects_is_missing(store: GoogleEmulator | AzureEmulator) -> None:
    with pytest.raises(OriginMissing, match=f'{store.uri} has the prefixes .*"train"'):
        ft.FolderDataset(f"{store.uri}/tran", storage_options=store.options(store.url))


def test_a_wrong_key_is_refused_with_the_variables_to_set(azure: AzureEmulator) -> None:
    options = {**azure.options(azure.url), "account_key": "bm90IHRoZSBrZXk="}
    with pytest.raises(
        OriginDenied, match=r"HTTP 403 AuthorizationFailure.*AZURE_STORAGE_ACCOUNT_KEY"
    ) as caught:
        ft.FolderDataset(f"{azure.uri}/train", storage_options=options)
    assert "bm90" not in str(caught.value)
