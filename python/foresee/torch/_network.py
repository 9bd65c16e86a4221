# SPDX-License-Identifier: Apache-2.0
"""Opens a rank's ``GradientExchange`` over servers: addresses, secret, node leader and colocated server.

``NetworkGroup`` owns what this process runs for other ranks, which has to outlive this rank's exchange until they
leave.
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
from foresee._runtime import rendezvous
from foresee._runtime.ranks import World, detect
from foresee._schema.addresses import resolve
from foresee.errors import ConfigError, ForeseeError
from foresee.torch._exchange import COLOCATED, ExchangeSettings
from foresee.torch._node import LeaderAddress, leader_rank, wait_for_leader
from foresee.torch._rank_group import RankGroup

if sys.platform == "linux":
    from foresee._native import GradientNode

__all__ = ["NetworkGroup"]

_TLS = "tls://"
#: The default of `foresee serve` for a job.
_EARLY_BUFFER_BYTES = 64 << 20
#: Seconds between two checks whether the other ranks have left a server.
_POLL_S = 0.02


@dataclass(frozen=True)
class _JobContext:
    """The parameters of a rank's connections."""

    name: str
    world: World
    secret: str | None
    settings: ExchangeSettings
    servers: list[str]
    """Addresses of dedicated servers."""
    tls: bool
    store: rendezvous.Store | None


class NetworkGroup(RankGroup):
    """The ranks of a job that reach each other over servers.

    Args:
        settings: from the arguments of ``synchronize``.

    Raises:
        ConfigError: an address, the secret, or a variable of the launcher is wrong; or the servers have another secret.
        ServerLost: no server listened at an address within the timeout, or it refused this rank.
    """

    exchange: GradientExchange

    def __init__(self, settings: ExchangeSettings) -> None:
        continues = settings.on_rank_loss == "continue"
        if continues and COLOCATED in settings.servers:
            raise ConfigError(
                f"on_rank_loss='continue' is not possible with servers=\"{COLOCATED}\": a lost rank takes its "
                "server along; start `foresee serve` as its own process and pass its address, or pass 'raise'"
            )
        dedicated = [server for server in settings.servers if server != COLOCATED]
        encrypted = {server.startswith(_TLS) for server in dedicated}
        if len(encrypted) > 1:
            raise ConfigError(f"servers: {_TLS} precedes only some of them; write it before all or none")
        if True in encrypted and len(dedicated) < len(settings.servers):
            raise ConfigError(
                f'servers: those of "{COLOCATED}" have no certificate; remove it, or {_TLS} before the others'
            )
        addresses = [resolve(server.removeprefix(_TLS), what="servers:") for server in dedicated]
        world = detect()
        name, store = rendezvous.open_job(settings.job, world, limit_s=settings.start_timeout_s)
        secret = rendezvous.find_secret(world.rank, settings.secret_file, store)
        self._process = os.getpid()
        self._timeout_s = settings.timeout_s
        self._server: GradientServer | None = None
        self._leader_address: LeaderAddress | None = None
        job = _JobContext(name, world, secret, settings, addresses, True in encrypted, store)
        # With ``continue`` each rank exchanges by itself: the loss of a leader would be that of its node.
        leader = leader_rank(world) if settings.hierarchical and not continues else None
        with contextlib.ExitStack() as undo:
            exchange = self._open(job, undo) if leader is None else self._join_node(job, leader, undo)
            undo.pop_all()
        # Only the first agreement has a limit: a slow rank is waited for afterwards.
        super().__init__(exchange, start_timeout_s=settings.start_timeout_s)
        _open_groups.add(self)

    def _open(self, job: _JobContext, undo: contextlib.ExitStack) -> GradientExchange:
        """Open the exchange of a rank with the servers; ``undo`` closes what was opened after a failure."""
        settings, world = job.settings, job.world
        return GradientExchange.open(
            self._find_addresses(job, undo, every=1),
            job=job.name,
            rank=world.rank,
            world=world.size,
            timeout_s=settings.timeout_s,
            secret=job.secret,
            secret_file=settings.secret_file,
            comm_dtype=settings.comm_dtype,
            policy=settings.policy,
            tls=job.tls,
            timeline=settings.timeline,
            colocated_server=self._server,
            recover=settings.recover,
            continue_on_rank_loss=settings.on_rank_loss == "continue",
        )

    def _join_node(self, job: _JobContext, leader: int, undo: contextlib.ExitStack) -> GradientExchange:
        """Open the exchange of a rank with its node's leader, in the process of rank ``leader``."""
        settings, world = job.settings, job.world
        node = GradientNode(
            job=job.name,
            first=leader,
            local_world=world.local_size,
            world=world.size,
            timeout_s=settings.timeout_s,
            secret=job.secret,
            secret_file=settings.secret_file,
            comm_dtype=settings.comm_dtype,
            timeline=settings.timeline,
        )
        if world.rank != leader:
            limit_s = min(rendezvous.store_timeout_s(job.store), settings.start_timeout_s)
            return node.join(world.rank, wait_for_leader(job.name, leader, limit_s))
        own = node.listen()
        undo.callback(own.close)
        self._leader_address = LeaderAddress(job.name, leader, own.address, settings.timeout_s)
        undo.callback(self._leader_address.close)
        servers = self._find_addresses(job, undo, every=world.local_size)
        own.connect(
            servers,
            policy=settings.policy,
            tls=job.tls,
            colocated_server=self._server,
            recover=settings.recover,
        )
        return node.join(world.rank, own.address, leader=own)

    def _find_addresses(self, job: _JobContext, undo: contextlib.ExitStack, *, every: int) -> list[str]:
        """Return the addresses of all servers, and start the colocated one of this rank."""
        if COLOCATED not in job.settings.servers:
            return job.servers
        host = rendezvous.find_own_address(job.world)
        self._server = GradientServer.start(
            resolve(f"[{host}]:0" if ":" in host else f"{host}:0", what=f"{rendezvous.ADDRESS}:"),
            timeout_s=job.settings.timeout_s,
            early_buffer_bytes=_EARLY_BUFFER_BYTES,
            secret=job.secret,
            secret_file=job.settings.secret_file,
            policy=job.settings.policy,
            colocated=True,
        )
        undo.callback(self._server.close)
        own = rendezvous.share_address(job.world, self._server.address, job.store, every=every)
        return own + job.servers

    def close(self) -> None:
        """Leave the exchange, and close the colocated server and the leader's address once other ranks have left."""
        super().close()
        self.close_services()

    def close_services(self) -> None:
        """Close what this process runs for other ranks, once they have left or after the timeout."""
        if self._process != os.getpid():
            return  # a forked child: the services belong to the parent
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
        """Finish the sends of ended rounds, and leave the exchange, at the end of the process."""
        try:
            with contextlib.suppress(ForeseeError):
                self.exchange.wait_all(self._timeout_s)
        finally:
            self.exchange.close()


_open_groups: weakref.WeakSet[NetworkGroup] = weakref.WeakSet()
# A forked child has the objects without their threads; the exchange belongs to the parent.
os.register_at_fork(after_in_child=_open_groups.clear)


@atexit.register
def _leave_all() -> None:
    groups = list(_open_groups)
    for group in groups:
        group.leave()
    # After all exchanges: another rank may close its servers in another order.
    for group in groups:
        group.close_services()
