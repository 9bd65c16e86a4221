# SPDX-License-Identifier: Apache-2.0
"""An ``Exchange`` inside of one process, for tests: ranks are threads, a hub sums, landings may be late and shuffled.

It does by the plainest code what the servers do: contributions are added one by one in rank order, 16-bit floats in
f32, absent ranks skipped, one true division by the number of ranks, one rounding. It also keeps the law: whoever
pushes twice, waits before the round's end, or overlaps two rounds of a tensor fails the test with an assertion.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch

from foresee.errors import Closed, ConfigError, ForeseeError
from foresee.torch._exchange import Exchange, TensorSpec
from support.reference import mean_in_rank_order
from support.waiting import WATCHDOG

#: Seconds between two questions whether the caller wants to be interrupted.
_TICK_S = 0.05


class Lost(ForeseeError):
    """A rank of the test is gone."""


class Hub:
    """Where the exchanges of ``world`` ranks meet.

    ``late``: seconds, the most by which a landing is delayed; delays are drawn from ``seed`` per rank and tensor, so
    landings come in any order. 0 lands at once. ``slow``: by rank and tensor name, added to the delay. ``held``: by
    rank and tensor name, whether a landing is held back until `release` is called and it is held no more.
    """

    def __init__(
        self,
        world: int,
        *,
        late: float = 0.0,
        seed: int = 0,
        slow: Callable[[int, str], float] | None = None,
        held: Callable[[int, str], bool] | None = None,
    ):
        self.world = world
        self.changed = threading.Condition()
        self.pushes: dict[tuple[int, int], dict[int, torch.Tensor]] = {}
        self.ended: dict[int, dict[int, frozenset[int]]] = {}
        self.landed: list[dict[int, int]] = [{} for _ in range(world)]
        self.results: list[dict[int, torch.Tensor]] = [{} for _ in range(world)]
        self.agreements: list[dict[int, list[TensorSpec]]] = []
        self.broadcasts: list[dict[int, list[torch.Tensor]]] = []
        self.gathers: list[dict[int, bytes]] = []
        self.plan: list[TensorSpec] = []
        self.lost: str | None = None
        self.late, self.slow = late, slow or (lambda rank, name: 0.0)
        self.held = held or (lambda rank, name: False)
        self._held_back: list[tuple[int, int, int, torch.Tensor | None]] = []
        self._draw = random.Random(seed)
        self._sums: dict[tuple[int, int], torch.Tensor] = {}

    def exchange(self, rank: int) -> ThreadExchange:
        return ThreadExchange(self, rank)

    def exchanges(self) -> list[ThreadExchange]:
        return [self.exchange(rank) for rank in range(self.world)]

    def lose(self, who: str) -> None:
        """From here on everybody who waits hears that ``who`` is gone."""
        with self.changed:
            self.lost = who
            self.changed.notify_all()

    def release(self) -> None:
        """Land what was held back and is held no more."""
        with self.changed:
            before, self._held_back = self._held_back, []
            for rank, tensor, round_, mean in before:
                if self.held(rank, self.plan[tensor].name):
                    self._held_back.append((rank, tensor, round_, mean))
                else:
                    self._land(rank, tensor, round_, mean)

    def rounds_of(self, rank: int, name: str) -> int:
        """The number of the last round in which a tensor has landed on a rank."""
        with self.changed:
            (tensor,) = (spec.id for spec in self.plan if spec.name == name)
            return self.landed[rank][tensor]

    # Called with ``changed`` held.

    def settle(self, tensor: int, round_: int) -> None:
        """Land the mean everywhere, if all ranks have pushed the tensor or said that they do not."""
        given = self.pushes.get((tensor, round_), {})
        absent = {rank for rank, ids in self.ended.get(round_, {}).items() if tensor in ids}
        if len(given) + len(absent) < self.world or (tensor, round_) in self._sums:
            return
        spec = self.plan[tensor]
        # Whether nobody pushed is known only when all have said so.
        mean = mean_in_rank_order(
            [given[rank] for rank in sorted(given)], self.world if spec.kind != "buffer" else 1
        )
        self._sums[tensor, round_] = mean if mean is not None else torch.empty(0)
        for rank in range(self.world):
            if self.held(rank, spec.name):
                self._held_back.append((rank, tensor, round_, mean))
                continue
            delay = (self._draw.random() * self.late if self.late else 0.0) + self.slow(rank, spec.name)
            if delay:
                threading.Timer(delay, self._land_late, (rank, tensor, round_, mean)).start()
            else:
                self._land(rank, tensor, round_, mean)

    def _land_late(self, rank: int, tensor: int, round_: int, mean: torch.Tensor | None) -> None:
        with self.changed:
            self._land(rank, tensor, round_, mean)

    def _land(self, rank: int, tensor: int, round_: int, mean: torch.Tensor | None) -> None:
        assert self.landed[rank].get(tensor, -1) == round_ - 1, "a tensor's rounds overlap"
        self.landed[rank][tensor] = round_
        if mean is None:
            self.results[rank].pop(tensor, None)
        else:
            # Memory that is used again, as the real one's is.
            kept = self.results[rank].get(tensor)
            if kept is None or kept.shape != mean.shape:
                self.results[rank][tensor] = mean.clone()
            else:
                kept.copy_(mean)
        self.changed.notify_all()


class ThreadExchange:
    """One rank's end of a hub."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub = hub
        self._rank = rank
        self._round = -1
        self._closed = False
        self._kept: list[tuple[int, object, torch.Tensor]] = []
        self.log: list[tuple[str, Any]] = []
        """What was asked, in order: ("push", name), ("round_end", round), ("wait", names)."""

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world(self) -> int:
        return self.hub.world

    @property
    def first(self) -> int:
        return 0

    def agree(self, tensors: Sequence[TensorSpec]) -> None:
        hub = self.hub
        with hub.changed:
            assert all(hub.landed[self._rank].get(t.id, -1) == self._round for t in hub.plan), (
                "agreed in flight"
            )
            mine = sum(self._rank in one for one in hub.agreements)
            if mine == len(hub.agreements):
                hub.agreements.append({})
            hub.agreements[mine][self._rank] = list(tensors)
            hub.changed.notify_all()
            self._await(lambda: len(hub.agreements[mine]) == hub.world)
            first = hub.agreements[mine][0]
            for rank, theirs in hub.agreements[mine].items():
                if len(theirs) != len(first):
                    raise ConfigError(f"rank {rank} has {len(theirs)} tensors, rank 0 has {len(first)}")
                for a, b in zip(first, theirs, strict=True):
                    for field in ("name", "kind", "dtype", "shape", "strides", "nbytes"):
                        one, other = getattr(a, field), getattr(b, field)
                        if one != other:
                            raise ConfigError(
                                f"{a.name}: {field} is {one} on rank 0 and {other} on rank {rank}"
                            )
            hub.plan = first
            for landed in hub.landed:
                for spec in first:
                    landed.setdefault(spec.id, self._round)

    def broadcast(self, tensors: Sequence[tuple[int, int, int]]) -> None:
        hub = self.hub
        memory = [_view(pointer, nbytes) for _, pointer, nbytes in tensors]
        with hub.changed:
            mine = sum(self._rank in one for one in hub.broadcasts)
            if mine == len(hub.broadcasts):
                hub.broadcasts.append({})
            hub.broadcasts[mine][self._rank] = memory
            hub.changed.notify_all()
            self._await(lambda: len(hub.broadcasts[mine]) >= hub.world)
            if self._rank:
                for target, source in zip(memory, hub.broadcasts[mine][0], strict=True):
                    target.copy_(source)
            # Rank 0 must not train on before all have copied.
            hub.broadcasts[mine][-1 - self._rank] = []
            hub.changed.notify_all()
            self._await(lambda: len(hub.broadcasts[mine]) == 2 * hub.world)

    def gather(self, own: bytes, sizes: Mapping[int, int]) -> Mapping[int, bytes]:
        hub = self.hub
        with hub.changed:
            mine = sum(self._rank in one for one in hub.gathers)
            if mine == len(hub.gathers):
                hub.gathers.append({})
            hub.gathers[mine][self._rank] = own
            hub.changed.notify_all()
            self._await(lambda: len(hub.gathers[mine]) == hub.world)
            return {rank: hub.gathers[mine][rank] for rank in sorted(sizes)}

    def push(self, tensor_id: int, data_ptr: int, nbytes: int, keepalive: object) -> None:
        hub, round_ = self.hub, self._round + 1
        with hub.changed:
            spec = hub.plan[tensor_id]
            assert nbytes == spec.nbytes
            assert hub.landed[self._rank].get(tensor_id, -1) == round_ - 1, (
                f"{spec.name} pushed before it landed"
            )
            given = hub.pushes.setdefault((tensor_id, round_), {})
            assert self._rank not in given, f"{spec.name} pushed twice"
            memory = _view(data_ptr, nbytes)
            self._kept.append((round_, keepalive, memory))
            self._kept.append((round_, None, memory.clone()))
            given[self._rank] = (
                memory.clone().view(spec.dtype) if nbytes else torch.empty(0, dtype=spec.dtype)
            )
            self.log.append(("push", spec.name))
            hub.settle(tensor_id, round_)

    def round_end(self, round: int, absent_ids: Sequence[int]) -> None:  # noqa: A002
        hub = self.hub
        with hub.changed:
            assert round == self._round + 1, "rounds are numbered from 0"
            for spec in hub.plan:
                assert hub.landed[self._rank].get(spec.id, -1) >= round - 1, (
                    f"{spec.name} is pending from the last round"
                )
                pushed = self._rank in hub.pushes.get((spec.id, round), {})
                assert pushed != (spec.id in absent_ids), f"{spec.name}: pushed {pushed}, absent {not pushed}"
            self._round = round
            self.log.append(("round_end", round))
            hub.ended.setdefault(round, {})[self._rank] = frozenset(absent_ids)
            for tensor in absent_ids:
                hub.settle(tensor, round)
            # What was kept in case a server is lost must still be as it was handed over.
            done = [one for one in self._kept if one[0] < round]
            for (_, _, memory), (_, _, copied) in zip(done[::2], done[1::2], strict=True):
                assert torch.equal(memory, copied), "pushed memory was written to"
            del self._kept[: len(done)]

    def wait(self, ids: Sequence[int], on_interrupt: Callable[[], None]) -> None:
        hub = self.hub
        with hub.changed:
            self.log.append(("wait", [hub.plan[one].name for one in ids]))
            self._await(lambda: all(hub.landed[self._rank][one] == self._round for one in ids), on_interrupt)

    def landed(self, ids: Sequence[int]) -> int:
        with self.hub.changed:
            landed = (self.hub.landed[self._rank][one] == self._round for one in ids)
            return sum(1 for _ in itertools.takewhile(bool, landed))

    def received(self, tensor_id: int) -> object:
        return self.hub.results[self._rank][tensor_id].view(-1)

    def used(self, tensor_id: int) -> bool:
        assert self.hub.landed[self._rank][tensor_id] == self._round
        return tensor_id in self.hub.results[self._rank]

    def stats(self) -> Mapping[str, float]:
        return {"pushed_tensors": sum(kind == "push" for kind, _ in self.log)}

    def close(self) -> None:
        with self.hub.changed:
            self._closed = True
            self.hub.changed.notify_all()

    def _await(self, done: Callable[[], bool], on_interrupt: Callable[[], None] = lambda: None) -> None:
        quiet = 0.0
        while not done():
            if self.hub.lost:
                raise Lost(self.hub.lost)
            if self._closed:
                raise Closed("the exchange was closed")
            assert quiet < WATCHDOG, f"rank {self._rank} waits for ranks that do not come"
            if not self.hub.changed.wait(_TICK_S):
                quiet += _TICK_S
            on_interrupt()


