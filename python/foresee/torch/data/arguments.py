# SPDX-License-Identifier: Apache-2.0
"""Arguments of ``foresee.torch.DataLoader`` that torch's loader has too: their faults, and their meaning.

Samplers, seeds, generators and ranks are checked together, before the engine exists. The results are a world, a plan,
and the public samplers.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

from foresee._loading import orders
from foresee._loading.arguments import whole
from foresee._loading.map_source import MapSource
from foresee._runtime import ranks
from foresee.errors import ConfigError
from foresee.torch.data import plans
from foresee.torch.data.dataset import callable_faults
from foresee.torch.data.frameworks import PublicBatchSampler

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from foresee._loading.data_source import Source
    from foresee._loading.session import Session
    from foresee._runtime.ranks import World
    from foresee.torch.data.plans import Batches, Samples


@dataclass(frozen=True, kw_only=True, eq=False)
class LoaderArguments:
    """Arguments of ``DataLoader`` on the samples and their batches."""

    dataset: Any
    source: Source | MapSource
    batch_size: int | None
    shuffle: bool | None
    sampler: Samples | None
    batch_sampler: Batches | None
    drop_last: bool
    generator: torch.Generator | None
    seed: int | None
    order: Literal["keyed"] | None

    def faults(self) -> list[str]:
        """Return the contradictions, each with its remedy."""
        by_batches, by_samples = self.batch_sampler is not None, self.sampler is not None
        faults = []
        if self.batch_size is None and self.drop_last and not by_batches:
            faults.append(
                "drop_last=True with batch_size=None; each batch is then one sample, and none is short"
            )
        if (
            isinstance(self.source, MapSource)
            and self.source.count is None
            and not (by_samples or by_batches)
        ):
            faults.append(
                f"dataset is a {type(self.dataset).__name__} without __len__; give it one, or a sampler with its "
                "samples"
            )
        if by_samples and self.shuffle:
            faults.append("sampler= with shuffle=True; the sampler determines the order")
        if by_batches and (self.batch_size != 1 or self.shuffle or by_samples or self.drop_last):
            faults.append(
                "batch_sampler= with batch_size=, shuffle=, sampler= or drop_last=; it determines them"
            )
        if self.seed is not None and (by_samples or by_batches):
            faults.append(f"seed={self.seed!r} with a sampler; the sampler determines the order")
        if self.seed is not None and self.generator is not None and self.shuffle:
            faults.append(f"seed={self.seed!r} with generator=; one of them determines the order")
        if self.order == "keyed" and (not self.shuffle or self.seed is None):
            faults.append('order="keyed" needs shuffle=True and seed=')
        faults += [
            f"{name}={type(given).__name__} without __len__; its order is unknown, use torch.utils.data.DataLoader"
            for name, given in (("sampler", self.sampler), ("batch_sampler", self.batch_sampler))
            if given is not None and not hasattr(given, "__len__")
        ]
        return faults

    def world(self, rank: int | None, world_size: int | None, mesh: DeviceMesh | None) -> tuple[World, bool]:
        """Return the ranks that share the data, and whether the arguments determine them.

        ``mesh`` and a ``DistributedSampler`` determine them as ``rank`` and ``world_size`` do.

        Raises:
            ConfigError: two of them disagree, or as in ``foresee._runtime.ranks.detect``.
        """
        if mesh is not None:
            if rank is not None or world_size is not None:
                raise ConfigError("mesh= with rank= or world_size=; the mesh determines them")
            rank, world_size = _mesh_rank(mesh)
        sampler: object = self.sampler
        if type(sampler) is DistributedSampler:
            if rank is not None and (rank, world_size) != (sampler.rank, sampler.num_replicas):
                given = "rank= and world_size=" if mesh is None else "mesh="
                raise ConfigError(
                    f"{given} say rank {rank} of {world_size}, but the sampler has rank {sampler.rank} of "
                    f"{sampler.num_replicas}; leave {given} out"
                )
            rank, world_size = sampler.rank, sampler.num_replicas
        return ranks.detect(rank, world_size, provisional=True), rank is not None

    def plan(self, world: World) -> plans.Plan:
        """Return the plan that knows the order as far ahead as possible.

        Raises:
            ConfigError: each rank would draw a different order.
        """
        samples = len(self.source)
        if self.batch_sampler is not None:
            return plans.SamplerPlan(
                self.batch_sampler, self.source, counts_batches=True, generator=self.generator, world=world
            )
        if self.sampler is not None:
            batches = BatchSampler(self.sampler, self.batch_size or 1, self.drop_last)
            return plans.plan_of_sampler(self.sampler, batches, self.source, world, self.generator)
        if not self.shuffle:
            return plans.RunPlan(orders.sequential(samples), self.generator)
        if self.seed is not None:
            known = orders.keyed if self.order == "keyed" else orders.shuffled
            return plans.RunPlan(known(samples, self.seed), self.generator)
        if world.size > 1:
            raise ConfigError(
                f"shuffle=True on {world.size} ranks without seed=: each rank would draw a different order; "
                "give seed=, or sampler=DistributedSampler(...), or rank=0, world_size=1 if every rank reads all data"
            )
        return plans.RandomPlan(
            RandomSampler(self.dataset, generator=self.generator),
            samples,
            batch_size=self.batch_size or 1,
            generator=self.generator,
        )

    def samplers(self, session: Session) -> tuple[Samples | None, Batches | None]:
        """Return the public ``sampler`` and ``batch_sampler`` of the loader; None where torch's loader has None."""
        if self.batch_sampler is not None:
            return getattr(self.batch_sampler, "sampler", None), self.batch_sampler
        sampler = self.sampler
        if sampler is None and session.order is not None:
            sampler = plans.RunSampler(session.order, session.world, session.progress)
        elif sampler is None:
            sampler = RandomSampler(self.dataset, generator=self.generator)
        if self.batch_size is None:
            return sampler, None
        return sampler, PublicBatchSampler(sampler, self.batch_size, self.drop_last)


