# SPDX-License-Identifier: Apache-2.0
"""``ft.ddp_hook``: DistributedDataParallel with averages of sums in rank order."""

from __future__ import annotations

import gc
import json
import threading

import pyarrow.ipc
import pytest
import torch
from support.exchanges import Lost, ThreadServer, over_servers
from support.ranks import Training, run
from support.reference import mean_in_rank_order
from support.tensors import assert_same_bits, noise
from support.waiting import WATCHDOG, moment, pause
from torch import distributed, nn

import foresee.torch as ft
from foresee.errors import Closed, ConfigError


class Bucket:
    """The bucket that DDP passes to a hook."""

    def __init__(self, index, gradients, *, last):
        self._index, self._gradients, self._last = index, gradients, last

    def index(self):
        return self._index

    def buffer(self):
        return self._gradients

    def is_last(self):
        return self._last


def backward(state, sizes, rank, step):
    """Run one backward pass of DDP for a hook: buckets in order, then all futures."""
    given = [noise(size, seed=1000 * step + 10 * index + rank) for index, size in enumerate(sizes)]
    futures = [
        ft.ddp_hook(state, Bucket(index, gradients, last=index == len(sizes) - 1))
        for index, gradients in enumerate(given)
    ]
    results = [future.wait().clone() for future in futures]
    for gradients in given:
        gradients.fill_(float("nan"))  # DDP writes the next step's there
    return results


def expected(sizes, world, step):
    return [
        mean_in_rank_order(
            [noise(size, seed=1000 * step + 10 * index + rank) for rank in range(world)], world
        )
        for index, size in enumerate(sizes)
    ]


def test_buckets_are_averaged_in_rank_order_and_rebuilt_ones_are_agreed_on(network):
    layouts = [[6, 3, 2], [4, 4, 3], [4, 4, 3], [4, 5, 2, 1], [6, 3, 2]]

    def body(exchange):
        state = ft.DdpState(servers=exchange)
        results = [backward(state, sizes, exchange.rank, step) for step, sizes in enumerate(layouts)]
        stats = state.stats()
        state.close()
        return results, stats

    for results, stats in run(network(3, late=0.01), body):
        for step, sizes in enumerate(layouts):
            assert_same_bits(results[step], expected(sizes, 3, step))
        assert stats["rounds"] >= len(layouts)


def test_stats_have_the_exposed_time():
    """Only time after the last bucket of a backward pass counts as exposed."""
    state = ft.DdpState(servers=ThreadServer(1, slow=lambda rank, name: 0.2).exchange(0))
    assert state.stats()["exposed_s"] == state.stats()["exposed_last_round_s"] == 0
    before = 0.0
    # The second bucket is in the plan, the third is not: a round, a new plan, and another round.
    for step, sizes in enumerate([[3, 2], [3, 2], [3, 4]]):
        first = ft.ddp_hook(state, Bucket(0, torch.ones(sizes[0]), last=False))
        pause(0.2)
        began = moment()
        last = ft.ddp_hook(state, Bucket(1, torch.ones(sizes[1]), last=True))
        first.wait()
        last.wait()
        stood = moment() - began
        stats = state.stats()
        exposed = stats["exposed_s"] - before
        assert 0.1 < exposed <= stood, step
        assert 0.1 < stats["exposed_last_round_s"] <= exposed + 1e-9, step
        before = stats["exposed_s"]
    state.close()


def test_every_bucket_of_every_step_is_in_the_timeline_and_in_the_ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("FORESEE_TRACE", str(tmp_path))
    layouts = [[600, 30], [400, 230], [400, 230]]

    def body(exchange):
        state = ft.DdpState(servers=exchange, timeline=str(tmp_path / "step.json"))
        for step, sizes in enumerate(layouts):
            backward(state, sizes, exchange.rank, step)
        state.close()

    with over_servers(1) as connect:
        run(connect(2, timeline=1 << 16), body)
    for rank in range(2):
        events = json.loads((tmp_path / f"step.rank{rank}.json").read_text())
        pulled = {event["name"] for event in events if (event.get("cat"), event["ph"]) == ("pull", "e")}
        # The buckets of the first two steps are new.
        assert len([name for name in pulled if name.startswith("bucket 0 of 1600 bytes")]) == 2
        assert any(name.startswith("bucket 1 of 120 bytes") for name in pulled)
        with pyarrow.ipc.open_stream((tmp_path / "ledger" / f"rank-{rank}.arrow").read_bytes()) as stream:
            rows = stream.read_all().to_pylist()
        pushed = sorted(row["bytes"] for row in rows if row["op"] == "push")
        assert pushed == sorted(4 * size for sizes in layouts for size in sizes)
    with pytest.raises(ConfigError, match="timeline=''; the path of a file"):
        ft.DdpState(servers="127.0.0.1:1", timeline="")


