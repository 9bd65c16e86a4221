# SPDX-License-Identifier: Apache-2.0
"""The ``Exchange`` over servers: torch's words into those of the core, and back.

Apart from the protocol, which tests and other carriers meet too. Refuses to decide anything: what travels next, what
has landed and who is lost are answers of the core.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from foresee._native import GradientExchange, GradientServer
from foresee._schema.addresses import resolve
from foresee._world import World, detect
from foresee.errors import ConfigError, ForeseeError, RankLost
from foresee.torch import _rendezvous
from foresee.torch._exchange import RANKS, Exchange, ExchangeSettings, TensorSpec
from foresee.torch._machine import Meeting, first_rank, meet

if sys.platform == "linux":
    from foresee._native import GradientMachine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foresee.torch._rendezvous import Store

__all__ = ["NetworkExchange", "open_exchange"]

_TLS = "tls://"
#: As much as `foresee serve` has for a job.
_PARK_BYTES = 64 << 20
#: How often a server that only waits for other ranks looks whether they have left.
_LOOK_S = 0.02
# Any dtype travels as integers: the sum of one contribution is that contribution, in every bit.
_BITS = 4


@dataclass(frozen=True)
class _Way:
    """How a rank comes to the servers."""

    job: str
    world: World
    secret: str | None
    settings: ExchangeSettings
    others: list[str]
    """Servers that are not beside ranks."""
    tls: bool


class NetworkExchange:
    """One rank's end of an exchange over servers; see ``Exchange`` for what each method promises.

    Args:
        settings: as ``synchronize`` understood its arguments.

    Raises:
        ConfigError: an address, the secret, or what the launcher says is wrong; or the secret is not the servers'.
        ServerLost: no server came up at an address within the timeout, or it refuses this rank.
    """

    def __init__(self, settings: ExchangeSettings) -> None:
        survives = settings.on_rank_loss == "continue"
        if survives and RANKS in settings.servers:
            raise ConfigError(
                f"on_rank_loss='continue' is not possible with servers=\"{RANKS}\": a lost rank takes the server "
                "beside it along; start `foresee serve` apart from ranks and name its address, or pass 'raise'"
            )
        others = [server for server in settings.servers if server != RANKS]
        encrypted = {server.startswith(_TLS) for server in others}
        if len(encrypted) > 1:
            raise ConfigError(f"servers: {_TLS} stands before some of them; write it before all or none")
        if True in encrypted and len(others) < len(settings.servers):
            raise ConfigError(
                f'servers: those of "{RANKS}" have no certificate; drop it, or {_TLS} before the others'
            )
        addresses = [resolve(server.removeprefix(_TLS), what="servers:") for server in others]
        world = detect()
        job, store = _rendezvous.job_place(settings.job, world, limit_s=settings.start_timeout_s)
        secret = _rendezvous.job_secret(world.rank, settings.secret_file, store)
        self._process = os.getpid()
        self._timeout_s = settings.timeout_s
        # Of the first agreement alone: from then on a rank that is slow is waited for.
        self._limit_s: float | None = settings.start_timeout_s
        self._specs: list[TensorSpec] = []
        self._server: GradientServer | None = None
        self._meeting: Meeting | None = None
        way = _Way(job, world, secret, settings, addresses, True in encrypted)
        # Ranks that may be lost exchange each by itself: with the first of a machine all of it would be lost.
        first = first_rank(world) if settings.local_average and not survives else None
        with contextlib.ExitStack() as undo:
            if first is None:
                self._core = self._alone(way, store, undo)
            else:
                self._core = self._with_machine(way, first, store, undo)
            undo.pop_all()
        _opened.add(self)

    def _alone(self, way: _Way, store: Store | None, undo: contextlib.ExitStack) -> GradientExchange:
        """The exchange of a rank with the servers; ``undo``: what ends what was begun, should it fail."""
        settings, world = way.settings, way.world
        addresses = self._addresses(way, store, undo, every=1)
        return GradientExchange.open(
            addresses,
            job=way.job,
            rank=world.rank,
            world=world.size,
            timeout_s=settings.timeout_s,
            secret=way.secret,
            secret_file=settings.secret_file,
            wire=settings.wire,
            policy=settings.policy,
            tls=way.tls,
            timeline=settings.timeline,
            beside=self._server,
            recover=settings.recover,
            survives=settings.on_rank_loss == "continue",
        )

    def _with_machine(
        self, way: _Way, first: int, store: Store | None, undo: contextlib.ExitStack
    ) -> GradientExchange:
        """The exchange of a rank with the hub of its machine, which is in the process of rank ``first``."""
        settings, world = way.settings, way.world
        machine = GradientMachine(
            job=way.job,
            first=first,
            local=world.local_size,
            world=world.size,
            timeout_s=settings.timeout_s,
            secret=way.secret,
            secret_file=settings.secret_file,
            wire=settings.wire,
            timeline=settings.timeline,
        )
        if world.rank != first:
            patience_s = min(_rendezvous.patience_s(store), settings.start_timeout_s)
            return machine.join(world.rank, meet(way.job, first, patience_s))
        hub = machine.listen()
        undo.callback(hub.close)
        self._meeting = Meeting(way.job, first, hub.address, settings.timeout_s)
        undo.callback(self._meeting.close)
        servers = self._addresses(way, store, undo, every=world.local_size)
        hub.connect(
            servers, policy=settings.policy, tls=way.tls, beside=self._server, recover=settings.recover
        )
        return machine.join(world.rank, hub.address, hub=hub)

    def _addresses(
        self, way: _Way, store: Store | None, undo: contextlib.ExitStack, *, every: int
    ) -> list[str]:
        """The addresses of all servers: of those beside ranks, one of which starts here, and of the others."""
        if RANKS not in way.settings.servers:
            return way.others
        self._server = _beside(way.world, way.settings, way.secret)
        undo.callback(self._server.close)
        own = _rendezvous.share_address(way.world, self._server.address, store, every=every)
        return own + way.others

    @property
    def rank(self) -> int:
        """This rank."""
        return self._core.rank

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self._core.world

    @property
    def first(self) -> int:
        """The first rank that is left."""
        return self._core.first

    def agree(self, tensors: Sequence[TensorSpec]) -> None:
        """Make ``tensors`` the plan of all coming rounds."""
        limit_s, self._limit_s = self._limit_s, None
        try:
            self._core.agree([_told(spec) for spec in tensors], limit_s=limit_s)
        except TimeoutError as late:
            assert limit_s is not None, "only the first agreement has a limit"
            raise _missing(str(late), limit_s) from None
        self._specs = list(tensors)

    def broadcast(self, tensors: Sequence[tuple[int, int, int]]) -> None:
        """Copy memory of the first rank to all: one round of a plan in which only that one pushes."""
        places = [(self._specs[id_], pointer, nbytes) for id_, pointer, nbytes in tensors if nbytes]
        if self.world == 1 or not tensors:
            return
        counts = [-(-nbytes // _BITS) for _, _, nbytes in places]
        self._core.agree(
            [
                (spec.name, "int32", [count], [1], spec.priority, "sum")
                for (spec, _, _), count in zip(places, counts, strict=True)
            ]
        )
        ids = range(len(places))
        first = self.first
        if self.rank == first:
            for id_, (_, pointer, nbytes), count in zip(ids, places, counts, strict=True):
                # A copy: should the round fail, the exchange may go on to read it after the caller has moved on.
                sent = torch.zeros(count * _BITS, dtype=torch.uint8)
                sent[:nbytes].copy_(_memory(pointer, nbytes))
                self._core.push(id_, sent.data_ptr(), sent.numel(), sent)
        self._core.round_end()
        self._core.wait(list(ids), _nothing)
        if self.first != first:
            raise RankLost(
                f"rank {first} was lost while its values were copied to the others; start the job again",
                rank=first,
            )
        if self.rank != first:
            for id_, (_, pointer, nbytes) in zip(ids, places, strict=True):
                landed = torch.from_numpy(self._core.received(id_))
                _memory(pointer, nbytes).copy_(landed[:nbytes])
        self.agree(self._specs)

    def gather(self, own: bytes, sizes: Mapping[int, int]) -> Mapping[int, bytes]:
        """Give all ranks what some of them have: one round of a plan in which each pushes its own."""
        ranks = sorted(sizes)
        counts = {rank: -(-sizes[rank] // _BITS) for rank in ranks}
        self._core.agree(
            [(f"bytes of rank {rank}", "int32", [counts[rank]], [1], 0, "sum") for rank in ranks]
        )
        if self.rank in sizes:
            sent = torch.zeros(counts[self.rank] * _BITS, dtype=torch.uint8)
            sent[: len(own)].copy_(torch.frombuffer(bytearray(own), dtype=torch.uint8))
            self._core.push(ranks.index(self.rank), sent.data_ptr(), sent.numel(), sent)
        self._core.round_end()
        self._core.wait(list(range(len(ranks))), _nothing)
        found = {}
        for id_, rank in enumerate(ranks):
            if self._core.used(id_) is True:
                landed = torch.from_numpy(self._core.received(id_))
                found[rank] = bytes(landed[: sizes[rank]].tolist())
        self.agree(self._specs)
        return found

    def push(self, tensor_id: int, data_ptr: int, nbytes: int, keepalive: object) -> None:
        """Hand this rank's tensor of the present round over."""
        self._core.push(tensor_id, data_ptr, nbytes, keepalive)

    def round_end(self, round: int, absent_ids: Sequence[int]) -> None:  # noqa: A002, ARG002
        """Say that this rank pushes nothing more; the core knows its round and what was not pushed."""
        self._core.round_end()

    def wait(self, ids: Sequence[int], on_interrupt: Callable[[], None]) -> None:
        """Block until each of ``ids`` has landed, or is known to have been pushed by nobody."""
        if ids:
            self._core.wait(ids, on_interrupt)

    def landed(self, ids: Sequence[int]) -> int:
        """How many of ``ids``, in their order, need not be waited for."""
        return self._core.landed(ids)

    def received(self, tensor_id: int) -> object:
        """The mean that landed last, over the exchange's own memory."""
        return self._core.received(tensor_id)

    def used(self, tensor_id: int) -> bool:
        """Whether any rank pushed the tensor in the round that landed last."""
        return self._core.used(tensor_id) is True

    def stats(self) -> Mapping[str, float]:
        """Counters since the start."""
        return self._core.stats()

    def timeline(self) -> tuple[Mapping[str, NDArray[Any]], int]:
        """What happened since the last call, and how much more there was no room for."""
        return self._core.timeline()

    def tensors(self) -> list[tuple[str, int]]:
        """Name and bytes of the plan's tensors, by the numbers that the timeline uses."""
        return self._core.tensors()

    def close(self) -> None:
        """Leave in peace. What other ranks need of this process stays until they have left it, too, or the timeout: the
        server beside this rank, the hub of its machine.
        """
        self._core.close()
        self.end_server()

    def end_server(self) -> None:
        """End the server beside this rank, if there is one: once the other ranks have left it, or after the timeout."""
        if self._process != os.getpid():
            return  # a fork's child: it is its parent's
        if self._meeting is not None:
            self._meeting.close()
        server, self._server = self._server, None
        if server is None:
            return
        until = time.monotonic() + self._timeout_s
        try:
            while any(server.stats()["jobs"].values()) and time.monotonic() < until:
                time.sleep(_LOOK_S)
        finally:
            server.close()

    def leave(self) -> None:
        """At the end of the process: let the other ranks have what this one owes them for rounds that it ended."""
        try:
            with contextlib.suppress(ForeseeError):
                self._core.wait_all(self._timeout_s)
        finally:
            self._core.close()


