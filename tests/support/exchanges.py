# SPDX-License-Identifier: Apache-2.0
"""A ``GradientExchange`` inside of one process, for tests: ranks are threads, and averages may be late and shuffled.

It does by the plainest code what the servers do: contributions are added one by one in rank order, 16-bit floats in
f32, absent ranks skipped, one true division by the number of ranks, one rounding. It also checks the contract: a second
push, a wait before the round's end, or two rounds of a tensor that overlap fail the test with an assertion.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from foresee.errors import Closed, ConfigError, ForeseeError
from foresee.torch._exchange import GradientExchange, PlannedTensor
from support.reference import mean_in_rank_order
from support.waiting import WATCHDOG

#: Seconds between two questions whether the caller wants to be interrupted.
_TICK_S = 0.05


class Lost(ForeseeError):
    """A rank of the test is gone."""


class Planned:
    """One tensor of the plan."""

    def __init__(self, id_: int, tensor: PlannedTensor) -> None:
        self.id = id_
        self.name, dtype, shape, strides, self.priority, self.op = tensor
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.shape, self.strides = tuple(shape), tuple(strides)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize


@dataclass
class HubRounds:
    """What ranks have pushed, ended and received; rounds are numbered from 0, by tensor id and by rank."""

    world: int
    pushes: dict[tuple[int, int], dict[int, torch.Tensor]] = field(default_factory=dict)
    ended: list[int] = field(init=False)
    """By rank, the last round that it ended."""
    absent: dict[int, dict[int, frozenset[int]]] = field(default_factory=dict)
    """By round and rank, what the rank did not push."""
    received: list[dict[int, int]] = field(init=False)
    """By rank and tensor, the last round that was received."""
    results: list[dict[int, torch.Tensor]] = field(init=False)
    sums: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ended = [-1] * self.world
        self.received = [{} for _ in range(self.world)]
        self.results = [{} for _ in range(self.world)]


class Hub:
    """Where the exchanges of ``world`` ranks meet.

    ``late``: seconds, the most by which an average is delayed; delays are drawn from ``seed`` per rank and tensor, so
    averages come in any order. 0: at once. ``slow``: by rank and tensor name, added to the delay. ``held``: by
    rank and tensor name, whether an average is held back until `release` is called and it is held no more.

    Plans without a mean are those of collectives: their rounds are counted by themselves, appear in no log, and are
    neither late nor held.
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
        self.training = HubRounds(world)
        self.rounds = self.training
        self.agreements: list[dict[int, list[Planned]]] = []
        self.plan: list[Planned] = []
        self.lost: str | None = None
        self.late, self.slow = late, slow or (lambda rank, name: 0.0)
        self.held = held or (lambda rank, name: False)
        self._held_back: list[tuple[int, int, int, torch.Tensor | None]] = []
        self._draw = random.Random(seed)

    @property
    def trains(self) -> bool:
        """Whether the present plan is one of training steps, not of a collective."""
        return self.rounds is self.training

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
        """Deliver what was held back and is held no more."""
        with self.changed:
            before, self._held_back = self._held_back, []
            for rank, tensor, round_, mean in before:
                if self.held(rank, self.plan[tensor].name):
                    self._held_back.append((rank, tensor, round_, mean))
                else:
                    self._deliver(self.training, rank, tensor, round_, mean)

    def rounds_of(self, rank: int, name: str) -> int:
        """The number of the last round of training in which a rank received a tensor."""
        with self.changed:
            (tensor,) = (spec.id for spec in self.plan if spec.name == name)
            return self.training.received[rank][tensor]

    # Called with ``changed`` held.

    def adopt(self, plan: list[Planned]) -> None:
        """All ranks have agreed on ``plan``."""
        self.plan = plan
        is_training = any(spec.op == "mean" for spec in plan)
        self.rounds = self.training if is_training else HubRounds(self.world)
        for rank, received in enumerate(self.rounds.received):
            for spec in plan:
                received[spec.id] = self.rounds.ended[rank]

    def settle(self, tensor: int, round_: int) -> None:
        """Deliver the mean everywhere, if all ranks have pushed the tensor or said that they do not."""
        rounds = self.rounds
        given = rounds.pushes.get((tensor, round_), {})
        absent = {rank for rank, ids in rounds.absent.get(round_, {}).items() if tensor in ids}
        if len(given) + len(absent) < self.world or (tensor, round_) in rounds.sums:
            return
        spec = self.plan[tensor]
        # Whether nobody pushed is known only when all have said so.
        mean = mean_in_rank_order(
            [given[rank] for rank in sorted(given)], self.world if spec.op == "mean" else 1
        )
        rounds.sums.add((tensor, round_))
        for rank in range(self.world):
            if self.trains and self.held(rank, spec.name):
                self._held_back.append((rank, tensor, round_, mean))
                continue
            delay = 0.0
            if self.trains:
                delay = (self._draw.random() * self.late if self.late else 0.0) + self.slow(rank, spec.name)
            if delay:
                threading.Timer(delay, self._deliver_late, (rounds, rank, tensor, round_, mean)).start()
            else:
                self._deliver(rounds, rank, tensor, round_, mean)

    def _deliver_late(
        self, rounds: HubRounds, rank: int, tensor: int, round_: int, mean: torch.Tensor | None
    ) -> None:
        with self.changed:
            self._deliver(rounds, rank, tensor, round_, mean)

    def _deliver(
        self, rounds: HubRounds, rank: int, tensor: int, round_: int, mean: torch.Tensor | None
    ) -> None:
        assert rounds.received[rank].get(tensor, -1) == round_ - 1, "a tensor's rounds overlap"
        rounds.received[rank][tensor] = round_
        if mean is None:
            rounds.results[rank].pop(tensor, None)
        else:
            # Memory that is used again, as the real one's is.
            kept = rounds.results[rank].get(tensor)
            if kept is None or kept.shape != mean.shape:
                rounds.results[rank][tensor] = mean.clone()
            else:
                kept.copy_(mean)
        self.changed.notify_all()


