# SPDX-License-Identifier: Apache-2.0
"""Attributes that frameworks read from a loader, without the frameworks: `tests/systems` has the real ones."""

from __future__ import annotations

from itertools import islice
from types import FunctionType

import numpy as np
import pytest
from torch.utils.data import DistributedSampler

import foresee.torch as ft
from foresee.torch.data.frameworks import AccelerateLoader


def make(folder, samples, rank=0, **arguments):
    path = folder / "rows.npy"
    if not path.exists():
        np.save(path, np.arange(samples)[:, None])
    return ft.DataLoader(ft.ArrayDataset(path), **{"shuffle": True, "seed": 1, "rank": rank} | arguments)


@pytest.mark.parametrize("batch_size", [1, 3, 4])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_accelerate_gets_each_sample_of_the_last_batch_once(tmp_path, caplog, ranks, batch_size, drop_last):
    # 21 samples are repeated by 1 on two ranks and by 3 on four, where Accelerate cannot tell which they are.
    loaders = [
        make(tmp_path, 21, rank, world_size=ranks, batch_size=batch_size, drop_last=drop_last)
        for rank in range(ranks)
    ]
    ends = [AccelerateLoader(loader._session) for loader in loaders]
    gathered = []
    for batches in zip(*loaders, strict=True):
        assert len({end.end_of_dataloader for end in ends}) == 1
        step = [int(row) for batch in batches for row in batch.flatten()]
        if ends[0].end_of_dataloader and ends[0].remainder > 0:
            step = step[: ends[0].remainder]
        gathered += step
    assert ends[0].end_of_dataloader
    if "Accelerate cannot tell" in caplog.text:
        assert (ranks, ends[0].remainder) == (4, -1)
        assert caplog.text.startswith("WARNING")
        assert "3 samples of the last batch are repeated" in caplog.text
    else:
        assert len(gathered) == len(set(gathered))
        assert drop_last or len(gathered) == 21


def test_the_padding_of_the_last_batch_is_unknown_for_a_users_sampler(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(9)[:, None])
    for ranks, expected in ((1, 0), (2, -1)):
        loader = ft.DataLoader(
            ft.ArrayDataset(tmp_path / "rows.npy"), sampler=list(range(9)), rank=0, world_size=ranks
        )
        assert AccelerateLoader(loader._session).remainder == expected


def test_the_public_batch_sampler_sets_the_epoch_of_its_sampler(tmp_path):
    loader = make(tmp_path, 9, world_size=1, batch_size=2)
    reference = DistributedSampler(range(9), 1, 0, seed=1)
    for epoch in (3, 1):
        loader.batch_sampler.set_epoch(epoch)
        reference.set_epoch(epoch)
        assert [i for batch in loader.batch_sampler for i in batch] == list(reference)
        assert [int(row) for batch in loader for row in batch.flatten()] == list(reference)
    plain = ft.DataLoader(ft.ArrayDataset(tmp_path / "rows.npy"), sampler=list(range(9)))
    plain.batch_sampler.set_epoch(2)
    assert len(list(plain.batch_sampler)) == 9


def called_from(module, function):
    """``function`` as if a module of a framework had it."""
    return FunctionType(function.__code__, {"__name__": module})


def test_iterating_through_a_wrapper_that_reads_ahead_warns(tmp_path, caplog):
    loader = make(tmp_path, 9, world_size=1)
    called_from("ray.train.torch.train_loop_utils", lambda loader: [*loader])(loader)
    assert "prepare_data_loader() requests one batch more than the training loop has received" in caplog.text
    caplog.clear()
    called_from("rayon", lambda loader: [*loader])(loader)
    assert not caplog.records


def test_skipping_batches_by_reading_them_warns(tmp_path, caplog):
    batches = make(tmp_path, 9, world_size=1).batch_sampler
    read = called_from("accelerate.data_loader", lambda batches: [*batches])(batches)
    assert "accelerate.skip_first_batches() reads the rest of this epoch" in caplog.text
    caplog.clear()
    assert list(batches) == read
    assert not caplog.records


@pytest.mark.parametrize(
    ("module", "changes", "batches", "warned"),
    [
        ("lightning.pytorch.utilities.combined_loader", {"batch_size": 3}, 2, True),
        ("pytorch_lightning.utilities.combined_loader", {"world_size": 2}, 2, True),
        ("lightning.pytorch.utilities.combined_loader", {}, 2, False),
        ("lightning.pytorch.utilities.combined_loader", {"batch_size": 3}, 0, False),
        ("lightning.pytorch.utilities.combined_loader", {"batch_size": 3}, 5, False),
        ("train", {"batch_size": 3}, 2, False),
    ],
)
def test_resuming_in_lightning_at_another_batch_or_world_size_warns(
    tmp_path, caplog, module, changes, batches, warned
):
    saved = make(tmp_path, 9, world_size=1, batch_size=2)
    list(islice(saved, batches))
    load = called_from(module, lambda loader, state: loader.load_state_dict(state))
    load(make(tmp_path, 9, **{"world_size": 1, "batch_size": 2} | changes), saved.state_dict())
    assert ("may end the epoch before its last sample" in caplog.text) == warned