def _mesh_rank(mesh: DeviceMesh) -> tuple[int, int]:
    """Return rank and size in ``mesh``, which has one dimension: the data-parallel one."""
    if not hasattr(mesh, "get_coordinate"):
        raise ConfigError(f'mesh={mesh!r}; a DeviceMesh of one dimension, such as mesh["dp"]')
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names or ()
        raise ConfigError(
            f"mesh= has {mesh.ndim} dimensions ({', '.join(names) or 'without names'}); pass the data-parallel "
            'one, such as mesh["dp"]'
        )
    if mesh.get_coordinate() is None:
        raise ConfigError(f"mesh= does not contain this process; its ranks are {mesh.mesh.tolist()}")
    return mesh.get_local_rank(), mesh.size()


def object_faults(*, generator: object, **callables: object) -> list[str]:
    """Return the faults of a generator and of callables, each with its remedy."""
    faults = callable_faults(**callables)
    if generator is not None and not isinstance(generator, torch.Generator):
        faults.append(f"generator={generator!r}; a torch.Generator, such as torch.Generator().manual_seed(3)")
    return faults


def worker_faults(
    num_workers: object,
    prefetch_factor: object,
    transform_threads: object,
    multiprocessing_context: object,
    *,
    persistent_workers: bool,
) -> list[str]:
    """Return the faults of the arguments on worker processes and threads, each with its remedy."""
    faults = []
    if not whole(num_workers) or num_workers < 0:
        faults.append(f"num_workers={num_workers!r}; a whole number of 0 or more")
    elif persistent_workers and num_workers == 0:
        faults.append("persistent_workers=True with num_workers=0; there are no workers")
    if not whole(transform_threads) or transform_threads < 0:
        faults.append(f"transform_threads={transform_threads!r}; a whole number of 0 or more")
    elif transform_threads and num_workers:
        faults.append(
            f"transform_threads={transform_threads!r} with num_workers={num_workers!r}; transforms run in workers or "
            "on threads, not both"
        )
    if multiprocessing_context is not None:
        methods = multiprocessing.get_all_start_methods()
        if not isinstance(multiprocessing_context, BaseContext) and multiprocessing_context not in methods:
            faults.append(
                f"multiprocessing_context={multiprocessing_context!r}; a context, or one of {methods}"
            )
        elif num_workers == 0:
            faults.append(
                f"multiprocessing_context={multiprocessing_context!r} with num_workers=0; there are no workers"
            )
    if prefetch_factor is not None and (not whole(prefetch_factor) or prefetch_factor < 1):
        faults.append(f"prefetch_factor={prefetch_factor!r}; a whole number of 1 or more")
    elif prefetch_factor is not None and not num_workers and not transform_threads:
        faults.append(
            f"prefetch_factor={prefetch_factor!r} with num_workers=0; batches are made on request: pass "
            "num_workers= or transform_threads=, or leave it out"
        )
    return faults
