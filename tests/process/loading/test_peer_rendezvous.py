# SPDX-License-Identifier: Apache-2.0
"""How the hosts of a job's nodes exchange their offers through a store, generation by generation."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from typing import Any

import pytest
from support.waiting import WATCHDOG

from foresee._loading import peers
from foresee._runtime import rendezvous
from foresee._runtime.ranks import World
from foresee.errors import ForeseeError


class DictStore:
    """A store of one process."""

    timeout = None

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self._values[key] = value

    def get(self, key: str) -> bytes:
        return self._values[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)


class FakeLoader:
    """A loader whose test decides about generations."""

    def __init__(self, node: int, refusal: str | None = None, name: str = "loader") -> None:
        self.node = node
        self.secret = ""
        self._name = name
        self.joined: queue.Queue[list[bytes]] = queue.Queue()
        self._refusal = refusal
        self.expects_peers = True
        self._generation: int | None = 0
        self._moved = threading.Condition()

    def move(self, generation: int | None) -> None:
        with self._moved:
            self._generation = generation
            self._moved.notify_all()

    def generation(self) -> int | None:
        return self._generation

    def peer_offer(self, after: int | None, **place: Any) -> tuple[str, int, bytes] | str:
        assert (place["node"], place["nodes"]) == (self.node, 2)
        self.secret = place["secret"]
        with self._moved:
            self._moved.wait_for(
                lambda: self._generation is None or after is None or self._generation > after
            )
            now = self._generation
        return "closed" if now is None else (self._name, now, f"node {self.node}, generation {now}".encode())

    def join_peers(self, offers: list[bytes]) -> None:
        self.joined.put(offers)
        if self._refusal is not None:
            raise ForeseeError(self._refusal)

    def expect_no_peers(self) -> None:
        self.expects_peers = False

    def host_events(self) -> list[tuple[str, dict[str, str]]]:
        return []


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> DictStore:
    made = DictStore()
    monkeypatch.setattr(rendezvous, "find_store", lambda: made)
    monkeypatch.setattr(peers, "_attempts", {})
    # The nodes are one process here, and would wait for each other.
    monkeypatch.setattr(peers, "_lock", contextlib.nullcontext())
    monkeypatch.setenv("FORESEE_ADDRESS", "127.0.0.1")
    monkeypatch.delenv("FORESEE_TOKEN", raising=False)
    return made


def start(loader: FakeLoader) -> peers.PeerRendezvous:
    world = World(loader.node, 2, 0, 1, local_size_known=True)
    meeting = peers.PeerRendezvous(loader, world, is_requested=True)  # type: ignore[arg-type]
    meeting.start()
    return meeting


def test_each_node_gets_the_offers_of_all_in_their_order_in_each_generation(store: DictStore) -> None:
    loaders = [FakeLoader(0), FakeLoader(1)]
    meetings = [start(loader) for loader in loaders]
    for generation in (0, 3):
        for loader in loaders:
            loader.move(generation)
        expected = [f"node {node}, generation {generation}".encode() for node in range(2)]
        assert [loader.joined.get(timeout=WATCHDOG) for loader in loaders] == [expected] * 2
    for loader, meeting in zip(loaders, meetings, strict=True):
        loader.move(None)
        meeting._thread.join(WATCHDOG)
        assert not meeting._thread.is_alive()


def test_a_later_loader_meets_after_the_first_is_closed_with_the_same_secret(store: DictStore) -> None:
    secrets = set()
    for name in ("first", "second"):
        loaders = [FakeLoader(node, name=name) for node in range(2)]
        meetings = [start(loader) for loader in loaders]
        for loader in loaders:
            assert len(loader.joined.get(timeout=WATCHDOG)) == 2
            secrets.add(loader.secret)
        for loader, meeting in zip(loaders, meetings, strict=True):
            loader.move(None)
            meeting.join()
    assert len(secrets) == 1


def test_a_node_that_has_continued_elsewhere_waits_for_no_offer_of_before(store: DictStore) -> None:
    first, second = FakeLoader(0), FakeLoader(1)
    start(first)
    first.move(1)
    second.move(1)
    start(second)
    assert first.joined.get(timeout=WATCHDOG) == second.joined.get(timeout=30)
    for loader in (first, second):
        loader.move(None)


def test_a_refused_offer_is_a_warning_and_ends_nothing(
    store: DictStore, caplog: pytest.LogCaptureFixture
) -> None:
    loaders = [FakeLoader(0, "node 1 has another run"), FakeLoader(1)]
    with caplog.at_level("INFO", "foresee"):
        meetings = [start(loader) for loader in loaders]
        for loader in loaders:
            loader.joined.get(timeout=WATCHDOG)
        for loader, meeting in zip(loaders, meetings, strict=True):
            loader.move(None)
            meeting._thread.join(WATCHDOG)
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == ["nodes exchange no samples, since node 1 has another run"]
    assert [loader.expects_peers for loader in loaders] == [False, True]


def test_without_a_store_the_user_is_told_what_carries_addresses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rendezvous, "find_store", lambda: None)
    with caplog.at_level("INFO", "foresee"):
        loader = FakeLoader(0)
        start(loader)._thread.join(WATCHDOG)
    assert "init_process_group() before the first batch" in caplog.text
    assert not loader.expects_peers


def test_a_loader_that_is_closed_ends_the_wait_for_other_nodes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = DictStore()
    monkeypatch.setattr(rendezvous, "find_store", lambda: store)
    with caplog.at_level("INFO", "foresee"):
        for node in range(2):
            loader = FakeLoader(node)
            meeting = start(loader)
            loader.move(None)
            meeting.join()
            assert not meeting._thread.is_alive()
    assert caplog.text == ""
