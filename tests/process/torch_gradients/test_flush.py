# SPDX-License-Identifier: Apache-2.0
"""Flush points: methods that expose weights or states receive all updates, and copies and files are plain."""

from __future__ import annotations

import copy
import gc
import io
import os
import pathlib
import pickle
import subprocess
import sys
import threading

import pytest
import torch
from support.exchanges import ThreadServer
from support.house import ROOT
from support.ranks import Training
from support.small_models import function_modes
from support.tensors import assert_same_bits, noise
from torch import nn, overrides

import foresee.torch as ft


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.body(x))))


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def batch(step, rank=0):
    return noise(3, 4, seed=10 * step + rank)


TRAINING = Training(Net, adam, batch)


def trained(steps=3, **disorder):
    """One rank with updates in flight."""
    model, optimizer = TRAINING.fresh()
    model, optimizer = ft.synchronize(
        model, optimizer, servers=ThreadServer(1, late=0.02, **disorder).exchange(0)
    )
    train(model, optimizer, steps)
    return model, optimizer


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()


def stock(steps=3):
    model, optimizer = TRAINING.fresh()
    train(model, optimizer, steps)
    return model, optimizer


def weights(model):
    """Return the weights in memory without a flush."""
    return {name: tensor.detach().clone() for name, tensor in nn.Module.state_dict(model).items()}


POINTS = {
    "state_dict": lambda model, optimizer: model.state_dict(),
    "child's state_dict": lambda model, optimizer: model.head.state_dict(),
    "optimizer's state_dict": lambda model, optimizer: optimizer.state_dict(),
    "parameters": lambda model, optimizer: model.parameters(),
    "named_parameters": lambda model, optimizer: model.named_parameters(),
    "eval": lambda model, optimizer: model.eval(),
    "flush": lambda model, optimizer: optimizer.flush(),
    "to": lambda model, optimizer: (optimizer.zero_grad(), model.to(torch.float32)),
    "deepcopy": lambda model, optimizer: copy.deepcopy(model),
    "save": lambda model, optimizer: torch.save(model, io.BytesIO()),
    "save the optimizer": lambda model, optimizer: torch.save(optimizer, io.BytesIO()),
    "close": lambda model, optimizer: optimizer.close(),
    "evaluate": lambda model, optimizer: torch.no_grad()(model)(batch(9)),
}


@pytest.mark.parametrize("point", POINTS)
def test_every_flush_point_receives_everything(point):
    model, optimizer = trained()
    POINTS[point](model, optimizer)
    seen = {name: tensor.detach().clone() for name, tensor in _raw(model)}
    expected, _ = stock()
    if point == "evaluate":
        expected(batch(9))
    names = {name for name, _ in expected.named_parameters()}
    assert_same_bits({n: seen[n] for n in names}, {n: t.detach() for n, t in expected.named_parameters()})


def _raw(model, prefix=""):
    for name, child in model._modules.items():
        for key, tensor in dict.items(child._parameters):  # without receiving them
            yield f"{name}.{key}", tensor


def test_without_a_flush_point_updates_are_in_flight():
    """The tests above rely on updates in flight."""
    model, _ = trained()
    expected, _ = stock()
    seen = dict(_raw(model))
    assert any(not torch.equal(seen[name], tensor) for name, tensor in expected.named_parameters())


def test_train_in_every_step_and_zero_grad_keep_updates_in_flight():
    model, optimizer = trained()
    before = {name: tensor.detach().clone() for name, tensor in _raw(model)}
    model.train()
    model.zero_grad()
    optimizer.zero_grad()
    assert_same_bits(dict(_raw(model)), before)


def test_a_loaded_state_is_not_overwritten_by_pending_updates():
    model, optimizer = trained()
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 2, first=3)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    train(model, optimizer, 2, first=3)
    expected, theirs = stock(5)
    assert_same_bits(dict(model.state_dict()), dict(expected.state_dict()))
    assert_same_bits(optimizer.state_dict()["state"], theirs.state_dict()["state"])


def test_a_loaded_child_is_not_overwritten_by_pending_updates():
    model, optimizer = trained()
    model.head.load_state_dict({"weight": torch.ones(2, 4), "bias": torch.ones(2)})
    optimizer.flush()
    assert (model.head.weight == 1).all()


def test_a_deep_copy_is_plain_and_trains_alone():
    model, _ = trained()
    twin = copy.deepcopy(model)
    assert type(twin) is Net
    assert_same_bits(dict(twin.state_dict()), dict(stock()[0].state_dict()))
    before = dict(model.state_dict())
    before = {name: tensor.clone() for name, tensor in before.items()}
    train(twin, adam(twin), 2)
    assert_same_bits(dict(model.state_dict()), before)


