# SPDX-License-Identifier: Apache-2.0
"""A ``Subset`` of Foresee's datasets: torch's batches, read ahead by the engine, and errors."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.equal_batches import assert_same
from support.properties import properties
from torch.utils.data import ConcatDataset, DataLoader, DistributedSampler, Subset, random_split

import foresee.torch as ft
from foresee.errors import ConfigError, StateMismatch
from foresee.torch.data.pipe import dump, load
from foresee.torch.data.selected import SelectedDataset

N = 12


class Doubled(ft.ArrayDataset):
    """Makes its samples in ``__getitem__``."""

    def __getitem__(self, i):
        return super().__getitem__(i) * 2, i


class DoubledAtOnce(ft.ArrayDataset):
    """Makes the samples of a batch in ``__getitems__``."""

    def __getitems__(self, indices):
        return [(row * 2, i) for row, i in zip(super().__getitems__(indices), indices, strict=True)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Arrays, classes of pictures, files of unequal size and tokens."""
    root = tmp_path_factory.mktemp("subsets")
    for name in ("arrays", "files", "tokens"):
        (root / name).mkdir()
    np.save(root / "arrays/rows.npy", np.arange(4 * N, dtype=np.int64).reshape(N, 4))
    np.save(root / "tokens/all.npy", np.arange(3 * N + 1, dtype=np.uint16))
    for i in range(N):
        folder = root / f"pictures/class{i % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3), (i, 2 * i, 3 * i)).save(folder / f"{i}.png")
        (root / f"files/{i}").write_bytes(bytes([i] * (i + 1)))
    return root


def shape_and_corner(picture):
    return torch.tensor([*picture.size, *picture.getpixel((0, 0))])


def datasets(root):
    """One data set of every kind, by name."""
    files = [str(root / f"files/{i}") for i in (*range(N - 1), 3)]
    return {
        "array": lambda: ft.ArrayDataset(str(root / "arrays")),
        "array with a transform": lambda: ft.ArrayDataset(str(root / "arrays"), transform=torch.neg),
        "folder": lambda: ft.FolderDataset(str(root / "pictures"), transform=shape_and_corner),
        "files": lambda: ft.FileDataset(
            files, targets=[f"target {i}" for i in range(N)], extra={"mask": files[::-1]}
        ),
        "tokens": lambda: ft.TokenDataset(str(root / "tokens"), 3),
        "own __getitem__": lambda: Doubled(str(root / "arrays")),
        "own __getitems__": lambda: DoubledAtOnce(str(root / "arrays")),
    }


KINDS = sorted(datasets(pathlib.Path()))


@properties(soak=300, ordinary=40)
@given(
    kind=st.sampled_from(KINDS),
    indices=st.lists(st.integers(0, N - 1), min_size=1, max_size=15),
    form=st.sampled_from(
        [list, tuple, np.array, torch.tensor, lambda found: [torch.tensor(i) for i in found]]
    ),
    inner=st.one_of(st.none(), st.lists(st.integers(-5, -1), min_size=1, max_size=6)),
    batch_size=st.integers(1, 5),
    rank=st.sampled_from([None, 0, 1]),
)
def test_batches_are_those_of_torch_over_the_same_subset(root, kind, indices, form, inner, batch_size, rank):
    base = datasets(root)[kind]()
    subset = Subset(base, form(indices))
    if inner is not None and len(indices) >= 5:
        subset = Subset(subset, inner)
    sampler = None if rank is None else DistributedSampler(subset, 2, rank, seed=3)
    arguments = {"batch_size": batch_size, "sampler": sampler, "collate_fn": list}
    ours = ft.DataLoader(subset, **arguments)
    assert_same(list(ours), list(DataLoader(subset, **arguments)))
    assert "operations" in ours.stats()
    assert ours.dataset is subset


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_random_split_are_read_by_the_engine(root, kind):
    base = datasets(root)[kind]()
    for part in random_split(base, [0.5, 0.5], torch.Generator().manual_seed(4)):
        with ft.DataLoader(part, batch_size=2, collate_fn=list, cache=ft.Cache(ram="1MB")) as loader:
            assert_same(list(loader), list(DataLoader(part, batch_size=2, collate_fn=list)))
            list(loader)
            reads = loader.stats()["operations"]["origin"]["read"]["ok"]
        # Two samples of "files" share each of their objects.
        parts = 2 if kind == "files" else 1
        assert reads["samples"] <= parts * len(part)


