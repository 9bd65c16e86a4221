# SPDX-License-Identifier: Apache-2.0
"""Worker processes: equal batches, random numbers, faults, and complete clean-up."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from support.stock_loader import stock, stock_of
from support.waiting import WATCHDOG, wait_until
from torch.utils.data import get_worker_info

import foresee.torch as ft
from foresee.errors import SampleFault, WorkerDied
from foresee.torch.data import workers

PER_WORKER = 2


@pytest.fixture
def folder(small_folder):
    """23 files of 8 bytes; see `small_folder`."""
    return small_folder


def value(data):
    return torch.tensor(float(data[0]))


def make(folder, dataset=None, **changes):
    dataset = ft.FolderDataset(folder, decode=value) if dataset is None else dataset
    return ft.DataLoader(
        dataset, **({"batch_size": 4, "num_workers": 2, "shuffle": True, "seed": 3} | changes)
    )


def pids_of(loader):
    return [worker.process.pid for worker in loader._resources._pool._workers]


def numbers(loader):
    return [x for data, _ in loader for x in data.tolist()]


def test_workers_make_the_same_batches_as_the_loops_own_thread_and_end_with_the_epoch(folder):
    expected = make(folder, num_workers=0)
    with make(folder) as loader:
        for _ in range(2):
            assert numbers(loader) == numbers(expected)
            assert loader._resources._pool is None
        assert loader.audit()["ok"]


def test_persistent_workers_survive_epochs_and_unseeded_orders_draw_as_torch_does(folder):
    arguments = {"batch_size": 4, "shuffle": True, "num_workers": 2, "persistent_workers": True, "seed": None}
    torch.manual_seed(3)
    reference = stock(**{k: v for k, v in arguments.items() if k != "seed"})
    expected = [([stock_of(b) for b in reference], torch.get_rng_state().tolist()) for _ in range(3)]
    del reference
    torch.manual_seed(3)
    with make(folder, **arguments) as loader:
        pids = set()
        for batches, state in expected:
            assert [[int(x) for x in data.tolist()] for data, _ in loader] == batches
            assert torch.get_rng_state().tolist() == state
            pids |= set(pids_of(loader))
        assert len(pids) == 2


def test_a_generator_with_workers_ends_in_the_state_that_the_stock_loader_leaves(folder):
    def states(build):
        generator = torch.Generator().manual_seed(7)
        loader = build(
            batch_size=4, shuffle=True, generator=generator, num_workers=1, prefetch_factor=PER_WORKER
        )
        seen = []
        for steps in (3, 5, 6):
            iterator = iter(loader)
            for _ in range(steps):
                next(iterator)
                seen.append(generator.get_state().tolist())
            del iterator
        return seen

    dataset = ft.FolderDataset(folder, decode=value)
    assert states(lambda **a: ft.DataLoader(dataset, **a)) == states(stock)


def test_randomness_is_seeded_per_sample_whatever_the_number_of_workers(folder):
    def noisy(number):
        return torch.stack(
            [number, torch.rand(()), torch.tensor(random.random()), torch.tensor(np.random.rand())]  # noqa: NPY002 - what transforms use
        )

    dataset = ft.FolderDataset(folder, decode=value, transform=noisy)
    runs = []
    for count in (1, 2):
        with make(folder, dataset, num_workers=count) as loader:
            runs.append([batch.tolist() for batch, _ in loader])
    assert runs[0] == runs[1]
    samples = [tuple(sample[1:]) for batch in runs[0] for sample in batch]
    assert len(set(samples)) == 23
    with (
        make(folder, dataset, num_workers=1) as first,
        make(folder, dataset, num_workers=1, batch_size=2) as second,
    ):
        iterator = iter(first)
        head = [next(iterator)[0].tolist() for _ in range(2)]
        second.load_state_dict(first.state_dict())
        rest = [batch.tolist() for batch, _ in second]
    assert [s for b in head + rest for s in b] == [s for b in runs[0] for s in b]


def test_results_of_any_shape_are_returned_complete(folder):
    def many(number):
        return {
            "half": number.to(torch.bfloat16),
            "empty": torch.zeros(0, 3),
            "strided": torch.arange(6).reshape(2, 3).T,
            "array": np.full((2, 2), int(number)),
            "text": str(int(number)),
        }

    dataset = ft.FolderDataset(folder, decode=value, transform=many)
    with make(folder, dataset, collate_fn=list, shuffle=False, seed=None, num_workers=1) as loader:
        for sample, label in [s for batch in loader for s in batch]:
            number = int(sample["text"])
            assert sample["half"].dtype == torch.bfloat16
            assert float(sample["half"]) == number
            assert sample["empty"].shape == (0, 3)
            assert torch.equal(sample["strided"], torch.arange(6).reshape(2, 3).T)
            assert (sample["array"] == number).all()
            assert label == number * 3 // 23
            sample["array"] += 1  # the memory is the batch's own
            sample["strided"] += 1


def test_worker_init_fn_and_worker_info_work_as_in_torch(folder):
    def init(worker):
        torch.worker_says = worker

    def ask(_):
        info = get_worker_info()
        assert torch.get_num_threads() == 1
        assert len(info.dataset) == 23
        return torch.tensor([info.id, info.num_workers, torch.worker_says])

    dataset = ft.FolderDataset(folder, decode=value, transform=ask)
    with make(folder, dataset, worker_init_fn=init) as loader:
        for step, (batch, _) in enumerate(loader):
            assert batch.tolist() == [[step % 2, 2, step % 2]] * len(batch)


def test_an_error_of_worker_init_fn_is_raised_in_the_training_process(folder):
    def init(_):
        raise LookupError("no licence")

    with (
        make(folder, worker_init_fn=init, num_workers=1) as loader,
        pytest.raises(LookupError, match="no licence"),
    ):
        numbers(loader)


def test_faults_in_a_worker_name_the_sample_and_follow_on_error(folder):
    def broken(data):
        if data[0] == 9:
            raise ValueError("broken file")
        return torch.tensor(float(data[0]))

    dataset = ft.FolderDataset(folder, decode=broken)
    with (
        make(folder, dataset, num_workers=1) as loader,
        pytest.raises(SampleFault, match="broken file") as caught,
    ):
        numbers(loader)
    assert caught.value.sample == 9
    assert "in decode_bytes" in str(caught.value.__cause__.__cause__), "the worker's own traceback"
    with make(folder, dataset, on_error="skip", num_workers=1) as loader:
        assert len(numbers(loader)) == 22
    with (
        make(folder, dataset, on_error="replace", num_workers=1) as loader,
        make(folder, dataset, on_error="replace", num_workers=0) as threads,
    ):
        assert numbers(loader) == numbers(threads)
        assert loader.stats()["on_error"]["replaced"] == 1


def test_an_error_of_collate_fn_keeps_its_type(folder):
    def collate(_):
        raise ArithmeticError("cannot add")

    with (
        make(folder, collate_fn=collate, num_workers=1) as loader,
        pytest.raises(ArithmeticError, match="cannot add"),
    ):
        numbers(loader)


def test_a_killed_worker_is_named_and_the_next_epoch_has_new_ones(folder, tmp_path):
    flag = tmp_path / "die"
    flag.touch()

    def die_once(number):
        if number == 9 and flag.exists():
            flag.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    dataset = ft.FolderDataset(folder, decode=value, transform=die_once)
    with make(folder, dataset, persistent_workers=True, num_workers=1) as loader:
        with pytest.raises(WorkerDied, match=r"worker \d \(pid \d+\) was killed by SIGKILL"):
            numbers(loader)
        assert len(numbers(loader)) == 23


def test_batches_out_of_order_are_returned_when_finished_and_the_state_has_no_gap(folder, tmp_path):
    go_on = tmp_path / "go on"

    def slow(number):
        if number == 0:
            wait_until(go_on.exists, what="the word to go on")
        return number

    dataset = ft.FolderDataset(folder, decode=value, transform=slow)
    with make(folder, dataset, shuffle=False, seed=None, in_order=False) as loader:
        iterator = iter(loader)
        first = next(iterator)[0].tolist()
        assert first == [4, 5, 6, 7]
        assert loader.state_dict()["position"] == 0
        go_on.touch()
        rest = [x for data, _ in iterator for x in data.tolist()]
        assert sorted(first + rest) == list(range(23))
        assert loader.state_dict()["finished"]
        assert loader.audit()["ok"]


def test_leaving_an_epoch_early_leaves_no_process(folder):
    with make(folder, persistent_workers=True, num_workers=1) as loader:
        for _ in loader:
            break
        pids = pids_of(loader)
        assert len(numbers(loader)) == 23
    for pid in pids:
        assert not pathlib.Path(f"/proc/{pid}").exists()


SCRIPT = """
import signal, sys, torch
import foresee.torch as ft

