# SPDX-License-Identifier: Apache-2.0
"""Waits for a batch: transforms on threads, the ends of a wait, and no thread left."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import weakref

import pytest
import torch
from support.waiting import WATCHDOG, pause, wait_until

import foresee.torch as ft
from foresee.errors import Closed, StallTimeout


@pytest.fixture
def folder(small_folder):
    """23 files of 8 bytes; see `small_folder`."""
    return small_folder


def value(data):
    """Decode a test file to its first byte."""
    return torch.tensor(float(data[0]))


def test_transforms_run_on_threads_and_stay_in_order(folder):
    names = set()

    def slow(number):
        names.add(threading.current_thread().name)
        pause(0.002 * (3 - int(number) % 4))
        return number * 2

    dataset = ft.FolderDataset(
        folder, decode=value, transform=slow, target_transform=lambda label: label + 10
    )
    loader = ft.DataLoader(dataset, batch_size=4, transform_threads=4)
    for _ in range(2):
        got = list(loader)
        assert [x for data, _ in got for x in data.tolist()] == [2.0 * i for i in range(23)]
        assert {x for _, labels in got for x in labels.tolist()} == {10, 11, 12}
    assert all(name.startswith("foresee-transform") for name in names)


def test_the_next_epoch_is_prepared_before_its_iter(folder):
    seen = threading.Event()
    count = 0

    def watch(number):
        nonlocal count
        count += 1
        if count > 23:
            seen.set()
        return number

    dataset = ft.FolderDataset(folder, decode=value, transform=watch)
    loader = ft.DataLoader(
        dataset, batch_size=4, shuffle=True, seed=1, prefetch_factor=2, transform_threads=2
    )
    list(loader)
    assert seen.wait(WATCHDOG), "no sample of the next epoch was made"
    again = [x for data, _ in loader for x in data.tolist()]
    reference = ft.DataLoader(ft.FolderDataset(folder, decode=value), batch_size=4, shuffle=True, seed=1)
    reference.set_epoch(1)
    assert again == [x for data, _ in reference for x in data.tolist()]


def ours(batch):
    return [int(x) for x in batch[0].tolist()]


class Gate:
    """A transform that waits until the test releases it."""

    def __init__(self):
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, number):
        self.reached.set()
        assert self.open.wait(WATCHDOG)
        return number

    def then(self, work):
        """Run ``work`` in a thread once a sample has arrived and the training loop waits for its batch."""

        def late():
            assert self.reached.wait(WATCHDOG)
            pause(0.2)
            work()

        threading.Thread(target=late).start()


def gated(folder, gate, **arguments):
    dataset = ft.FolderDataset(folder, decode=value, transform=gate)
    return ft.DataLoader(dataset, batch_size=4, transform_threads=2, **arguments)


def test_a_late_batch_raises_a_timeout_and_the_next_call_returns_it(folder):
    gate = Gate()
    with gated(folder, gate, timeout=0.05) as loader:
        iterator = iter(loader)
        with pytest.raises(StallTimeout):
            next(iterator)
        gate.open.set()
        came = []

        def again():
            with contextlib.suppress(StallTimeout):
                came.append(next(iterator))
            return came

        wait_until(again, what="the late batch")
        assert ours(came[0]) == [0, 1, 2, 3]


def test_ctrl_c_ends_the_wait_and_the_loader_stays_usable(folder):
    gate = Gate()
    with gated(folder, gate) as loader:
        gate.then(lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            next(iter(loader))
        gate.open.set()
        assert ours(next(iter(loader))) == [0, 1, 2, 3]


def test_closing_from_another_thread_ends_the_wait(folder):
    gate = Gate()
    with gated(folder, gate) as loader:
        gate.then(loader.close)
        with pytest.raises(Closed):
            next(iter(loader))
        gate.open.set()
        with pytest.raises(Closed):
            iter(loader)


def test_a_collected_loader_leaves_no_thread(folder):
    before = set(threading.enumerate())
    loader = ft.DataLoader(ft.FolderDataset(folder, decode=value), batch_size=4, transform_threads=2)
    next(iter(loader))
    watcher = weakref.ref(loader)
    del loader
    gc.collect()
    assert watcher() is None
    wait_until(lambda: not set(threading.enumerate()) - before, what="the end of its threads")


def test_many_early_breaks_and_epochs_leave_no_thread_and_no_descriptor(folder):
    dataset = ft.FolderDataset(folder, decode=value)
    loader = ft.DataLoader(dataset, batch_size=4, shuffle=True, seed=1, transform_threads=4)
    next(iter(loader))
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for epoch in range(50):
        for step, _ in enumerate(loader):
            if step == epoch % 4:
                break
    assert threading.active_count() <= threads + 4
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
    loader.close()
