# SPDX-License-Identifier: Apache-2.0
"""Sources of a loader's rank: arguments, then the process group, then the launcher's variables."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import foresee
import foresee.torch as ft
from foresee._runtime import ranks
from foresee.errors import ConfigError, StateMismatch

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1"}
LIGHTNING = {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0"}


@pytest.fixture
def group(monkeypatch):
    """Set the rank and size of a process group, or none."""

    def be(*rank_and_size: int) -> None:
        monkeypatch.setattr(ranks, "_process_group", lambda: rank_and_size or None)

    be()
    return be


@pytest.fixture
def jax(monkeypatch):
    """Set the rank and size of an initialized JAX, or have one that is only imported."""

    def be(*rank_and_size: int) -> None:
        rank, size = rank_and_size or (0, 1)
        distributed = SimpleNamespace(is_initialized=lambda: bool(rank_and_size))
        module = SimpleNamespace(
            distributed=distributed, process_index=lambda: rank, process_count=lambda: size
        )
        monkeypatch.setitem(sys.modules, "jax", module)

    return be


@pytest.fixture
def variables(monkeypatch):
    """Set exactly these variables of launchers."""
    for launcher in ranks._LAUNCHERS:
        for name in launcher[1:]:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)

    def be(environ: dict[str, str]) -> None:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)

    return be


@pytest.fixture(params=["numpy", "torch"])
def make(request, array, group, variables):
    """Make a loader of either interface over 17 rows, in batches of 2."""

    def of(**arguments: Any):
        arguments = {"batch_size": 2, "shuffle": True, "seed": 3} | arguments
        if request.param == "numpy":
            return foresee.Loader(array, **arguments)
        return ft.DataLoader(ft.ArrayDataset(array), **arguments)

    return of


def rows(loader) -> list[int]:
    batches = [batch.rows() if isinstance(batch, foresee.Batch) else batch.numpy() for batch in loader]
    return [int(row) for batch in batches for row in np.asarray(batch).reshape(len(batch), -1)[:, 0]]


def share(whole: list[int], rank: int) -> list[int]:
    """Return the reads of rank 0 or 1 of 2: an odd number of samples is padded with the first."""
    return (whole + whole[:1])[rank::2]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (1, 2, 0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (1, 2, 1, 2)),
        (LIGHTNING, (1, 2, 1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}, (1, 2, 0, 1)),
        (
            {
                "TORCHELASTIC_RUN_ID": "x",
                "RANK": "1",
                "WORLD_SIZE": "2",
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "4",
            },
            (1, 2, 0, 1),
        ),
    ],
)
def test_the_process_group_has_the_rank_and_variables_have_the_local_rank(group, environ, expected):
    group(1, 2)
    world = ranks.detect(environ=environ)
    assert (world.rank, world.size, world.local_rank, world.local_size) == expected


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        (TORCHRUN, "rank 1 of 2, but RANK=0"),
        ({"RANK": "1", "WORLD_SIZE": "4"}, "rank 1 of 2, but WORLD_SIZE=4"),
        ({**LIGHTNING, "WORLD_SIZE": "4"}, "WORLD_SIZE=4"),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, "SLURM_PROCID=2"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK=0"),
    ],
)
def test_a_process_group_against_the_variables_is_refused_and_both_are_named(group, environ, named):
    group(1, 2)
    with pytest.raises(ConfigError, match=named):
        ranks.detect(environ=environ)
    assert ranks.detect(0, 1, environ).size == 1


def test_an_initialized_jax_has_the_rank(group, jax):
    jax()
    assert ranks.detect(environ={}).size == 1
    assert ranks.detect(environ={"RANK": "1", "WORLD_SIZE": "4"}).size == 4
    jax(1, 2)
    assert (ranks.detect(environ={}).rank, ranks.detect(environ={}).size) == (1, 2)
    with pytest.raises(ConfigError, match="JAX says rank 1 of 2, but WORLD_SIZE=4"):
        ranks.detect(environ={"RANK": "1", "WORLD_SIZE": "4"})
    group(1, 2)
    assert ranks.detect(environ={}).size == 2
    group(0, 2)
    with pytest.raises(ConfigError, match="process group says rank 0 of 2, JAX says rank 1 of 2; pass rank="):
        ranks.detect(environ={})
    assert ranks.detect(0, 1, {}).size == 1


def test_a_loader_made_before_jax_was_initialized_reads_its_share(make, jax):
    whole = rows(make())
    loader = make()
    jax(1, 2)
    assert rows(loader) == share(whole, 1)


def test_a_loader_of_a_process_group_reads_its_share(make, group):
    whole = rows(make())
    group(0, 2)
    first = rows(make())
    group(1, 2)
    assert (first, rows(make())) == (share(whole, 0), share(whole, 1))
    assert rows(make(rank=0, world_size=1)) == whole


def test_a_process_group_initialized_after_construction_applies_from_the_first_iter(make, group):
    whole, loader = rows(make()), make()
    assert len(loader) == 9
    loader.set_epoch(0)
    group(1, 2)
    assert len(loader) == 5
    assert loader.state_dict()["world_size"] == 2
    assert rows(loader) == share(whole, 1)
    assert loader.audit()["world_size"] == 2
    group()
    assert len(loader) == 5


def test_settings_before_the_process_group_remain_after_it(make, group):
    expected = make(rank=1, world_size=2)
    expected.set_epoch(5)
    named, resumed = make(), make()
    named.set_epoch(5)
    resumed.load_state_dict({**expected.state_dict(), "position": 4})
    group(1, 2)
    whole = rows(expected)
    assert rows(named) == whole
    assert rows(resumed) == whole[2:]


def test_lightnings_launcher_works_once_its_group_is_there(make, group, variables):
    variables(LIGHTNING)
    loader = make()
    with pytest.raises(ConfigError, match="WORLD_SIZE=2 is set but RANK is not"):
        iter(loader)
    group(1, 2)
    assert len(rows(loader)) == 9


def test_stale_variables_that_contradict_a_late_group_are_refused(make, group, variables):
    variables(TORCHRUN)
    loader = make()
    group(1, 2)
    with pytest.raises(ConfigError, match="RANK=0"):
        iter(loader)


def test_a_closed_loader_stays_closed_after_a_group_is_initialized(make, group):
    loader = make()
    loader.close()
    group(1, 2)
    with pytest.raises(foresee.errors.Closed):
        list(loader)


def test_an_order_that_each_rank_would_draw_is_refused_after_the_group_is_initialized(
    array, group, variables
):
    loader = ft.DataLoader(ft.ArrayDataset(array), shuffle=True)
    group(1, 2)
    with pytest.raises(ConfigError, match="give seed="):
        iter(loader)


def test_a_state_of_one_rank_is_refused_by_a_late_group_where_its_order_is_of_that_rank(
    array, group, variables
):
    def make():
        return ft.DataLoader(ft.ArrayDataset(array), batch_size=2, sampler=list(range(17)))

    batches = iter(first := make())
    next(batches)
    loader = make()
    loader.load_state_dict(first.state_dict())
    group(1, 2)
    for _ in range(2):
        with pytest.raises(StateMismatch, match="world_size: 1 in the state, 2"):
            iter(loader)
    group(0, 1)
    assert len(rows(loader)) == 15


class Mesh:
    """The part of torch's ``DeviceMesh`` that is used; a real one would need a process group."""

    mesh_dim_names = ("dp", "tp")
    mesh = torch.arange(4)

    def __init__(self, rank: int, size: int, ndim: int = 1, *, member: bool = True) -> None:
        self.ndim, self._rank, self._size, self._member = ndim, rank, size, member

    def get_local_rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def get_coordinate(self) -> list[int] | None:
        return [self._rank] if self._member else None


def test_a_mesh_determines_the_ranks_that_share_the_data(array, group, variables):
    group(3, 4)
    data = ft.ArrayDataset(array)
    loader = ft.DataLoader(data, batch_size=2, mesh=Mesh(1, 2))
    assert rows(loader) == [*range(1, 17, 2), 0]
    for mesh, arguments, named in (
        (Mesh(1, 2, 2), {}, r'2 dimensions \(dp, tp\); pass the data-parallel one, such as mesh\["dp"\]'),
        (Mesh(1, 2, member=False), {}, "does not contain this process"),
        (Mesh(1, 2), {"rank": 0, "world_size": 2}, "the mesh determines them"),
    ):
        with pytest.raises(ConfigError, match=named):
            ft.DataLoader(data, mesh=mesh, **arguments)
