# SPDX-License-Identifier: Apache-2.0
"""A ``GradientExchange`` within one process, for tests: ranks are threads, and averages may be late and shuffled.

It computes averages as the servers do: contributions are added one by one in rank order, 16-bit floats in f32, absent
ranks skipped, with one true division by the number of ranks and one rounding. It also checks the contract: a second push,
a wait before the round's end, or two overlapping rounds of a tensor fail the test with an assertion.
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

#: Seconds between two calls of ``on_interrupt``.
_TICK_S = 0.05


class Lost(ForeseeError):
    """A rank of the test is lost."""


class Planned:
    """One tensor of the plan."""

    def __init__(self, id_: int, tensor: PlannedTensor) -> None:
        self.id = id_
        self.name, dtype, shape, strides, self.priority, self.op = tensor
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.shape, self.strides = tuple(shape), tuple(strides)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize


@dataclass
class ServerRounds:
    """State of the rounds of one plan, by tensor id and rank; rounds are numbered from 0."""

    world: int
    pushes: dict[tuple[int, int], dict[int, torch.Tensor]] = field(default_factory=dict)
    ended: list[int] = field(init=False)
    """Last ended round by rank."""
    absent: dict[int, dict[int, frozenset[int]]] = field(default_factory=dict)
    """Ids that a rank did not push, by round and rank."""
    received: list[dict[int, int]] = field(init=False)
    """Last received round by rank and tensor."""
    results: list[dict[int, torch.Tensor]] = field(init=False)
    sums: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ended = [-1] * self.world
        self.received = [{} for _ in range(self.world)]
        self.results = [{} for _ in range(self.world)]


class ThreadServer:
    """The server of ``world`` ranks that are threads.

    Args:
        world: number of ranks.
        late: maximal delay of an average in seconds. Delays are drawn per rank and tensor, so averages come in any order.
        seed: of the delays.
        slow: an additional delay by rank and tensor name.
        held: whether to hold an average back until `release`, by rank and tensor name.

    Plans without a mean belong to collectives: their rounds are counted separately, are not logged, and are not delayed.
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
        self.training = ServerRounds(world)
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
        """Whether the present plan is one of training steps."""
        return self.rounds is self.training

    def exchange(self, rank: int) -> ThreadExchange:
        return ThreadExchange(self, rank)

    def exchanges(self) -> list[ThreadExchange]:
        return [self.exchange(rank) for rank in range(self.world)]

    def lose(self, who: str) -> None:
        """Fail all waits from here on, with the loss of ``who``."""
        with self.changed:
            self.lost = who
            self.changed.notify_all()

    def release(self) -> None:
        """Deliver the averages that ``held`` no longer holds back."""
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
        self.rounds = self.training if is_training else ServerRounds(self.world)
        for rank, received in enumerate(self.rounds.received):
            for spec in plan:
                received[spec.id] = self.rounds.ended[rank]

    def settle(self, tensor: int, round_: int) -> None:
        """Deliver the mean to all ranks, if each has pushed the tensor or ended the round without it."""
        rounds = self.rounds
        pushed = rounds.pushes.get((tensor, round_), {})
        absent = {rank for rank, ids in rounds.absent.get(round_, {}).items() if tensor in ids}
        if len(pushed) + len(absent) < self.world or (tensor, round_) in rounds.sums:
            return
        spec = self.plan[tensor]
        mean = mean_in_rank_order(
            [pushed[rank] for rank in sorted(pushed)], self.world if spec.op == "mean" else 1
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
        self, rounds: ServerRounds, rank: int, tensor: int, round_: int, mean: torch.Tensor | None
    ) -> None:
        with self.changed:
            self._deliver(rounds, rank, tensor, round_, mean)

    def _deliver(
        self, rounds: ServerRounds, rank: int, tensor: int, round_: int, mean: torch.Tensor | None
    ) -> None:
        assert rounds.received[rank].get(tensor, -1) == round_ - 1, "a tensor's rounds overlap"
        rounds.received[rank][tensor] = round_
        if mean is None:
            rounds.results[rank].pop(tensor, None)
        else:
            # Memory is reused, as in the native exchange.
            memory = rounds.results[rank].get(tensor)
            if memory is None or memory.shape != mean.shape:
                rounds.results[rank][tensor] = mean.clone()
            else:
                memory.copy_(mean)
        self.changed.notify_all()