def test_a_whole_batch_is_stacked_without_work_per_sample(root):
    subset = Subset(ft.ArrayDataset(str(root / "arrays")), [7, 2, 7])
    (batch,) = ft.DataLoader(subset, batch_size=3)
    assert torch.equal(batch, torch.arange(4 * N).view(N, 4)[[7, 2, 7]])


def test_a_state_fits_only_its_part_of_the_split(root):
    base = ft.ArrayDataset(str(root / "arrays"))
    first, second = (Subset(base, indices) for indices in (range(8), range(4, 12)))
    loader = ft.DataLoader(first, batch_size=2, shuffle=True, seed=5)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = list(batches)
    resumed = ft.DataLoader(Subset(base, list(range(8))), batch_size=2, shuffle=True, seed=5)
    resumed.load_state_dict(state)
    assert_same(list(resumed), rest)
    other = ft.DataLoader(second, batch_size=2, shuffle=True, seed=5)
    with pytest.raises(StateMismatch, match="data set"):
        other.load_state_dict(state)


def test_replacements_come_from_the_subset(root):
    def failing(row):
        if row[0] == 4:
            raise ValueError("bad row")
        return row

    subset = Subset(ft.ArrayDataset(str(root / "arrays"), transform=failing), [0, 1, 2])
    loader = ft.DataLoader(subset, batch_size=3, on_error="replace")
    (batch,) = loader
    assert set(batch[:, 0].tolist()) <= {0, 8}


def test_indices_that_the_data_set_does_not_have_are_refused(root):
    base = ft.ArrayDataset(str(root / "arrays"))
    for indices, message in (
        ([0, N], rf"indices\[1\] of the subset is {N}, and its data set has {N} samples"),
        ([-1], r"indices\[0\] of the subset is -1"),
        ([], "none of the 12 samples"),
        (["a"], "whole numbers"),
    ):
        with pytest.raises(ConfigError, match=message):
            ft.DataLoader(Subset(base, indices))


def test_a_subset_that_changes_is_refused_at_the_next_epoch(root):
    base = ft.ArrayDataset(str(root / "arrays"))
    subset = Subset(Subset(base, [3, 4, 5]), [0, 2])
    loader = ft.DataLoader(subset)
    assert len(list(loader)) == 2
    subset.indices[1] = 1
    with pytest.raises(ConfigError, match="make a new DataLoader"):
        iter(loader)
    subset.indices[1] = 2
    assert len(list(loader)) == 2
    subset.dataset.dataset = ft.ArrayDataset(str(root / "arrays"))
    with pytest.raises(ConfigError, match="make a new DataLoader"):
        iter(loader)


class Named(Subset):
    """Changes its samples."""

    def __getitem__(self, i):
        return "own", super().__getitem__(i)

    def __getitems__(self, indices):
        return [self[i] for i in indices]


@pytest.mark.parametrize("wrap", [lambda base: Named(base, [1, 0]), lambda base: ConcatDataset([base, base])])
def test_other_wrappers_are_read_as_torch_reads_them_with_a_warning(root, wrap, caplog):
    dataset = wrap(ft.ArrayDataset(str(root / "arrays")))
    assert_same(
        list(ft.DataLoader(dataset, batch_size=2, collate_fn=list)),
        list(DataLoader(dataset, batch_size=2, collate_fn=list)),
    )
    assert f"{type(dataset).__name__} reads its samples of ArrayDataset one batch at a time" in caplog.text


def test_a_worker_gets_the_subset_and_the_index_as_a_descriptor(root):
    subset = Subset(ft.ArrayDataset(str(root / "arrays")), [7, 2])
    selected = SelectedDataset(subset)
    path = root / "index.fidx"
    path.write_bytes(selected.source.file_bytes())
    payload, _ = dump(selected)
    with open(path, "rb") as file:
        copy = load(payload, index=file.fileno())
    assert isinstance(copy.original, Subset)
    assert copy.original.indices == [7, 2]
    assert copy.index.fingerprint == selected.index.fingerprint
    assert torch.equal(copy[1], subset[1])
