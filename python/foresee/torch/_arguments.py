# SPDX-License-Identifier: Apache-2.0
"""The arguments of ``foresee.torch.DataLoader`` that stock loaders have too: their faults, and their meaning.

Apart from the loader because samplers, seeds, generators and ranks mean something together, which can be read
and refused before there is an engine. Refuses to hand out anything: what it gives are a world, a plan, and
the samplers that others see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

from foresee import _orders, _world
from foresee._arguments import whole
from foresee.errors import ConfigError
from foresee.torch import _plans

if TYPE_CHECKING:
    import torch

    from foresee._session import Session
    from foresee._world import World
    from foresee.torch._dataset import OriginDataset
    from foresee.torch._plans import Batches, Samples


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """Which samples were asked for, in which batches; as ``DataLoader`` was given it."""

    dataset: OriginDataset
    batch_size: int
    shuffle: bool | None
    sampler: Samples | None
    batch_sampler: Batches | None
    drop_last: bool
    generator: torch.Generator | None
    seed: int | None
    order: Literal["keyed"] | None

    def faults(self) -> list[str]:
        """What does not go together, each with its remedy."""
        by_batches, by_samples = self.batch_sampler is not None, self.sampler is not None
        faults = []
        if by_samples and self.shuffle:
            faults.append("sampler= with shuffle=True; the sampler says the order")
        if by_batches and (self.batch_size != 1 or self.shuffle or by_samples or self.drop_last):
            faults.append(
                "batch_sampler= with batch_size=, shuffle=, sampler= or drop_last=; it says them all"
            )
        if self.seed is not None and (by_samples or by_batches):
            faults.append(f"seed={self.seed!r} with a sampler; the sampler says the order")
        if self.seed is not None and self.generator is not None and self.shuffle:
            faults.append(f"seed={self.seed!r} with generator=; either may say the order, not both")
        if self.order == "keyed" and (not self.shuffle or self.seed is None):
            faults.append('order="keyed" needs shuffle=True and seed=')
        faults += [
            f"{name}={type(given).__name__} without __len__; its order cannot be known, use torch.utils.data.DataLoader"
            for name, given in (("sampler", self.sampler), ("batch_sampler", self.batch_sampler))
            if given is not None and not hasattr(given, "__len__")
        ]
        return faults

    def world(self, rank: int | None, world_size: int | None) -> World:
        """The ranks that share the data: a ``DistributedSampler`` knows them, else they are detected.

        Raises:
            ConfigError: the sampler says otherwise than the arguments, or see ``foresee._world.detect``.
        """
        sampler: object = self.sampler
        if type(sampler) is not DistributedSampler:
            return _world.detect(rank, world_size)
        if rank is not None and (rank, world_size) != (sampler.rank, sampler.num_replicas):
            raise ConfigError(
                f"rank={rank}, world_size={world_size}, but the sampler has rank {sampler.rank} of "
                f"{sampler.num_replicas}; leave the arguments out"
            )
        return _world.detect(sampler.rank, sampler.num_replicas)

    def plan(self, world: World) -> _plans.Plan:
        """The plan that knows the order the furthest ahead.

        Raises:
            ConfigError: each rank would draw an order of its own.
        """
        samples = len(self.dataset)
        if self.batch_sampler is not None:
            return _plans.SamplerPlan(
                self.batch_sampler, samples, counts_batches=True, generator=self.generator, world=world
            )
        if self.sampler is not None:
            batches = BatchSampler(self.sampler, self.batch_size, self.drop_last)
            return _plans.of_sampler(self.sampler, batches, samples, world, self.generator)
        if not self.shuffle:
            return _plans.RunPlan(_orders.sequential(samples), self.generator)
        if self.seed is not None:
            known = _orders.keyed if self.order == "keyed" else _orders.shuffled
            return _plans.RunPlan(known(samples, self.seed), self.generator)
        if world.size > 1:
            raise ConfigError(
                f"shuffle=True on {world.size} ranks without seed=: each rank would draw an order of its own; "
                "give seed=, or sampler=DistributedSampler(...), or rank=0, world_size=1 if every rank shall read all"
            )
        return _plans.RandomPlan(
            RandomSampler(self.dataset, generator=self.generator),
            samples,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            generator=self.generator,
            world=world,
        )

    def samplers(self, session: Session) -> tuple[Samples | None, Batches]:
        """What ``sampler`` and ``batch_sampler`` of the loader are to others."""
        if self.batch_sampler is not None:
            return getattr(self.batch_sampler, "sampler", None), self.batch_sampler
        sampler = self.sampler
        if sampler is None and session.order is not None:
            sampler = _plans.RunSampler(session.order, session.world, session.progress)
        elif sampler is None:
            sampler = RandomSampler(self.dataset, generator=self.generator)
        return sampler, BatchSampler(sampler, self.batch_size, self.drop_last)


def workers_checked(num_workers: object, prefetch_factor: object, *, persistent_workers: bool) -> list[str]:
    """What is wrong with the arguments about worker processes, each with its remedy."""
    faults = []
    if not whole(num_workers) or num_workers < 0:
        faults.append(f"num_workers={num_workers!r}; a whole number of 0 or more")
    elif persistent_workers and num_workers == 0:
        faults.append("persistent_workers=True with num_workers=0; there are none to keep")
    if prefetch_factor is not None and (not whole(prefetch_factor) or prefetch_factor < 1):
        faults.append(f"prefetch_factor={prefetch_factor!r}; a whole number of 1 or more")
    return faults
