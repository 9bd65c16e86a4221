# SPDX-License-Identifier: Apache-2.0
"""Proof that the returned samples are those of the order.

Each rank adds up a 128-bit hash of (seed, epoch, position, id) over its samples. The sum does not depend on the order
of adding and adds up over ranks, so every rank can compute the expected sum of any part of an epoch without
communication. Positions past the data set are padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from foresee import _native
from foresee._loading.orders import RunOrder
from foresee._runtime.ranks import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from foresee._loading.batch import Ints

_MODULUS = 2**128


class Audit:
    """Samples of this rank in the current epoch, since it began or was resumed."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._seed = seed
        self.begin(0, 0)

    def begin(self, epoch: int, start: int, samples: int | None = None) -> None:
        """Begin an epoch; ``samples``: length of the data set, past which positions are padding."""
        self._epoch = epoch
        self._start = start
        self._limit = samples
        self._sum = 0
        self._spans: list[tuple[int, int]] = []

    def record(self, epoch: int, first: int, planned: Ints) -> None:
        """Add the samples ``planned``, this rank's ``first`` and following of the epoch."""
        self._sum = (self._sum + self._hash(epoch, first, planned)) % _MODULUS
        if self._spans and self._spans[-1][1] == first:
            self._spans[-1] = (self._spans[-1][0], first + len(planned))
        else:
            self._spans.append((first, first + len(planned)))

    def report(self, order: RunOrder | None, stop: int, ids: Callable[[], Ints]) -> dict[str, Any]:
        """Compare with the order; ``ids`` returns this rank's planned samples from where the epoch began.

        Returns:
            ``ok``: whether the samples are exactly this rank's share; ``sum``: of this rank, hexadecimal; ``expected``:
            sum of all ranks from ``start`` to ``stop``, modulo 2**128; None where only this rank knows its order.
        """
        planned = ids() if self._spans else np.zeros(0, np.int64)
        expected = sum(self._hash(self._epoch, first, planned[first:end]) for first, end in self._spans)
        total = None
        if order is not None:
            start = min(self._start, stop)
            whole = order.ids(self._epoch, start, World(0, 1, 0, 1))[: stop - start]
            total = _native.order_audit_sum(
                self._seed, self._epoch, whole, first=start, stride=1, limit=self._limit
            )
        return {
            "epoch": self._epoch,
            "start": self._start,
            "stop": stop,
            "rank": self._world.rank,
            "world_size": self._world.size,
            "samples": sum(end - first for first, end in self._spans),
            "sum": f"{self._sum:032x}",
            "expected": None if total is None else f"{total:032x}",
            "ok": self._sum == expected % _MODULUS
            and (total is None or self._world.size > 1 or len(self._spans) > 1 or self._sum == total),
        }

    def _hash(self, epoch: int, first: int, ids: Ints) -> int:
        position = self._start + first * self._world.size + self._world.rank
        return _native.order_audit_sum(
            self._seed, epoch, ids, first=position, stride=self._world.size, limit=self._limit
        )
