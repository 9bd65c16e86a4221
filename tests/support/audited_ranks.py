# SPDX-License-Identifier: Apache-2.0
"""A rank under torchrun whose loaders have the usual faults of distributed runs, each inside ``ft.audit``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Subset,
    TensorDataset,
    get_worker_info,
)

import foresee.torch as ft
from support.processes import print_json

N = 24


class Lines(IterableDataset[Any]):
    """Numbers from 0, divided among ``ranks`` and ``workers`` as requested."""

    def __init__(self, *, ranks: bool, workers: bool) -> None:
        self._ranks, self._workers = ranks, workers
        self._rank, self._world = dist.get_rank(), dist.get_world_size()

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        mine = range(self._rank, N, self._world) if self._ranks else range(N)
        if self._workers and info is not None:
            mine = mine[info.id :: info.num_workers]
        for i in mine:
            yield {"id": i, "x": torch.full((2,), float(i))}


def scenarios(folder: str) -> dict[str, Callable[[], tuple[Any, Callable[[int], None]]]]:
    """Return audited loaders by name, each with a function to call before each epoch."""
    rank = dist.get_rank()
    numbers, odd = TensorDataset(torch.arange(N)), TensorDataset(torch.arange(N + 1))

    def stock(data: Any, *, sampler: Any = None, epochs: bool = True, **arguments: Any) -> Any:
        loader = DataLoader(data, 3, sampler=sampler, **arguments)
        return ft.audit(loader), (lambda epoch: sampler.set_epoch(epoch) if epochs and sampler else None)

    def stream(*, ranks: bool, workers: bool) -> Any:
        loader = DataLoader(Lines(ranks=ranks, workers=workers), 3, num_workers=2)
        return ft.audit(loader, fields=["x"]), lambda epoch: None

    return {
        "right": lambda: stock(odd, sampler=DistributedSampler(odd)),
        "workers": lambda: stock(
            numbers, sampler=DistributedSampler(numbers), num_workers=2, persistent_workers=True
        ),
        "no sampler": lambda: stock(numbers, shuffle=True),
        "no set_epoch": lambda: stock(numbers, sampler=DistributedSampler(numbers), epochs=False),
        "uneven": lambda: stock(Subset(numbers, range(14) if rank == 0 else range(14, N)), drop_last=True),
        "other data": lambda: stock(TensorDataset(torch.arange(N + rank)), shuffle=True),
        "whole per worker": lambda: stream(ranks=True, workers=False),
        "whole per rank": lambda: stream(ranks=False, workers=True),
        "divided stream": lambda: stream(ranks=True, workers=True),
        "ours": lambda: (
            ft.audit(ft.DataLoader(ft.FolderDataset(folder), 4, shuffle=True, seed=3)),
            lambda epoch: None,
        ),
        "one rank for all": lambda: (
            ft.audit(ft.DataLoader(ft.FolderDataset(folder), 4, shuffle=True, seed=3, rank=0, world_size=1)),
            lambda epoch: None,
        ),
        "key": lambda: (
            ft.audit(DataLoader(Lines(ranks=True, workers=True), 3), key=lambda batch: batch["id"]),
            lambda epoch: None,
        ),
    }


def main() -> None:
    """Run a rank."""
    folder, *names = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    if names == ["early"]:
        _early()
        return
    for name, make in scenarios(folder).items():
        audited, before = make()
        reports = []
        for epoch in range(2):
            before(epoch)
            for _ in audited:
                pass
            reports.append(audited.last)
        if dist.get_rank() == 0:
            print_json(name=name, reports=json.loads(json.dumps(reports)))
        else:
            assert reports == [None, None], "only rank 0 reports"
    dist.destroy_process_group()


def _early() -> None:
    numbers = TensorDataset(torch.arange(N))
    audited = ft.audit(DataLoader(numbers, 3, shuffle=True), timeout=0.5)
    for at, _ in enumerate(audited):
        if at == 1:
            break
    assert audited.last is None, "a report before all ranks begin the next epoch"
    audited.report()
    partial = audited.last
    for _ in audited:
        if dist.get_rank() == 1:
            break
    if dist.get_rank() == 0:
        print_json(partial=partial, alone=audited.last)
