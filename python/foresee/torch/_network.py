# SPDX-License-Identifier: Apache-2.0
"""Opens a rank's ``GradientExchange`` over servers: addresses, secret, node leader and colocated server.

The exchange itself is a class of the core. The group around it owns what this process runs for other ranks, which has
to outlive this rank's own exchange until they have left it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import weakref
from dataclasses import dataclass

from foresee._native import GradientExchange, GradientServer
from foresee._runtime.ranks import World, detect
from foresee._schema.addresses import resolve
from foresee.errors import ConfigError, ForeseeError
from foresee.torch import _rendezvous
from foresee.torch._exchange import COLOCATED, ExchangeSettings
from foresee.torch._node import LeaderAddress, leader_rank, wait_for_leader
from foresee.torch._rank_group import RankGroup

if sys.platform == "linux":
    from foresee._native import GradientNode

__all__ = ["NetworkGroup"]

_TLS = "tls://"
#: As much as `foresee serve` has for a job.
_PARK_BYTES = 64 << 20
#: How often a server that only waits for other ranks checks whether they have left.
_POLL_S = 0.02


@dataclass(frozen=True)
class _Route:
    """How a rank reaches the servers."""

    job: str
    world: World
    secret: str | None
    settings: ExchangeSettings
    servers: list[str]
    """Addresses of servers that are not colocated with ranks."""
    tls: bool
    store: _rendezvous.Store | None


class NetworkGroup(RankGroup):
    """The ranks of a job that reach each other over servers.

    Args:
        settings: as ``synchronize`` understood its arguments.

    Raises:
        ConfigError: an address, the secret, or what the launcher says is wrong; or the secret is not the servers'.
        ServerLost: no server came up at an address within the timeout, or it refuses this rank.
    """

    exchange: GradientExchange

    def __init__(self, settings: ExchangeSettings) -> None:
        survives = settings.on_rank_loss == "continue"
        if survives and COLOCATED in settings.servers:
            raise ConfigError(
                f"on_rank_loss='continue' is not possible with servers=\"{COLOCATED}\": a lost rank takes the server "
                "beside it along; start `foresee serve` apart from ranks and name its address, or pass 'raise'"
            )
        others = [server for server in settings.servers if server != COLOCATED]
        encrypted = {server.startswith(_TLS) for server in others}
        if len(encrypted) > 1:
            raise ConfigError(f"servers: {_TLS} stands before some of them; write it before all or none")
        if True in encrypted and len(others) < len(settings.servers):
            raise ConfigError(
                f'servers: those of "{COLOCATED}" have no certificate; drop it, or {_TLS} before the others'
            )
        addresses = [resolve(server.removeprefix(_TLS), what="servers:") for server in others]
        world = detect()
        job, store = _rendezvous.job_place(settings.job, world, limit_s=settings.start_timeout_s)
        secret = _rendezvous.job_secret(world.rank, settings.secret_file, store)
        self._process = os.getpid()
        self._timeout_s = settings.timeout_s
        self._server: GradientServer | None = None
        self._leader_address: LeaderAddress | None = None
        route = _Route(job, world, secret, settings, addresses, True in encrypted, store)
        # Ranks that may be lost exchange each by itself: with the leader of a node all of it would be lost.
        leader = leader_rank(world) if settings.hierarchical and not survives else None
        with contextlib.ExitStack() as undo:
            exchange = self._open(route, undo) if leader is None else self._join_node(route, leader, undo)
            undo.pop_all()
        # The limit is of the first agreement alone: from then on a rank that is slow is waited for.
        super().__init__(exchange, start_timeout_s=settings.start_timeout_s)
        _opened.add(self)

    def _open(self, route: _Route, undo: contextlib.ExitStack) -> GradientExchange:
        """The exchange of a rank with the servers; ``undo``: closes what was opened, if it fails."""
        settings, world = route.settings, route.world
        return GradientExchange.open(
            self._addresses(route, undo, every=1),
            job=route.job,
            rank=world.rank,
            world=world.size,
            timeout_s=settings.timeout_s,
            secret=route.secret,
            secret_file=settings.secret_file,
            comm_dtype=settings.comm_dtype,
            policy=settings.policy,
            tls=route.tls,
            timeline=settings.timeline,
            beside=self._server,
            recover=settings.recover,
            survives=settings.on_rank_loss == "continue",
        )

    def _join_node(self, route: _Route, leader: int, undo: contextlib.ExitStack) -> GradientExchange:
        """The exchange of a rank with its node's leader, which is in the process of rank ``leader``."""
        settings, world = route.settings, route.world
        node = GradientNode(
            job=route.job,
            first=leader,
            local=world.local_size,
            world=world.size,
            timeout_s=settings.timeout_s,
            secret=route.secret,
            secret_file=settings.secret_file,
            comm_dtype=settings.comm_dtype,
            timeline=settings.timeline,
        )
        if world.rank != leader:
            patience_s = min(_rendezvous.patience_s(route.store), settings.start_timeout_s)
            return node.join(world.rank, wait_for_leader(route.job, leader, patience_s))
        own = node.listen()
        undo.callback(own.close)
        self._leader_address = LeaderAddress(route.job, leader, own.address, settings.timeout_s)
        undo.callback(self._leader_address.close)
        servers = self._addresses(route, undo, every=world.local_size)
        own.connect(
            servers, policy=settings.policy, tls=route.tls, beside=self._server, recover=settings.recover
        )
        return node.join(world.rank, own.address, leader=own)

    def _addresses(self, route: _Route, undo: contextlib.ExitStack, *, every: int) -> list[str]:
        """The addresses of all servers: of colocated ones, one of which starts here, and of the others."""
        if COLOCATED not in route.settings.servers:
            return route.servers
        self._server = _colocated_server(route.world, route.settings, route.secret)
        undo.callback(self._server.close)
        own = _rendezvous.share_address(route.world, self._server.address, route.store, every=every)
        return own + route.servers

    def close(self) -> None:
        """Leave the exchange, then close the colocated server and the leader's address once other ranks have left."""
        super().close()
        self.close_services()

    def close_services(self) -> None:
        """Close what this process runs for other ranks: once they have left it, or after the timeout."""
        if self._process != os.getpid():
            return  # in a fork's child: it belongs to the parent
        if self._leader_address is not None:
            self._leader_address.close()
        server, self._server = self._server, None
        if server is None:
            return
        until = time.monotonic() + self._timeout_s
        try:
            while any(server.stats()["jobs"].values()) and time.monotonic() < until:
                time.sleep(_POLL_S)
        finally:
            server.close()

    def leave(self) -> None:
        """At the end of the process: let the other ranks have what this one owes them for rounds that it ended."""
        try:
            with contextlib.suppress(ForeseeError):
                self.exchange.wait_all(self._timeout_s)
        finally:
            self.exchange.close()


def _colocated_server(world: World, settings: ExchangeSettings, secret: str | None) -> GradientServer:
    """Start the server of this rank's process."""
    host = _rendezvous.own_address(world)
    return GradientServer.start(
        resolve(f"[{host}]:0" if ":" in host else f"{host}:0", what=f"{_rendezvous.ADDRESS}:"),
        timeout_s=settings.timeout_s,
        early_buffer_bytes=_PARK_BYTES,
        secret=secret,
        secret_file=settings.secret_file,
        policy=settings.policy,
        beside_rank=True,
    )


_opened: weakref.WeakSet[NetworkGroup] = weakref.WeakSet()
# A forked child has the objects and not their threads; the exchange is its parent's.
os.register_at_fork(after_in_child=_opened.clear)


@atexit.register
def _leave_all() -> None:
    groups = list(_opened)
    for group in groups:
        group.leave()
    # After all have been left: another rank may close its servers in another order.
    for group in groups:
        group.close_services()
