# SPDX-License-Identifier: Apache-2.0
"""Threads that run transforms."""

from __future__ import annotations

import threading

from support.waiting import WATCHDOG

import foresee.torch as ft


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
    loader = ft.DataLoader(dataset, batch_size=4, epochs=1, transform_threads=2)
    assert values(loader) == list(range(23))