def _beside(world: World, settings: ExchangeSettings, secret: str | None) -> GradientServer:
    """The server of this rank's process."""
    host = _rendezvous.own_address(world)
    return GradientServer.start(
        resolve(f"[{host}]:0" if ":" in host else f"{host}:0", what=f"{_rendezvous.ADDRESS}:"),
        timeout_s=settings.timeout_s,
        park_bytes=_PARK_BYTES,
        secret=secret,
        secret_file=settings.secret_file,
        policy=settings.policy,
        beside_rank=True,
    )


_opened: weakref.WeakSet[NetworkExchange] = weakref.WeakSet()
# A forked child has the objects and not their threads; the exchange is its parent's.
os.register_at_fork(after_in_child=_opened.clear)


@atexit.register
def _leave_all() -> None:
    exchanges = list(_opened)
    for exchange in exchanges:
        exchange.leave()
    # When all are left: another rank may end its servers in another order.
    for exchange in exchanges:
        exchange.end_server()


def _told(spec: TensorSpec) -> tuple[str, str, list[int], list[int], int, str]:
    """A tensor in the core's words. One rank pushes a buffer: its sum is a copy, whatever gradients travel as."""
    dtype = str(spec.dtype).removeprefix("torch.")
    op = "sum" if spec.kind == "buffer" else "mean"
    return spec.name, dtype, list(spec.shape), list(spec.strides), spec.priority, op


def _missing(waits: str, limit_s: float) -> RankLost:
    """Ranks that did not come, from what the servers said last."""
    named = re.search(r"ranks? (\d+)", waits)
    who = waits or "not all ranks came"
    return RankLost(
        f"no start within {limit_s:g} s: {who}; look at the output of what is missing, or pass a larger start_timeout=",
        rank=int(named[1]) if named else -1,
    )


def _memory(pointer: int, nbytes: int) -> torch.Tensor:
    """The bytes at ``pointer``, without a copy; their owner keeps them."""
    return torch.frombuffer((ctypes.c_char * nbytes).from_address(pointer), dtype=torch.uint8)


def _nothing() -> None:
    """Signals are looked at without it."""


def open_exchange(settings: ExchangeSettings) -> Exchange:
    """Connect to the servers, waiting up to the timeout for each to come up.

    Raises:
        ConfigError: a setting is wrong, or the secret is not the servers'.
        ServerLost: a server is not there, or refuses this rank.
    """
    return NetworkExchange(settings)
