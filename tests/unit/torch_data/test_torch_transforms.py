# SPDX-License-Identifier: Apache-2.0
"""Threads and context of transforms: torch's contract, and Foresee's seeds."""

from __future__ import annotations

import contextvars
import functools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import foresee.torch as ft
from foresee.errors import ConfigError, SampleFault

VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


@pytest.fixture(params=["engine", "off"])
def off(request, monkeypatch):
    """With the engine and, by FORESEE_OFF, without it."""
    monkeypatch.setenv("FORESEE_OFF", "1" if request.param == "off" else "0")


def first(data):
    return int(data[0])


def values(loader):
    return [value for batch, _ in loader for value in batch.tolist()]


class KeepsState:
    """Draws in one method and uses the value in the next, as transforms with a ``randomize`` do."""

    def __call__(self, data):
        self.value = first(data)
        return self.value


def test_without_workers_transforms_run_one_by_one_on_request(folder, off):
    transform = KeepsState()
    dataset = ft.FolderDataset(folder, decode=None, transform=transform)
    for number, (batch, _) in enumerate(ft.DataLoader(dataset, batch_size=4)):
        assert batch.tolist() == list(range(4 * number, min(4 * number + 4, 23)))
        assert transform.value == batch[-1], "no sample of a later batch was transformed yet"


def test_global_generators_are_drawn_from_as_by_the_stock_loader(folder, off):
    def transform(data):
        return first(data) + torch.rand(()) + random.random() + np.random.rand()  # noqa: NPY002

    dataset = ft.FolderDataset(folder, decode=None, transform=transform)
    runs = []
    for make in (DataLoader, ft.DataLoader):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        seen = [(batch.tolist(), float(torch.rand(()))) for batch, _ in make(dataset, batch_size=4)]
        runs.append((seen, random.random(), np.random.rand()))  # noqa: NPY002
    assert runs[0] == runs[1]


@pytest.mark.parametrize("threads", [0, 2])
def test_grad_mode_autocast_and_context_variables_are_those_of_the_loop(folder, threads, off):
    network = torch.nn.Linear(1, 1)

    def transform(data):
        made = network(torch.tensor([float(data[0])]))
        seen.append((made.requires_grad, made.dtype, torch.is_inference_mode_enabled(), VARIABLE.get()))
        return first(data)

    dataset = ft.FolderDataset(folder, decode=None, transform=transform)
    seen: list[object] = []
    # Of one epoch: threads would begin the next one before this one ends.
    arguments = {"batch_size": 4, "epochs": 1, "transform_threads": threads}
    VARIABLE.set(7)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert values(ft.DataLoader(dataset, **arguments)) == list(range(23))
    assert seen == [(False, torch.bfloat16, False, 7)] * 23
    seen.clear()
    with torch.inference_mode():
        assert values(ft.DataLoader(dataset, **arguments)) == list(range(23))
    assert [inference for *_, inference, _ in seen] == [True] * 23


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"transform_threads": -1}, "transform_threads=-1"),
        ({"transform_threads": 2, "num_workers": 2}, "not both"),
        ({"transform_threads": "2"}, "transform_threads='2'"),
    ],
)
def test_wrong_values_of_transform_threads_are_refused(folder, arguments, named):
    with pytest.raises(ConfigError, match=named):
        ft.DataLoader(ft.FolderDataset(folder), **arguments)


def noise(data, generator=None):
    return float(torch.rand((), generator=generator))


@pytest.mark.parametrize("threads", [0, 2])
def test_a_generator_that_the_user_bound_is_never_replaced(folder, threads):
    own = torch.Generator().manual_seed(5)
    expected = torch.rand(23, generator=torch.Generator().manual_seed(5)).sort().values.tolist()
    bound = ft.FolderDataset(folder, decode=None, transform=functools.partial(noise, generator=own))
    # Of one epoch: threads would draw for the next one before this one ends.
    got = values(ft.DataLoader(bound, batch_size=4, epochs=1, transform_threads=threads))
    assert sorted(got) == pytest.approx(expected)
    free = ft.FolderDataset(folder, decode=None, transform=noise)
    seeded = [values(ft.DataLoader(free, shuffle=True, seed=1, transform_threads=k)) for k in (0, 2)]
    assert seeded[0] == seeded[1]


class WithPath(ft.FolderDataset):
    """Adds the path, as users of ``ImageFolder`` do."""

    def __getitem__(self, i):
        return (*super().__getitem__(i), self.samples[i][0].rpartition("/")[2])


class InPairs(ft.FolderDataset):
    """Adds another sample, as mixing augmentations do."""

    def __getitem__(self, i):
        data, label = super().__getitem__(i)
        return data, label, super().__getitem__((i + 1) % len(self))[0]


class ByBatch(ft.FolderDataset):
    def __getitems__(self, indices):
        return [(int(data[0]), len(indices)) for data, _ in super().__getitems__(indices)]


@pytest.mark.parametrize("kind", [WithPath, InPairs, ByBatch])
@pytest.mark.parametrize("threads", [0, 2])
def test_an_overridden_getitem_is_called_by_both_loaders(folder, kind, threads, off):
    dataset = kind(folder)
    stock = list(DataLoader(dataset, batch_size=4))
    ours = list(ft.DataLoader(dataset, batch_size=4, transform_threads=threads))
    assert len(ours) == len(stock) == 6
    for mine, theirs in zip(ours, stock, strict=True):
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else list(a) == list(b)


def test_an_overridden_getitem_reads_from_the_engine_and_not_from_the_origin(folder):
    dataset = WithPath(folder)
    list(DataLoader(dataset, batch_size=4))
    dataset._reader._open = None
    loader = ft.DataLoader(dataset, batch_size=4, shuffle=True, seed=2)
    assert sorted(name for *_, names in loader for name in names) == [f"{i:04}.jpg" for i in range(23)]
    assert loader.stats()["operations"]["origin"]["read"]["ok"]["bytes"] == 23 * 8


def test_faults_of_an_overridden_getitem_name_the_sample_and_follow_on_error(folder):
    def decode(data):
        if data[0] == 5:
            raise ValueError("torn")
        return int(data[0])

    class Raises(ft.FolderDataset):
        def __getitem__(self, i):
            if i == 9:
                raise KeyError("no such row")
            return super().__getitem__(i)[0]

    dataset = Raises(folder, decode=decode)
    batches = iter(ft.DataLoader(dataset, batch_size=4, on_error="skip"))
    assert [next(batches).tolist() for _ in range(3)] == [[0, 1, 2, 3], [4, 6, 7], [8, 10, 11]]
    with pytest.raises(SampleFault, match="sample 5") as caught:
        list(ft.DataLoader(dataset, batch_size=4))
    assert caught.value.kind == "decode"
    with pytest.raises(SampleFault, match="sample 9") as caught:
        list(ft.DataLoader(dataset, batch_size=4, sampler=[9]))
    assert caught.value.kind == "transform"
