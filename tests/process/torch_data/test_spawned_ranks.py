# SPDX-License-Identifier: Apache-2.0
"""Ranks of a process group without a launcher's variables, as torch's own DDP tutorial starts them."""

from __future__ import annotations

import json
import pathlib

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, DistributedSampler

import foresee
import foresee.torch as ft

RANKS = 2
# A loader made before the process group, as at the start of a main().
EARLY = "early"


def main(rank: int, root: pathlib.Path) -> None:
    """Run one rank: write the samples of torch's loader and of both Foresee loaders."""
    data = ft.ArrayDataset(root / "arrays")
    early = ft.DataLoader(data, batch_size=4, shuffle=True, seed=0)
    dist.init_process_group("gloo", init_method=f"file://{root}/store", rank=rank, world_size=RANKS)
    sampler: DistributedSampler[object] = DistributedSampler(data, shuffle=True, seed=0)
    read = {
        "stock": [
            row
            for batch in DataLoader(data, batch_size=4, sampler=sampler)
            for row in batch[:, 0, 0].tolist()
        ]
    }
    late = ft.DataLoader(data, batch_size=4, shuffle=True, seed=0)
    for name, loader in ((EARLY, early), ("late", late)):
        read[name] = [row for batch in loader for row in batch[:, 0, 0].tolist()]
    plain = foresee.Loader(root / "arrays", batch_size=4, shuffle=True, seed=0)
    read["plain"] = [row for batch in plain for row in batch.rows()[:, 0, 0].tolist()]
    (root / f"rank-{rank}.json").write_text(json.dumps(read))
    dist.destroy_process_group()


def test_each_spawned_rank_reads_its_share_with_a_loader_made_before_or_after_the_group(
    array: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    mp.spawn(main, (array.parent,), nprocs=RANKS)
    ranks = [json.loads((array.parent / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    for read in ranks:
        assert read[EARLY] == read["late"] == read["plain"] == read["stock"]
    assert {row for read in ranks for row in read["stock"]} == set(range(17))
