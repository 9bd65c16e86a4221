# SPDX-License-Identifier: Apache-2.0
"""``torch.distributed.checkpoint`` saves and loads a loader with any order."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

import foresee.torch as ft

SAMPLES = 23
ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "seed": lambda: {"shuffle": True, "seed": 3},
    "keyed": lambda: {"shuffle": True, "seed": 3, "order": "keyed"},
    "sequential": dict,
    "shuffle": lambda: {"shuffle": True},
    "generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "DistributedSampler": lambda: {"sampler": DistributedSampler(range(SAMPLES), 1, 0, seed=3)},  # type: ignore[arg-type]
    "RandomSampler": lambda: {"sampler": RandomSampler(range(SAMPLES))},
    "sampler": lambda: {"sampler": SequentialSampler(range(SAMPLES))},
    "batch_sampler": lambda: {
        "batch_size": 1,
        "batch_sampler": BatchSampler(SequentialSampler(range(SAMPLES)), 4, drop_last=False),
    },
}


@pytest.fixture
def make(tmp_path: pathlib.Path) -> Callable[[str], ft.DataLoader]:
    np.save(tmp_path / "rows.npy", np.arange(SAMPLES)[:, None])

    def of(order: str) -> ft.DataLoader:
        return ft.DataLoader(ft.ArrayDataset(tmp_path / "rows.npy"), **{"batch_size": 4, **ORDERS[order]()})

    return of


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
@pytest.mark.parametrize("cut", [0, 2, 6])
@pytest.mark.parametrize("order", ORDERS)
def test_a_loader_resumes_from_a_distributed_checkpoint(
    tmp_path: pathlib.Path, make: Callable[[str], ft.DataLoader], order: str, cut: int
) -> None:
    torch.manual_seed(7)
    with make(order) as first, make(order) as second:
        batches = iter(first)
        for _ in islice(batches, cut):
            pass
        dcp.save({"loader": first}, checkpoint_id=tmp_path / "saved")
        before = torch.get_rng_state()
        expected = [batch.flatten().tolist() for batch in (batches if cut < 6 else first)]
        # Orders without a generator draw from the global one, as in torch.
        torch.set_rng_state(before)
        dcp.load({"loader": second}, checkpoint_id=tmp_path / "saved")
        assert [batch.flatten().tolist() for batch in second] == expected
        assert second.state_dict()["finished"]