@pytest.mark.parametrize("when", ["before the first step", "later"])
def test_a_copy_made_at_any_time_is_plain(when):
    model, optimizer = trained(0 if when.startswith("before") else 2)
    for one in (model, model.head):
        twin = copy.deepcopy(one)
        assert type(twin) is (Net if one is model else nn.Linear)
        twin.train()
        twin(batch(0))
    train(model, optimizer, 2)


def test_a_copy_of_the_optimizer_is_plain():
    _, optimizer = trained()
    twin = copy.deepcopy(optimizer)
    assert type(twin) is torch.optim.AdamW
    assert_same_bits(twin.state_dict()["state"], stock()[1].state_dict()["state"])
    twin.step()


def test_a_saved_model_loads_without_foresee(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model, optimizer = ft.synchronize(model, adam(model), servers=ThreadServer(1).exchange(0))
    torch.save(model, tmp_path / "before.pt")
    train(model, optimizer, 2)
    torch.save(model, tmp_path / "model.pt")
    torch.save(model[1], tmp_path / "child.pt")
    torch.save(optimizer, tmp_path / "optimizer.pt")
    code = f"""
import sys, torch
sys.modules["foresee"] = None
for name in ("before", "model", "child", "optimizer"):
    one = torch.load(f"{tmp_path}/{{name}}.pt", weights_only=False)
    assert type(one).__module__.startswith("torch."), type(one)
    if name != "optimizer":
        one(torch.ones(1, 4)).sum().backward()
print("opened")
"""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert ended.stdout == "opened\n", ended.stderr


def test_an_averaged_model_averages_the_updated_weights():
    def swa(model, optimizer):
        averaged = torch.optim.swa_utils.AveragedModel(model)
        for step in range(4):
            train(model, optimizer, 1, first=step)
            averaged.update_parameters(model)
        return averaged

    model, optimizer = trained(0)
    assert_same_bits(dict(swa(model, optimizer).state_dict()), dict(swa(*TRAINING.fresh()).state_dict()))


def test_an_ema_over_parameters_uses_every_update():
    def ema(model, optimizer):
        saved = [parameter.detach().clone() for parameter in model.parameters()]
        for step in range(4):
            train(model, optimizer, 1, first=step)
            with torch.no_grad():
                for mean, parameter in zip(saved, model.parameters(), strict=True):
                    mean.lerp_(parameter, 0.1)
        return saved

    assert_same_bits(ema(*trained(0)), ema(*TRAINING.fresh()))


def test_close_restores_plain_objects_that_train_alone():
    modes = function_modes()
    model, optimizer = trained(3)
    optimizer.close()
    assert type(model) is Net
    assert type(optimizer) is torch.optim.AdamW
    assert not any(module._forward_pre_hooks for module in model.modules())
    with model.no_sync():
        train(model, optimizer, 1, first=3)
    train(model, optimizer, 1, first=4)
    assert_same_bits(dict(model.state_dict()), dict(stock(5)[0].state_dict()))
    assert modes_after_collection() == modes


def test_a_second_close_does_nothing_and_closed_objects_can_be_synchronized_again():
    model, optimizer = trained(3)
    optimizer.close()
    optimizer.close()
    optimizer.flush()
    assert type(copy.deepcopy(optimizer)) is torch.optim.AdamW
    model, optimizer = ft.synchronize(model, optimizer, servers=ThreadServer(1).exchange(0))
    train(model, optimizer, 2, first=3)
    optimizer.close()
    assert_same_bits(dict(model.state_dict()), dict(stock(5)[0].state_dict()))


def test_stats_after_close_are_the_last_counters(network):
    model, optimizer = TRAINING.fresh()
    model, optimizer = ft.synchronize(model, optimizer, servers=network(1)[0])
    train(model, optimizer, 3)
    counted = optimizer.stats()
    optimizer.close()
    assert optimizer.stats().keys() == counted.keys()
    assert optimizer.stats()["rounds"] == 3
    assert not hasattr(copy.deepcopy(optimizer), "stats")
    assert "stats" not in pickle.loads(pickle.dumps(optimizer)).__dict__


def test_close_removes_placeholders():
    model, optimizer = trained(3)
    optimizer.close()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_close_before_the_first_step_restores_everything():
    modes = function_modes()
    model, optimizer = trained(0)
    optimizer.close()
    train(model, optimizer, 2)
    assert_same_bits(dict(model.state_dict()), dict(stock(2)[0].state_dict()))
    assert modes_after_collection() == modes


def modes_after_collection():
    gc.collect()
    return torch._C._len_torch_function_stack()


def test_objects_dropped_before_the_first_step_restore_torch():
    modes = function_modes()
    model, optimizer = trained(0)
    exchange = model.__dict__["_foresee_synchronizer"].group.exchange
    assert torch._C._len_torch_function_stack() >= max(modes, 1)
    del model, optimizer
    gc.collect()
    assert exchange._closed
    # Compilation works again from the next call on; the next profile removes the mode.
    torch.zeros(1).add(1)
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    assert torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(1)) == 1
    assert compiled
    _, optimizer = trained(0)
    optimizer.close()
    assert modes_after_collection() <= modes