def in_process(world: int, **disorder: Any) -> list[Exchange]:
    """A network for the fixture ``network``: exchanges of ``world`` ranks that are threads of this process."""
    return list(Hub(world, **disorder).exchanges())


@contextlib.contextmanager
def over_servers(servers: int = 1) -> Iterator[Callable[..., list[Exchange]]]:
    """The same through real servers of this process and real sockets; what ``disorder`` asks for they do by themselves."""
    from foresee._native import GradientServer
    from foresee._world import World
    from foresee.torch import _network
    from foresee.torch._exchange import ExchangeSettings
    from foresee.torch._network import NetworkExchange

    token, jobs, made = "a secret of 24 characters", itertools.count(), []
    started = [
        GradientServer.start("127.0.0.1:0", timeout_s=WATCHDOG, park_bytes=1 << 20, secret=token)
        for _ in range(servers)
    ]
    places = tuple(server.address for server in started)

    def connect(world: int, *, timeline: int = 0, **_: Any) -> list[Exchange]:
        settings = ExchangeSettings(places, None, "raise", WATCHDOG, f"job-{next(jobs)}", timeline=timeline)
        ranks: list[Exchange] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FORESEE_TOKEN", token)
            patch.setenv("FORESEE_JOB", "threads")
            for rank in range(world):
                patch.setattr(_network, "detect", lambda rank=rank: World(rank, world))
                ranks.append(NetworkExchange(settings))
        made.extend(ranks)
        return ranks

    yield connect
    for exchange in made:
        exchange.close()
    for server in started:
        server.close()


def _view(pointer: int, nbytes: int) -> torch.Tensor:
    """The bytes at ``pointer``, as they are, without a copy."""
    import ctypes

    if not nbytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_char * nbytes).from_address(pointer), dtype=torch.uint8)
