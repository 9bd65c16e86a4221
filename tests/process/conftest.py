# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the process tests: data sets, S3 servers of the session, networks of ranks, and a clean environment."""

from __future__ import annotations

import itertools
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
# Set before torch is imported: ranks are threads, and each would start a busy-waiting pool with a thread per core.
os.environ["OMP_NUM_THREADS"] = "1"

from support.bench_places import places  # noqa: F401 - found here by tests
from support.data import make_folder
from support.fixtures import array, own_environment, pictures, ragged, small_folder, started  # noqa: F401 - found here by tests
from support.host_jobs import host_job, hosts  # noqa: F401 - likewise
from support.servers import Bucket, Gateway, Testbed

SIZES = [900 + 37 * (i % 11) for i in range(96)]


@pytest.fixture
def sizes() -> list[int]:
    """Bytes of each sample of `folder`: 96 unequal samples of about 1 KB."""
    return list(SIZES)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A tree of 96 files in three classes; see `sizes`."""
    return make_folder(tmp_path / "data", SIZES)


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """An S3 server that checks signatures."""
    server = Gateway(tmp_path_factory.mktemp("gateway"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def _proxy(gateway: Gateway) -> Iterator[Testbed]:
    testbed = Testbed.before(gateway.url)
    yield testbed
    testbed.close()


_numbers = itertools.count()


@pytest.fixture
def bucket(gateway: Gateway, _proxy: Testbed) -> Iterator[Bucket]:
    """An empty bucket behind a testbed without limits and faults, with its counters at 0."""
    _proxy.reset()
    yield Bucket(gateway, _proxy, f"bucket-{next(_numbers)}")
    _proxy.reset()


@pytest.fixture
def serve() -> Iterator[Callable[[pathlib.Path], Testbed]]:
    """Start testbeds that serve a folder of buckets; they end with the test."""
    running: list[Testbed] = []

    def start(folder: pathlib.Path) -> Testbed:
        running.append(Testbed.serving(folder))
        return running[-1]

    yield start
    for testbed in running:
        testbed.close()


@pytest.fixture
def slow_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every update is received only when it is waited for."""
    from foresee.torch.gradients._updates import Updates

    monkeypatch.setattr(Updates, "_add_received", lambda self, needed: needed)


@pytest.fixture(params=["in process", "over servers"])
def network(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """A function that returns the exchange of each of ``world`` ranks.

    ``late=``: maximal random delay of a received average in seconds; ``seed=``: of the delays.
    """
    from support.exchanges import in_process, over_servers

    if request.param == "in process":
        yield in_process
        return
    with over_servers(2) as connect:
        yield connect