def test_objects_dropped_in_an_ended_thread_do_not_prevent_compilation():
    function_modes()
    thread = threading.Thread(target=trained, args=(0,))
    thread.start()
    thread.join()
    gc.collect()
    # Another model and optimizer detect it.
    trained(0)[1].close()
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    torch.compile(lambda x: x * 3, backend=backend)(torch.zeros(1))
    assert compiled


def test_objects_may_be_collected_while_torch_removes_its_modes(monkeypatch):
    modes = function_modes()
    gc.disable()
    try:
        model, optimizer = trained(0)
        exchange = model.__dict__["_foresee_synchronizer"].group.exchange
        del model, optimizer
        pop = overrides._pop_mode

        def collecting():
            gc.collect()
            return pop()

        monkeypatch.setattr(overrides, "_pop_mode", collecting)
        assert torch.norm(torch.ones(4)) == 2
    finally:
        gc.enable()
    monkeypatch.undo()
    assert exchange._closed
    assert torch._C._len_torch_function_stack() >= max(modes, 1)


def test_model_and_optimizer_are_instances_of_their_classes():
    model, optimizer = trained(1)
    assert isinstance(model, Net)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in Net().named_parameters()]
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_stats_have_rounds_and_exposed_seconds():
    _, optimizer = trained(3, slow=lambda rank, name: 0.2)
    optimizer.flush()
    stats = optimizer.stats()
    assert stats["rounds"] == 3
    assert 0.1 < stats["exposed_last_round_s"] <= stats["exposed_s"]
    assert stats["pushed_tensors"] > 0


@pytest.mark.parametrize("overlap", ["forward", "backward"])
def test_exposed_seconds_of_the_last_round_differ_from_those_of_the_run(overlap):
    server = ThreadServer(1, slow=lambda rank, name: 0.02)
    model, optimizer = ft.synchronize(*TRAINING.fresh(), servers=server.exchange(0), overlap=overlap)
    before = 0.0
    for step in range(3):
        train(model, optimizer, 1, first=step)
        optimizer.flush()
        stats = optimizer.stats()
        assert stats["exposed_last_round_s"] == pytest.approx(stats["exposed_s"] - before)
        before = stats["exposed_s"]


def test_a_process_that_ends_finishes_its_last_round(tmp_path):
    code = """
import sys, threading, torch
from torch import nn
from support.exchanges import ThreadServer
import foresee.torch as ft

held = [False]
server = ThreadServer(1, held=lambda rank, name: held[0])
model = nn.Linear(4, 4)
model, optimizer = ft.synchronize(model, torch.optim.SGD(model.parameters(), lr=1.0), servers=server.exchange(0))
for step in range(2):
    optimizer.zero_grad()
    loss = model(torch.ones(1, 4)).sum()
    held[0] = step == 1
    loss.backward()
    optimizer.step()
assert server.training.received[0][0] == 0, server.training.received

def release():
    held[0] = False
    server.release()

# A daemon thread, because the process would wait for another one.
timer = threading.Timer(0.3, release)
timer.daemon = True
timer.start()
"""
    code = (
        "import atexit\nholder = {}\natexit.register(lambda: print('received', sorted(holder['server'].training.received[0])))\n"
        + code
        + "\nholder['server'] = server\n"
    )
    path = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    script = pathlib.Path(tmp_path / "ends.py")
    script.write_text(code)
    ended = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, check=False
    )
    # Handlers run last in, first out: Foresee's, registered later, before the one that prints.
    assert ended.stdout == "received [0, 1]\n", ended.stderr


@pytest.mark.parametrize(
    "convert", [nn.Module.cpu, nn.Module.float, lambda model: model.to("cpu")], ids=range(3)
)
@pytest.mark.parametrize("steps", [1, 3])
def test_a_model_can_be_moved_between_step_and_zero_grad(convert, steps):
    model, optimizer = trained(steps)
    convert(model)
    train(model, optimizer, 2, first=steps)
    expected, stock = TRAINING.fresh()
    train(expected, stock, steps + 2)
    assert_same_bits(list(model.parameters()), list(expected.parameters()))
    optimizer.close()


def test_a_backward_without_zero_grad_is_found_after_a_model_was_moved():
    model, optimizer = trained()
    model.cpu()
    with pytest.raises(ft.GradientMisuse, match=r"call optimizer\.zero_grad\(\) first"):
        model(batch(9)).square().mean().backward()
    optimizer.zero_grad()
    optimizer.close()


def test_a_model_cannot_be_moved_between_backward_and_step():
    model, optimizer = trained()
    optimizer.zero_grad()
    model(batch(9)).square().mean().backward()
    with pytest.raises(ft.GradientMisuse, match="its gradient is in flight"):
        model.cpu()
    optimizer.step()
    optimizer.close()
