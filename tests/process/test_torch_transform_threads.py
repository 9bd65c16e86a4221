# SPDX-License-Identifier: Apache-2.0
"""The threads that transforms run on, and what a fork's child leaves alone."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from support.waiting import WATCHDOG

import foresee.torch as ft
from foresee.errors import WorkerDied


def values(loader):
    return [value for batch, _ in loader for value in batch.tolist()]


def test_without_workers_transforms_run_in_the_thread_of_the_loop(small_folder):
    seen = set()

    def transform(data):
        seen.add(threading.current_thread())
        return int(data[0])

    dataset = ft.FolderDataset(small_folder, decode=None, transform=transform)
    assert values(ft.DataLoader(dataset, batch_size=4)) == list(range(23))
    assert seen == {threading.current_thread()}


def test_transform_threads_run_several_at_once_and_keep_the_order(small_folder):
    together = threading.Barrier(2)

    def transform(data):
        number = int(data[0])
        # Of the first two batches, each waits for the other.
        if number in (0, 4):
            together.wait(WATCHDOG)
        return number

    dataset = ft.FolderDataset(small_folder, decode=None, transform=transform)
    assert values(ft.DataLoader(dataset, batch_size=4, transform_threads=2)) == list(range(23))


def first(data):
    return int(data[0])


@pytest.mark.parametrize("arguments", [{}, {"transform_threads": 2}, {"num_workers": 1}], ids=str)
@pytest.mark.parametrize("how", ["close", "drop", "exit"])
def test_a_forked_child_that_drops_a_loader_leaves_its_parents_alone(small_folder, arguments, how):
    dataset = ft.FolderDataset(small_folder, decode=None, transform=first)
    loader = ft.DataLoader(dataset, batch_size=4, **arguments)
    batches = iter(loader)
    got = next(batches)[0].tolist()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if how == "close":
                loader.close()
            elif how == "drop":
                del batches, loader
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert got + [value for batch, _ in batches for value in batch.tolist()] == list(range(23))
    loader.close()


def exits(data):
    raise SystemExit(3)


def test_a_worker_whose_transform_exits_says_so(small_folder):
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
