# SPDX-License-Identifier: Apache-2.0
"""Gradients through ``foresee._native``: lifetimes of memory, interrupted waits, copies of any dtype."""

from __future__ import annotations

import gc
import signal
import threading
import weakref

import numpy as np
import pytest
import torch
from support.processes import engine_threads
from support.processes import run as child
from support.ranks import run
from support.waiting import WATCHDOG, wait_until

from foresee._native import GradientExchange, GradientServer
from foresee._runtime.ranks import World
from foresee.errors import Closed, ConfigError, ForeseeError, ServerLost
from foresee.torch import _network
from foresee.torch._exchange import ExchangeSettings, TensorSpec, as_tensor
from foresee.torch._network import NetworkGroup

TOKEN = "a secret of 24 characters"
COUNT = 30_000


def started() -> GradientServer:
    return GradientServer.start("127.0.0.1:0", timeout_s=10, early_buffer_bytes=1 << 20, secret=TOKEN)


@pytest.fixture
def server():
    server = started()
    yield server
    server.close()


def opened(*servers, rank=0, world=1, **arguments) -> GradientExchange:
    arguments = {"job": "job", "timeout_s": 10.0, "secret": TOKEN, **arguments}
    return GradientExchange.open([one.address for one in servers], rank=rank, world=world, **arguments)


def nothing() -> None:
    pass


class Keeper:
    """Owns memory; weakly referable."""

    def __init__(self, value: float) -> None:
        self.memory = np.full(COUNT, value, dtype=np.float32)


def give(exchange: GradientExchange, keeper: Keeper) -> None:
    exchange.push(0, keeper.memory.ctypes.data, keeper.memory.nbytes, keeper)


def test_the_owner_of_memory_is_released_on_any_thread(server) -> None:
    exchange = opened(server)
    exchange.agree([("w", "float32", [COUNT], [1], 0, "mean")])
    alive = []
    for round_ in range(4):
        keeper = Keeper(round_)
        alive.append(weakref.ref(keeper))
        # Other threads push, as autograd's do, and have ended when the exchange releases memory.
        thread = threading.Thread(target=give, args=(exchange, keeper))
        thread.start()
        thread.join()
        assert alive[-1]() is not None
        del keeper, thread
        assert exchange.end_round() == round_
        exchange.wait([0], nothing)
        assert exchange.used(0) is True
        assert exchange.received(0).view(np.float32).tolist() == [round_] * COUNT
    exchange.close()
    del exchange

    def all_gone() -> bool:
        # The next call releases memory.
        server.stats()
        return not any(one() for one in alive)

    wait_until(all_gone, what="the release of all owners")


def test_a_received_average_is_writable_and_outlives_the_exchange(server) -> None:
    exchange = opened(server)
    exchange.agree([("w", "float32", [COUNT], [1], 0, "mean")])
    give(exchange, Keeper(3.0))
    exchange.end_round()
    exchange.wait([0], nothing)
    one, other = exchange.received(0), exchange.received(0)
    spec = TensorSpec(0, "w", "gradient", torch.float32, (COUNT,), (1,), 4 * COUNT, 0)
    tensor = as_tensor(one, spec)
    tensor.mul_(2)
    assert other.view(np.float32)[-1] == 6.0
    assert other.ctypes.data == tensor.data_ptr()
    exchange.close()
    del exchange, one, other
    gc.collect()
    assert tensor.sum() == 6.0 * COUNT


def test_a_wait_ends_by_its_callback_or_by_close(server) -> None:
    exchange = opened(server, world=2)
    other = opened(server, rank=1, world=2)
    plan = [("w", "float32", [COUNT], [1], 0, "mean")]
    thread = threading.Thread(target=other.agree, args=(plan,))
    thread.start()
    exchange.agree(plan)
    thread.join()
    give(exchange, Keeper(1.0))
    exchange.end_round()

    class Enough(Exception):
        pass

    calls = []

    def enough() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise Enough

    with pytest.raises(Enough):
        exchange.wait([0], enough)
    assert exchange.used(0) is True
    timer = threading.Timer(0.2, exchange.close)
    timer.start()
    with pytest.raises(Closed):
        exchange.wait([0], nothing)
    timer.join()
    other.close()