class ThreadExchange:
    """One rank's end of a hub."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub = hub
        self._rank = rank
        self._closed = False
        self._kept: list[tuple[int, object, torch.Tensor]] = []
        self.log: list[tuple[str, Any]] = []
        """Calls of training, in order: ("push", name), ("end_round", round), ("wait", names)."""

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world(self) -> int:
        return self.hub.world

    @property
    def first(self) -> int:
        return 0

    @property
    def _round(self) -> int:
        """The last one that this rank ended."""
        return self.hub.rounds.ended[self._rank]

    def agree(self, tensors: Sequence[PlannedTensor], *, limit_s: float | None = None) -> None:
        hub = self.hub
        with hub.changed:
            received = hub.rounds.received[self._rank]
            assert all(received.get(t.id, -1) == self._round for t in hub.plan), "agreed in flight"
            mine = sum(self._rank in one for one in hub.agreements)
            if mine == len(hub.agreements):
                hub.agreements.append({})
            agreement = hub.agreements[mine]
            agreement[self._rank] = [Planned(id_, tensor) for id_, tensor in enumerate(tensors)]
            if len(agreement) == hub.world and not _difference(agreement):
                hub.adopt(agreement[0])
            hub.changed.notify_all()
            self._await(lambda: len(agreement) == hub.world)
            difference = _difference(agreement)
            if difference:
                raise ConfigError(difference)

    def push(self, tensor_id: int, data_ptr: int, nbytes: int, keepalive: object) -> None:
        hub, round_ = self.hub, self._round + 1
        with hub.changed:
            rounds, spec = hub.rounds, hub.plan[tensor_id]
            assert nbytes == spec.nbytes
            assert rounds.received[self._rank].get(tensor_id, -1) == round_ - 1, (
                f"{spec.name} pushed before it was received"
            )
            given = rounds.pushes.setdefault((tensor_id, round_), {})
            assert self._rank not in given, f"{spec.name} pushed twice"
            memory = _view(data_ptr, nbytes)
            if hub.trains:
                self._kept.append((round_, keepalive, memory))
                self._kept.append((round_, None, memory.clone()))
                self.log.append(("push", spec.name))
            given[self._rank] = (
                memory.clone().view(spec.dtype) if nbytes else torch.empty(0, dtype=spec.dtype)
            )
            hub.settle(tensor_id, round_)

    def end_round(self) -> int:
        hub = self.hub
        with hub.changed:
            rounds, round_ = hub.rounds, self._round + 1
            absent = frozenset(
                spec.id for spec in hub.plan if self._rank not in rounds.pushes.get((spec.id, round_), {})
            )
            for spec in hub.plan:
                assert rounds.received[self._rank].get(spec.id, -1) >= round_ - 1, (
                    f"{spec.name} is pending from the last round"
                )
            rounds.ended[self._rank] = round_
            rounds.absent.setdefault(round_, {})[self._rank] = absent
            for tensor in sorted(absent):
                hub.settle(tensor, round_)
            if hub.trains:
                self.log.append(("end_round", round_))
                # What was retained in case a server is lost must still be as it was handed over.
                done = [one for one in self._kept if one[0] < round_]
                for (_, _, memory), (_, _, copied) in zip(done[::2], done[1::2], strict=True):
                    assert torch.equal(memory, copied), "pushed memory was written to"
                del self._kept[: len(done)]
            return round_

    def wait(self, ids: Sequence[int], on_interrupt: Callable[[], object]) -> None:
        hub = self.hub
        with hub.changed:
            if hub.trains:
                self.log.append(("wait", [hub.plan[one].name for one in ids]))
            received = hub.rounds.received[self._rank]
            self._await(lambda: all(received[one] == self._round for one in ids), on_interrupt)

    def count_received(self, ids: Sequence[int]) -> int:
        with self.hub.changed:
            received = (self.hub.rounds.received[self._rank][one] == self._round for one in ids)
            return sum(1 for _ in itertools.takewhile(bool, received))

    def received(self, tensor_id: int) -> object:
        return self.hub.rounds.results[self._rank][tensor_id].view(-1)

    def used(self, tensor_id: int) -> bool:
        assert self.hub.rounds.received[self._rank][tensor_id] == self._round
        return tensor_id in self.hub.rounds.results[self._rank]

    def stats(self) -> Mapping[str, float]:
        return {"pushed_tensors": sum(kind == "push" for kind, _ in self.log)}

    def close(self) -> None:
        with self.hub.changed:
            self._closed = True
            self.hub.changed.notify_all()

    def _await(self, done: Callable[[], bool], on_interrupt: Callable[[], object] = lambda: None) -> None:
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


def _difference(agreement: Mapping[int, list[Planned]]) -> str | None:
    """What differs first between the plans of ranks."""
    first = agreement[0]
    for rank, theirs in sorted(agreement.items()):
        if len(theirs) != len(first):
            return f"rank {rank} has {len(theirs)} tensors, rank 0 has {len(first)}"
        for a, b in zip(first, theirs, strict=True):
            for key in ("name", "dtype", "shape", "strides", "op"):
                one, other = getattr(a, key), getattr(b, key)
                if one != other:
                    return f"{a.name}: {key} is {one} on rank 0 and {other} on rank {rank}"
    return None


def in_process(world: int, **disorder: Any) -> list[GradientExchange]:
    """A network for the fixture ``network``: exchanges of ``world`` ranks that are threads of this process."""
    return list(Hub(world, **disorder).exchanges())


@contextlib.contextmanager
def over_servers(servers: int = 1) -> Iterator[Callable[..., list[GradientExchange]]]:
    """The same through real servers of this process and real sockets; what ``disorder`` asks for they do by themselves."""
    from foresee._native import GradientServer
    from foresee._runtime.ranks import World
    from foresee.torch import _network
    from foresee.torch._exchange import ExchangeSettings
    from foresee.torch._network import NetworkGroup

    token, jobs, made = "a secret of 24 characters", itertools.count(), []
    started = [
        GradientServer.start("127.0.0.1:0", timeout_s=WATCHDOG, early_buffer_bytes=1 << 20, secret=token)
        for _ in range(servers)
    ]
    places = tuple(server.address for server in started)

    def connect(world: int, *, timeline: int = 0, **_: Any) -> list[GradientExchange]:
        settings = ExchangeSettings(places, None, "raise", WATCHDOG, f"job-{next(jobs)}", timeline=timeline)
        groups: list[NetworkGroup] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FORESEE_TOKEN", token)
            patch.setenv("FORESEE_JOB", "threads")
            for rank in range(world):
                patch.setattr(_network, "detect", lambda rank=rank: World(rank, world))
                groups.append(NetworkGroup(settings))
        made.extend(groups)
        return [group.exchange for group in groups]

    yield connect
    for group in made:
        group.close()
    for server in started:
        server.close()


def _view(pointer: int, nbytes: int) -> torch.Tensor:
    """The bytes at ``pointer``, as they are, without a copy."""
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_char * nbytes).from_address(pointer), dtype=torch.uint8)
