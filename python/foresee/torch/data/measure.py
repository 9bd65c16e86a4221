# SPDX-License-Identifier: Apache-2.0
"""``ft.measure``: the step times of any loader: the wait for each batch, and the computation.

Jobs that ``foresee stagger`` starts with a stock loader use it; Foresee's own loaders need no wrapper. The order
that a stock loader will read is recorded too, so that jobs with different orders are found. The loader is not
touched: no random number is drawn, and batches pass through unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from foresee._runtime.step_times import Meter, mark
from foresee.config import Settings
from foresee.torch.data.wrapped import T_co, WrappedLoader, length_of

__all__ = ["Measured", "measure"]


def measure(loader: Iterable[T_co]) -> Measured[T_co]:
    """``loader`` with a clock: iterate over what this returns instead.

    The time within ``next()`` counts as waiting for data, the time between two calls as computing; the end of a CUDA
    kernel is waited for where the loop itself waits for it. Started by ``foresee stagger`` (``FORESEE_STEPS``), each
    step is written to a small file as it ends; the first loader of a process that is iterated is the one that counts.
    Costs about two microseconds per step.

    Args:
        loader: torch's ``DataLoader``, or anything that can be iterated once per epoch.

    Raises:
        ConfigError: an environment variable with a wrong value.
    """
    return Measured(loader)


class Measured(WrappedLoader[T_co]):
    """A loader and its clock. Attributes other than ``stats`` are the loader's."""

    def __init__(self, loader: Iterable[T_co]) -> None:
        super().__init__(loader)
        self._meter = Meter(Settings.read().steps_dir)

    def __iter__(self) -> Iterator[T_co]:
        """One epoch of the loader."""
        # Before the iterator, whose worker processes begin to read at once: the launcher may hold us here.
        lap = self._meter.lap(steps=length_of(self._loader), order=_order(self._loader))
        batches = iter(self._loader)
        try:
            while True:
                lap.ask()
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                lap.got()
                yield batch
        finally:
            lap.end()

    def stats(self) -> dict[str, Any]:
        """``steps``, ``epochs``, and seconds per step, mean and standard deviation: ``wait_seconds``,
        ``wait_seconds_sd``, ``compute_seconds``, ``compute_seconds_sd``; None: not measured.
        """
        return self._meter.stats()


def _order(loader: object) -> int:
    """The mark of the order that the next epoch will have, without drawing from any generator; 0: not known."""
    dataset = getattr(loader, "dataset", None)
    sampler = getattr(loader, "sampler", None)
    batches = getattr(loader, "batch_sampler", None)
    # A BatchSampler of the user's may do anything; torch's own takes the sampler's order.
    if dataset is None or isinstance(dataset, IterableDataset) or type(batches) is not BatchSampler:
        return 0
    samples = length_of(dataset)
    if type(sampler) is SequentialSampler:
        return mark(f"sequential {samples}")
    if type(sampler) is DistributedSampler:
        return mark(f"distributed {samples} {sampler.seed}" if sampler.shuffle else f"sequential {samples}")
    if type(sampler) is RandomSampler:
        state = torch.get_rng_state() if sampler.generator is None else sampler.generator.get_state()
        # The loader's own generator is drawn from before the sampler's, and is the same one in the usual case.
        drawn = hashlib.blake2b(state.numpy().tobytes(), digest_size=16).hexdigest()
        return mark(f"random {samples} {sampler.replacement} {sampler.num_samples} {drawn}")
    return 0