def double(data):          # a function of __main__, in a script without a main guard
    return torch.tensor(2.0 * data[0])

loader = ft.DataLoader(ft.FolderDataset(sys.argv[1], decode=double), batch_size=4, num_workers=1, persistent_workers=True)
print([int(x) for data, _ in loader for x in data.tolist()] == [2 * i for i in range(23)])
print(*(worker.process.pid for worker in loader._resources._pool._workers), flush=True)
if len(sys.argv) > 2:
    signal.pause()
"""


def script(tmp_path, folder, *more):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, path, folder, *more],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )


def test_a_script_without_main_guard_works_and_exits_by_itself(folder, tmp_path):
    process = script(tmp_path, folder)
    out, _ = process.communicate(timeout=WATCHDOG)
    assert out.splitlines()[0] == "True"
    assert process.returncode == 0
    assert all(not pathlib.Path(f"/proc/{pid}").exists() for pid in out.splitlines()[1].split())


def runs(pid):
    """Whether a process runs and is no zombie."""
    path = pathlib.Path(f"/proc/{pid}/cmdline")
    return path.exists() and path.read_bytes()


def test_workers_end_when_the_training_process_is_killed(folder, tmp_path):
    process = script(tmp_path, folder, "wait")
    assert process.stdout.readline() == "True\n"
    pids = process.stdout.readline().split()
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(runs, pids)), what="the end of the workers")


def exits(data):
    raise SystemExit(3)


def test_a_transform_that_exits_in_a_worker_is_reported(small_folder):
    dataset = ft.FolderDataset(small_folder, decode=None, transform=exits)
    with pytest.raises(WorkerDied, match=r"called sys.exit\(3\)"):
        list(ft.DataLoader(dataset, batch_size=4, num_workers=1))


def test_an_overridden_getitem_is_called_in_workers(small_folder):
    class WithNeighbour(ft.FolderDataset):
        def __getitem__(self, i):
            mine, label = super().__getitem__(i)
            other, _ = super().__getitem__((i + 1) % len(self))
            return mine, label, other, torch.rand(())

    def read(workers):
        loader = ft.DataLoader(
            WithNeighbour(small_folder), batch_size=4, shuffle=True, seed=1, num_workers=workers
        )
        return [
            (mine[:, 0].tolist(), labels.tolist(), other[:, 0].tolist()) for mine, labels, other, _ in loader
        ]

    assert read(1) == read(0)


def test_an_unreadable_message_of_a_worker_ends_the_wait_with_its_cause(small_folder, monkeypatch):
    def torn(channel):
        raise ValueError("torn")

    monkeypatch.setattr(workers, "receive", torn)
    dataset = ft.FolderDataset(small_folder, decode=None)
    with pytest.raises(WorkerDied, match="ValueError: torn"):
        list(ft.DataLoader(dataset, batch_size=4, num_workers=1))