class ThreadExchange:
    """The exchange of one rank."""

    def __init__(self, server: ThreadServer, rank: int) -> None:
        self.server = server
        self._rank = rank
        self._closed = False
        self._retained: list[tuple[int, object, torch.Tensor]] = []
        self.log: list[tuple[str, Any]] = []
        """Calls of training, in order: ("push", name), ("end_round", round), ("wait", names)."""

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world(self) -> int:
        return self.server.world

    @property
    def first(self) -> int:
        return 0

    @property
    def _round(self) -> int:
        """The last round that this rank ended."""
        return self.server.rounds.ended[self._rank]

    def agree(self, tensors: Sequence[PlannedTensor], *, limit_s: float | None = None) -> None:
        server = self.server
        with server.changed:
            received = server.rounds.received[self._rank]
            assert all(received.get(t.id, -1) == self._round for t in server.plan), "agreed in flight"
            mine = sum(self._rank in one for one in server.agreements)
            if mine == len(server.agreements):
                server.agreements.append({})
            agreement = server.agreements[mine]
            agreement[self._rank] = [Planned(id_, tensor) for id_, tensor in enumerate(tensors)]
            if len(agreement) == server.world and not _difference(agreement):
                server.adopt(agreement[0])
            server.changed.notify_all()
            self._await(lambda: len(agreement) == server.world)
            difference = _difference(agreement)
            if difference:
                raise ConfigError(difference)

    def push(self, tensor_id: int, data_ptr: int, nbytes: int, keepalive: object) -> None:
        server, round_ = self.server, self._round + 1
        with server.changed:
            rounds, spec = server.rounds, server.plan[tensor_id]
            assert nbytes == spec.nbytes
            assert rounds.received[self._rank].get(tensor_id, -1) == round_ - 1, (
                f"{spec.name} pushed before it was received"
            )
            pushed = rounds.pushes.setdefault((tensor_id, round_), {})
            assert self._rank not in pushed, f"{spec.name} pushed twice"
            memory = _view(data_ptr, nbytes)
            if server.trains:
                self._retained.append((round_, keepalive, memory))
                self._retained.append((round_, None, memory.clone()))
                self.log.append(("push", spec.name))
            pushed[self._rank] = (
                memory.clone().view(spec.dtype) if nbytes else torch.empty(0, dtype=spec.dtype)
            )
            server.settle(tensor_id, round_)

    def end_round(self) -> int:
        server = self.server
        with server.changed:
            rounds, round_ = server.rounds, self._round + 1
            absent = frozenset(
                spec.id for spec in server.plan if self._rank not in rounds.pushes.get((spec.id, round_), {})
            )
            for spec in server.plan:
                assert rounds.received[self._rank].get(spec.id, -1) >= round_ - 1, (
                    f"{spec.name} is pending from the last round"
                )
            rounds.ended[self._rank] = round_
            rounds.absent.setdefault(round_, {})[self._rank] = absent
            for tensor in sorted(absent):
                server.settle(tensor, round_)
            if server.trains:
                self.log.append(("end_round", round_))
                # Memory that is retained for recovery must be unchanged.
                done = [one for one in self._retained if one[0] < round_]
                for (_, _, memory), (_, _, copied) in zip(done[::2], done[1::2], strict=True):
                    assert torch.equal(memory, copied), "pushed memory was written to"
                del self._retained[: len(done)]
            return round_

    def wait(self, ids: Sequence[int], on_interrupt: Callable[[], object]) -> None:
        server = self.server
        with server.changed:
            if server.trains:
                self.log.append(("wait", [server.plan[one].name for one in ids]))
            received = server.rounds.received[self._rank]
            self._await(lambda: all(received[one] == self._round for one in ids), on_interrupt)

    def count_received(self, ids: Sequence[int]) -> int:
        with self.server.changed:
            received = (self.server.rounds.received[self._rank][one] == self._round for one in ids)
            return sum(1 for _ in itertools.takewhile(bool, received))

    def received(self, tensor_id: int) -> object:
        return self.server.rounds.results[self._rank][tensor_id].view(-1)

    def used(self, tensor_id: int) -> bool:
        assert self.server.rounds.received[self._rank][tensor_id] == self._round
        return tensor_id in self.server.rounds.results[self._rank]

    def stats(self) -> Mapping[str, float]:
        return {"pushed_tensors": sum(kind == "push" for kind, _ in self.log)}

    def close(self) -> None:
        with self.server.changed:
            self._closed = True
            self.server.changed.notify_all()

    def _await(self, done: Callable[[], bool], on_interrupt: Callable[[], object] = lambda: None) -> None:
        quiet = 0.0
        while not done():
            if self.server.lost:
                raise Lost(self.server.lost)
            if self._closed:
                raise Closed("the exchange was closed")
            assert quiet < WATCHDOG, f"rank {self._rank} waits for ranks that do not come"
            if not self.server.changed.wait(_TICK_S):
                quiet += _TICK_S
            on_interrupt()


def _difference(agreement: Mapping[int, list[Planned]]) -> str | None:
    """Return the first difference between the plans of ranks."""
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
    """Return exchanges of ``world`` ranks that are threads of this process, for the fixture ``network``."""
    return list(ThreadServer(world, **disorder).exchanges())


@contextlib.contextmanager
def over_servers(servers: int = 1) -> Iterator[Callable[..., list[GradientExchange]]]:
    """Yield the same over real servers of this process and real sockets, which need no artificial delays."""
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
    addresses = tuple(server.address for server in started)

    def connect(world: int, *, timeline: int = 0, **_: Any) -> list[GradientExchange]:
        settings = ExchangeSettings(
            addresses, None, "raise", WATCHDOG, f"job-{next(jobs)}", timeline=timeline
        )
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
    """Return the bytes at ``pointer`` without a copy."""
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_char * nbytes).from_address(pointer), dtype=torch.uint8)