def test_ctrl_c_ends_waits_for_other_ranks(server) -> None:
    exchange = opened(server, world=2)
    timer = threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        exchange.agree([("w", "float32", [1], [1], 0, "mean")])
    timer.join()
    with pytest.raises(Closed):
        exchange.agree([("w", "float32", [1], [1], 0, "mean")])


def test_misuse_raises_an_error_of_foresee(server, monkeypatch) -> None:
    with pytest.raises(ConfigError, match="secret"):
        opened(server, secret="another secret, as long")
    with pytest.raises(ConfigError, match="FORESEE_TOKEN is not set"):
        opened(server, secret=None)
    with pytest.raises(ConfigError, match="one of foresee"):
        opened(server, policy="best")
    with pytest.raises(ConfigError, match="one of f32"):
        opened(server, comm_dtype="f8")
    with pytest.raises(ConfigError, match="rank"):
        opened(server, rank=2)
    with pytest.raises(ServerLost, match=r"nothing listens at 127\.0\.0\.1:9;") as lost:
        GradientExchange.open(["127.0.0.1:9"], job="j", rank=0, world=1, timeout_s=0.2, secret=TOKEN)
    assert lost.value.address == "127.0.0.1:9"
    exchange = opened(server)
    with pytest.raises(ConfigError, match="'w' is bool; one of float32"):
        exchange.agree([("w", "bool", [1], [1], 0, "mean")])
    with pytest.raises(ConfigError, match="not dense"):
        exchange.agree([("w", "float32", [2, 2], [1, 4], 0, "mean")])
    exchange.close()


ONE = ("w", "float32", [4, 3], [3, 1], 0, "mean")


@pytest.mark.parametrize(
    ("theirs", "settings", "words"),
    [
        ([("w", "float64", *ONE[2:])], {}, "tensor 'w': dtype is float32 on rank 0 and float64 on rank 1"),
        ([("w", "float32", [3, 4], [4, 1], 0, "mean")], {}, "tensor 'w': shape is"),
        ([("w", "float32", [4, 3], [1, 4], 0, "mean")], {}, "tensor 'w': strides is"),
        ([(*ONE[:5], "sum")], {}, "tensor 'w': operation is mean on rank 0 and sum on rank 1"),
        ([ONE, ("more", *ONE[1:])], {}, "tensor 'more' is missing on rank 0 and given on rank 1"),
        ([("other", *ONE[1:])], {}, "tensor 'w' is given on rank 0 and missing on rank 1"),
        ([], {}, "tensor 'w' is given on rank 0 and missing on rank 1"),
        (
            [ONE],
            {"comm_dtype": "bf16"},
            "dtype on the wire is f32 on rank 0 and bf16 on rank 1",
        ),
    ],
    ids=["dtype", "shape", "strides", "operation", "more", "another", "none", "comm_dtype"],
)
def test_ranks_with_different_tensors_get_an_error_with_the_difference(
    server, theirs, settings, words
) -> None:
    remedy = "pass the same comm_dtype= on all ranks" if settings else "every rank must build the same model"
    disagree([opened(server, world=2), opened(server, rank=1, world=2, **settings)], theirs, words, remedy)


def test_ranks_with_different_servers_get_an_error(server) -> None:
    another = started()
    words, remedy = (
        "[1] on rank 0 and [1, 1] on rank 1",
        "pass the same servers in the same order on all ranks",
    )
    disagree([opened(server, world=2), opened(server, another, rank=1, world=2)], [ONE], words, remedy)
    first = opened(server, another, world=2)
    with pytest.raises(ConfigError, match="as number 0 of its list, and others as number 1"):
        opened(another, server, rank=1, world=2)
    first.close()
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:\d+ twice: each is named once"):
        opened(server, server)
    another.close()


