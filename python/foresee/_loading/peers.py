# SPDX-License-Identifier: Apache-2.0
"""Nodes of a job that exchange samples: how the hosts of their caches find each other.

The engine offers what the other nodes have to know of this one. A thread in the process of each node's lowest local
rank puts that into a store of the job, takes the offers of the others, and gives all to the engine. When the ranks
continue elsewhere than planned, the engine makes another offer. Training does not wait for that: until the nodes have
met, each reads the origin alone.
"""

from __future__ import annotations

import base64
import logging
import os
import sys
import threading
import time
import zlib
from typing import TYPE_CHECKING, NamedTuple

from foresee._runtime import rendezvous
from foresee._runtime.ranks import World
from foresee.errors import Closed, ForeseeError

if TYPE_CHECKING:
    from foresee import _native
    from foresee._loading.orders import RunOrder
    from foresee.config import Cache

__all__ = ["PeerRendezvous", "can_exchange"]

_NODES = rendezvous.Purpose("node", "the exchange of samples", "")
_TICK_MS = 1000
_POLL_S, _POLL_MAX_S = 0.005, 0.25
_JOIN_S = 5.0
#: Events of the host that a user has to know.
_WARNED = frozenset({"no exchange of samples", "node refused"})
_log = logging.getLogger("foresee")


def can_exchange(world: World, order: RunOrder | None, cache: Cache, *, peers: bool | None) -> bool:
    """Return whether the nodes of this job can exchange samples by one plan.

    Args:
        world: the ranks.
        order: of all ranks, for the whole run; None if there is none.
        cache: of the loader.
        peers: what the user wants; None: to exchange samples where that is possible.
    """
    if peers is False or world.size == world.local_size or cache.ram_bytes == 0:
        return False
    if os.environ.get("FORESEE_NODE") == "off" or sys.platform != "linux":
        return False
    ranks = world.local_size
    if not world.local_size_known or world.size % ranks != 0 or world.rank % ranks != world.local_rank:
        why = (
            "ranks are not numbered node by node, the same number on each: start them with torchrun, or give each "
            "node as many consecutive ranks"
        )
    elif order is None:
        why = "the order of all ranks is not known for the run: pass seed= and shuffle= instead of a sampler"
    else:
        return True
    if world.local_rank == 0:
        _log.log(logging.WARNING if peers else logging.INFO, "nodes exchange no samples, since %s", why)
    return False


class PeerRendezvous:
    """Lets this node's host meet those of the others, in a thread that ends with ``loader``."""

    def __init__(self, loader: _native.Loader, world: World, *, is_requested: bool) -> None:
        self._loader = loader
        self._world = world
        self._nodes = World(world.rank // world.local_size, world.size // world.local_size)
        self._level = logging.WARNING if is_requested else logging.INFO
        self._thread = threading.Thread(target=self._run, name="foresee-peers", daemon=True)

    def start(self) -> None:
        """Start the thread, unless it was."""
        if self._thread.ident is None:
            self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread, after the loader was closed: it must not outlive the interpreter."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            store = rendezvous.find_store()
            if store is None:
                self._say(
                    "nothing carries their addresses: call torch.distributed.init_process_group() before the first "
                    "batch, or start the ranks with torchrun"
                )
                return
            own = _StoreOfLoader(store, self._loader)
            attempt = _agree_on_attempt(own, self._nodes)
            self._exchange(rendezvous.part_of(own, attempt.prefix), attempt.secret)
        except (ForeseeError, OSError, RuntimeError, ValueError, zlib.error) as error:
            # RuntimeError: the store is lost, and the job with it.
            if self._loader.generation() is not None:
                self._say(str(error))

    def _say(self, why: str) -> None:
        self._loader.expect_no_peers()
        _log.log(self._level, "nodes exchange no samples, since %s", why)

    def _exchange(self, store: rendezvous.Store, secret: str | None) -> None:
        """Offer this node's part in each generation, and join the others."""
        node, nodes = self._nodes.rank, self._nodes.size
        address = rendezvous.find_own_address(self._world)
        generation: int | None = None
        pause_s = _POLL_S
        while True:
            offer = self._loader.peer_offer(
                generation, node=node, nodes=nodes, address=address, secret=secret, timeout_ms=_TICK_MS
            )
            self._log_events()
            if offer == "not host":
                _log.info(
                    "nodes exchange no samples, since a service hosts the cache of this node, or none does"
                )
                return
            if offer == "closed":
                return
            if offer == "not ready":
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _POLL_MAX_S)
            elif not isinstance(offer, str):
                pause_s = _POLL_S
                loader, generation, own = offer
                offers = self._collect(store, f"{loader}/{generation}", generation, own)
                if offers is not None:
                    self._join(offers)

    def _join(self, offers: list[bytes]) -> None:
        try:
            self._loader.join_peers(offers)
        except ForeseeError as error:
            self._loader.expect_no_peers()
            _log.warning("nodes exchange no samples, since %s", error)
        else:
            _log.info(
                "this node exchanges samples with %d others, authenticated by the secret of the job and not encrypted",
                len(offers) - 1,
            )

    def _collect(self, store: rendezvous.Store, key: str, generation: int, own: bytes) -> list[bytes] | None:
        """Return the offers of all nodes; None if the loader has continued elsewhere meanwhile."""
        store.set(f"{key}/{self._nodes.rank}", _encode(own))
        missing, pause_s = [f"{key}/{node}" for node in range(self._nodes.size)], _POLL_S
        while missing:
            if self._loader.generation() != generation:
                return None
            missing = [one for one in missing if not store.check([one])]
            if missing:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _POLL_MAX_S)
        return [_decode(store.get(f"{key}/{node}")) for node in range(self._nodes.size)]

    def _log_events(self) -> None:
        for event, fields in self._loader.host_events():
            level = logging.WARNING if event in _WARNED else logging.INFO
            _log.log(level, "%s: %s", event, ", ".join(f"{name} {value}" for name, value in fields.items()))


class _Attempt(NamedTuple):
    """What all loaders of a process have in common."""

    prefix: str
    """Of the keys in the store."""
    secret: str | None
    """None: that of ``FORESEE_TOKEN``."""


def _agree_on_attempt(store: rendezvous.Store, nodes: World) -> _Attempt:
    """Return the attempt of the nodes. The first loader of the process agrees on it with those of the other nodes.

    Raises:
        RankLost: a node did not come.
    """
    key = os.getpid(), nodes.rank, nodes.size
    with _lock:
        if key not in _attempts:
            prefix = rendezvous.agree_on_attempt(store, "samples", nodes, _NODES)
            part = rendezvous.part_of(store, prefix)
            _attempts[key] = _Attempt(prefix, rendezvous.find_secret(nodes.rank, None, part, purpose=_NODES))
        return _attempts[key]


class _StoreOfLoader:
    """A store that ends all waits when the loader is closed."""

    def __init__(self, store: rendezvous.Store, loader: _native.Loader) -> None:
        self._store, self._loader = store, loader
        self.timeout = getattr(store, "timeout", None)

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def check(self, keys: list[str]) -> bool:
        if self._loader.generation() is None:
            raise Closed("the loader is closed")
        return self._store.check(keys)


_lock = threading.Lock()
_attempts: dict[tuple[int, int, int], _Attempt] = {}


def _encode(offer: bytes) -> str:
    return base64.b85encode(zlib.compress(offer)).decode()


def _decode(text: bytes) -> bytes:
    return zlib.decompress(base64.b85decode(text))
