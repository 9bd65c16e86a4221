# SPDX-License-Identifier: Apache-2.0
"""``ft.measure``: step times of any loader, as the wait for each batch and the computation.

Jobs of ``foresee stagger`` with torch's loader need it; Foresee's loaders write their step times themselves. The hash
of the order is written too, so that ``foresee stagger`` finds jobs with different orders. The loader is unchanged: no
random number is drawn, and batches pass through.
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

from foresee._runtime.step_times import Meter, order_hash
from foresee.config import Settings
from foresee.torch.data.wrapped import T_co, WrappedLoader, length_of

__all__ = ["Measured", "measure"]


def measure(loader: Iterable[T_co]) -> Measured[T_co]:
    """Wrap ``loader`` with a timer; iterate over the result instead.

    The time within ``next()`` counts as waiting for data, the time between two calls as computing; there is no
    additional synchronization with a CUDA device. In jobs of ``foresee stagger`` (``FORESEE_STEPS``) each step is
    written to a small file when it ends, for the first loader that the process iterates over. The overhead is about two
    microseconds per step.

    Args:
        loader: torch's ``DataLoader``, or anything that can be iterated once per epoch.

    Raises:
        ConfigError: an environment variable is wrong.
    """
    return Measured(loader)


class Measured(WrappedLoader[T_co]):
    """A loader with a timer. Other attributes than ``stats`` are the loader's."""

    def __init__(self, loader: Iterable[T_co]) -> None:
        super().__init__(loader)
        self._meter = Meter(Settings.read().steps_dir)

    def __iter__(self) -> Iterator[T_co]:
        """Iterate over one epoch of the loader."""
        # Before the iterator, whose worker processes read at once: the launcher may lock the gate.
        timer = self._meter.timer(steps=length_of(self._loader), order=_order(self._loader))
        batches = iter(self._loader)
        try:
            while True:
                timer.begin_wait()
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                timer.end_wait()
                yield batch
        finally:
            timer.end_step()

    def stats(self) -> dict[str, Any]:
        """Return ``steps``, ``epochs``, and mean and standard deviation of the seconds per step.

        The keys are ``wait_seconds``, ``wait_seconds_sd``, ``compute_seconds``, ``compute_seconds_sd``; None: not
        measured.
        """
        return self._meter.stats()


def _order(loader: object) -> int:
    """Return the hash of the next epoch's order without drawing from a generator; 0: unknown."""
    dataset = getattr(loader, "dataset", None)
    sampler = getattr(loader, "sampler", None)
    batches = getattr(loader, "batch_sampler", None)
    # Only torch's own BatchSampler is known to keep the sampler's order.
    if dataset is None or isinstance(dataset, IterableDataset) or type(batches) is not BatchSampler:
        return 0
    samples = length_of(dataset)
    if type(sampler) is SequentialSampler:
        return order_hash(f"sequential {samples}")
    if type(sampler) is DistributedSampler:
        return order_hash(
            f"distributed {samples} {sampler.seed}" if sampler.shuffle else f"sequential {samples}"
        )
    if type(sampler) is RandomSampler:
        state = torch.get_rng_state() if sampler.generator is None else sampler.generator.get_state()
        # The loader draws from its generator, usually the same one, before the sampler does.
        drawn = hashlib.blake2b(state.numpy().tobytes(), digest_size=16).hexdigest()
        return order_hash(f"random {samples} {sampler.replacement} {sampler.num_samples} {drawn}")
    return 0