def test_a_failure_reaches_every_future_and_every_later_bucket():
    server = ThreadServer(2)

    def body(exchange):
        state = ft.DdpState(servers=exchange)
        backward(state, [3, 2], exchange.rank, 0)
        if exchange.rank == 1:
            server.lose("rank 1 is lost")
            return
        futures = [
            ft.ddp_hook(state, Bucket(i, torch.ones(size), last=i == 1)) for i, size in enumerate([3, 2])
        ]
        for future in futures:
            with pytest.raises(Exception, match="rank 1 is lost"):
                future.wait()
        with pytest.raises(Lost, match="rank 1 is lost"):
            ft.ddp_hook(state, Bucket(0, torch.ones(3), last=True))

    run(server.exchanges(), body)


def test_backward_raises_the_error_that_ended_the_exchange():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        server = ThreadServer(2)
        first, second = server.exchanges()
        received = threading.Event()

        def body(exchange):
            if exchange is second:
                backward(ft.DdpState(servers=exchange), [10], 1, 0)
                received.wait(WATCHDOG)
                server.lose("rank 1 is lost")
                return
            ddp = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
            ddp.register_comm_hook(ft.DdpState(servers=exchange), ft.ddp_hook)
            ddp(noise(3, 4, seed=0)).sum().backward()
            received.set()
            with pytest.raises(Lost, match="rank 1 is lost"):
                ddp(noise(3, 4, seed=1)).sum().backward()

        run([first, second], body)
    finally:
        distributed.destroy_process_group()


def test_a_closed_or_dropped_state_ends_its_thread():
    state = ft.DdpState(servers=ThreadServer(1).exchange(0))
    backward(state, [3], 0, 0)
    state.close()
    with pytest.raises(Closed):
        ft.ddp_hook(state, Bucket(0, torch.ones(3), last=True))
    state.close()
    dropped = ft.DdpState(servers=ThreadServer(1).exchange(0))
    thread = dropped._thread
    backward(dropped, [3], 0, 0)
    del dropped
    gc.collect()
    thread.join(WATCHDOG)
    assert not thread.is_alive()


def test_all_wrong_arguments_are_reported_at_once():
    with pytest.raises(ConfigError) as raised:
        ft.DdpState(servers="nowhere", timeout=0, comm_dtype="f8")
    assert len(raised.value.faults) == 3


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("view", [False, True])
def test_ddp_itself_trains_with_the_bits_of_rank_order(network, monkeypatch, view):
    """DDP starts with a process group per thread; gradients use the hook."""
    # DDP stores the running forward pass per process, so one of two threads may restore that of the other.
    monkeypatch.setattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    world = 2

    def model():
        return nn.Sequential(nn.Linear(4, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 2))

    training = Training(
        model,
        lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
        lambda step, rank: noise(3, 4, seed=10 * step + rank),
    )
    reference = training.reference(world)
    pairs = [training.fresh() for _ in range(world)]
    store = distributed.HashStore()

    def body(exchange):
        group = distributed.ProcessGroup(store, exchange.rank, world)
        kind = distributed.ProcessGroup.BackendType.GLOO
        group._set_default_backend(kind)
        backend = distributed.ProcessGroupGloo(store, exchange.rank, world)
        group._register_backend(torch.device("cpu"), kind, backend)
        net, optimizer = pairs[exchange.rank]
        ddp = nn.parallel.DistributedDataParallel(
            net, process_group=group, bucket_cap_mb=0.005, gradient_as_bucket_view=view
        )
        state = ft.DdpState(servers=exchange)
        ddp.register_comm_hook(state, ft.ddp_hook)
        for step in range(training.steps):
            optimizer.zero_grad()
            training.loss(ddp, training.batch(step, exchange.rank)).backward()
            optimizer.step()
        state.close()
        return {name: value.clone() for name, value in net.state_dict().items()}

    for state in run(network(world, late=0.005), body):
        assert_same_bits(state, reference["model"])


def test_ranks_with_different_recover_raise_in_the_first_backward(network):
    def body(exchange):
        state = ft.DdpState(servers=exchange)
        # Like ranks that open their exchanges themselves.
        state._compared = [("recover=", str(exchange.rank == 0), "so give every rank the same")]
        with pytest.raises(ConfigError, match=r"recover= is True on rank 0 and False on rank 1, so give"):
            backward(state, [4, 3], exchange.rank, 0)
        state.close()
        state.close()

    run(network(2), body)