def disagree(ranks, theirs, words, remedy="every rank must build the same model") -> None:
    """Both ranks get the difference if the second one has other tensors or settings."""
    errors: list[ConfigError | None] = [None, None]

    def agree(rank: int) -> None:
        with pytest.raises(ConfigError) as raised:
            ranks[rank].agree([[ONE], theirs][rank])
        errors[rank] = raised.value

    threads = [threading.Thread(target=agree, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG)
    for error in errors:
        assert words in str(error)
        assert "on rank 0" in str(error)
        assert "on rank 1" in str(error)
        assert remedy in str(error)
    for rank in ranks:
        rank.close()


def test_ranks_with_different_world_sizes_get_an_error(server) -> None:
    first = opened(server, world=2)
    words = "has a world of 3 ranks, and others one of 2"
    with pytest.raises(ConfigError, match=words):
        opened(server, rank=1, world=3)
    # The rank that waits would otherwise wait forever.
    with pytest.raises(ForeseeError, match=words):
        first.agree([ONE])
    first.close()


def test_a_rank_whose_number_is_in_use_gets_an_error(server) -> None:
    first = opened(server, world=2)
    with pytest.raises(ServerLost, match="rank 0 of job 'job' is already connected from another process"):
        opened(server, world=2, timeout_s=0.5)
    first.close()


def test_ranks_that_exit_while_one_is_stopped_release_everything() -> None:
    # The server's buffer is too small for the early pushes of rank 2: it stops reading, and waits.
    server = GradientServer.start("127.0.0.1:0", timeout_s=10, early_buffer_bytes=64 << 10, secret=TOKEN)
    base = sorted(engine_threads())
    ranks = [opened(server, rank=rank, world=3) for rank in range(3)]
    plan = [("w", "float32", [1 << 20], [1], 0, "mean")]
    threads = [threading.Thread(target=rank.agree, args=(plan,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gradient = np.ones(1 << 20, np.float32)
    ranks[2].push(0, gradient.ctypes.data, gradient.nbytes, gradient)
    wait_until(lambda: server.stats()["parked_peak_bytes"] > 0, what="a buffered early gradient")
    for rank in ranks:
        rank.close()
    del rank, ranks
    gc.collect()
    wait_until(
        lambda: {name for name in engine_threads() if "sum" in name or "hear" in name} <= set(base),
        what="the end of the threads of a job whose ranks have left",
    )
    server.close()


@pytest.fixture
def groups(server, monkeypatch):
    """Groups of ranks that are threads of this process."""
    monkeypatch.setenv("FORESEE_TOKEN", TOKEN)
    monkeypatch.setenv("FORESEE_JOB", "threads")
    made = []

    def make(world: int, **arguments) -> list[NetworkGroup]:
        settings = {"comm_dtype": None, "on_rank_loss": "raise", "timeout_s": 10.0, **arguments}
        for rank in range(world):
            monkeypatch.setattr(_network, "detect", lambda rank=rank: World(rank, world))
            made.append(NetworkGroup(ExchangeSettings((server.address,), job="x", **settings)))
        return list(made)

    yield make
    for one in made:
        one.close()


def spec_of(id_: int, tensor: torch.Tensor, kind="gradient") -> TensorSpec:
    size = tensor.numel() * tensor.element_size()
    return TensorSpec(
        id_, f"t{id_}", kind, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), size, id_
    )


@pytest.mark.parametrize("comm_dtype", [None, "bf16"])
def test_a_broadcast_copies_every_bit_of_any_dtype_and_a_buffer_likewise(groups, comm_dtype) -> None:
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32]
    odd = [3, 5, 1, 7, 33_001, 2]

    def tensors(rank: int) -> list[torch.Tensor]:
        draw = torch.Generator().manual_seed(rank)
        made = []
        for dtype, count in zip(dtypes, odd, strict=True):
            octets = torch.randint(256, (count * dtype.itemsize,), dtype=torch.uint8, generator=draw)
            made.append(octets.view(dtype))
        # Infinities, NaN with a payload, -0.0 and a subnormal.
        special = [0x7F800000, 0x7FC12345, -0x80000000, 1]
        made.append(torch.tensor(special, dtype=torch.int32).add_(rank).view(torch.float32))
        return [*made, torch.empty(0)]

    def body(group: NetworkGroup) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
        exchange = group.exchange
        mine = tensors(exchange.rank)
        buffer, weight = torch.full((5,), 1.0 + 2.0**-20), torch.full((4,), 2.0 + exchange.rank)
        last = len(mine)
        plan = [spec_of(id_, one) for id_, one in enumerate(mine)]
        plan += [spec_of(last, buffer, "buffer"), spec_of(last + 1, weight)]
        group.agree(plan)
        group.broadcast(list(zip(plan, mine, strict=False)))
        # The previous plan applies again.
        if exchange.rank == 0:
            exchange.push(last, buffer.data_ptr(), 20, buffer)
        exchange.push(last + 1, weight.data_ptr(), 16, weight)
        exchange.end_round()
        exchange.wait([spec.id for spec in plan], nothing)
        assert [exchange.used(spec.id) for spec in plan] == [False] * last + [True, True]
        received = [as_tensor(exchange.received(id_), plan[id_]).clone() for id_ in (last, last + 1)]
        return mine, *received

    for mine, buffer, weight in run(groups(3, comm_dtype=comm_dtype), body):
        for one, expected in zip(mine, tensors(0), strict=True):
            assert one.view(torch.uint8).tolist() == expected.view(torch.uint8).tolist() or not one.numel()
        assert buffer.tolist() == [1.0 + 2.0**-20] * 5
        assert weight.tolist() == [3.0] * 4


def test_a_replacement_server_continues_and_is_logged(server, caplog) -> None:
    exchange = opened(server)
    exchange.agree([("w", "float32", [COUNT], [1], 0, "mean")])
    for round_ in range(3):
        address = server.address
        server.close()
        give(exchange, Keeper(round_))
        server = GradientServer.start(address, timeout_s=10, early_buffer_bytes=1 << 20, secret=TOKEN)
        assert exchange.end_round() == round_
        exchange.wait([0], nothing)
        assert exchange.received(0).view(np.float32).tolist() == [round_] * COUNT
        assert exchange.stats()["servers_back"] == round_ + 1
    exchange.close()
    server.close()
    assert len(caplog.messages) == 3
    assert f"server 0 at {address} was lost" in caplog.messages[0]
    assert "was replaced after" in caplog.messages[0]


def test_without_recovery_a_lost_server_ends_the_exchange(server) -> None:
    exchange = opened(server, recover=False)
    exchange.agree([("w", "float32", [COUNT], [1], 0, "mean")])

    def continue_rounds() -> None:
        while True:
            exchange.end_round()

    server.close()
    with pytest.raises(ServerLost, match="server is stopped") as lost:
        continue_rounds()
    assert lost.value.address == server.address
    exchange.close()


def test_unsupported_settings_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(_network, "detect", lambda: World(0, 1))
    settings = ExchangeSettings(("colocated",), None, on_rank_loss="continue", timeout_s=10.0, job="x")
    with pytest.raises(
        ConfigError, match="on_rank_loss='continue' is not possible with servers=\"colocated\""
    ):
        NetworkGroup(settings)


FORKED = """
import os, signal, sys
import torch
import foresee.torch as ft
from foresee.errors import ForeseeError
from support.processes import print_json

model = torch.nn.Linear(4, 4)
model, optimizer = ft.synchronize(model, torch.optim.SGD(model.parameters(), lr=0.1), servers=sys.argv[1])

def step():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()

def child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        sys.stderr = open(os.devnull, "w")
        sys.exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def state():
    try:
        model.state_dict()
    except ForeseeError as error:
        return 7 if "call optimizer.flush() before the fork" in str(error) else 8

def drop():
    global model, optimizer
    del model, optimizer

step(); step()
statuses = [child(state), child(lambda: None), child(drop)]
optimizer.flush()
statuses.append(child(lambda: len(model.state_dict())))
step()
optimizer.close()
print_json(statuses=statuses)
"""


@pytest.mark.parametrize("own", [False, True], ids=["dedicated", "colocated"])
def test_a_forked_child_leaves_the_parents_exchange_alone(server, own) -> None:
    env = {
        "FORESEE_TOKEN": TOKEN,
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }
    env |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    (report,) = child(FORKED, "colocated" if own else server.address, env=env, warm=True)
    assert report == {"statuses": [7, 0, 0, 2]}


def test_colocated_servers_have_one_address_per_rank() -> None:
    own = GradientServer.start(
        "127.0.0.1:0", timeout_s=10, early_buffer_bytes=1 << 20, secret=TOKEN, colocated=True
    )
    with pytest.raises(ConfigError, match="1 servers for 2 ranks, one colocated with each"):
        opened(own, world=2, colocated_server=own)
    exchange = opened(own, colocated_server=own)
    exchange.agree([("w", "float32", [3], [1], 0, "mean")])
    keeper = np.array([1.0, 2.0, 3.0], np.float32)
    exchange.push(0, keeper.ctypes.data, keeper.nbytes, keeper)
    exchange.end_round()
    exchange.wait([0], nothing)
    assert exchange.received(0).view(np.float32).tolist() == [1.0, 2.0, 3.0]
    exchange.close()
    own.close()
