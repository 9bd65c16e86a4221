# SPDX-License-Identifier: Apache-2.0
"""Exchange between the ranks of ``ft.audit`` at an epoch's end, through torch's process group.

Every rank makes the same calls for each of its iterators; after an epoch that was left early it makes them later. A
separate group with a timeout bounds the wait for a rank that never calls.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class RankGroup:
    """The ranks of ``group``; None: those of torch's default group, or this process alone if there is none."""

    def __init__(self, group: ProcessGroup | None, timeout: float) -> None:
        self._group = group
        self._timeout = timeout
        self.failure: str | None = None
        """Reason why the other ranks are excluded."""

    @property
    def size(self) -> int:
        """Number of ranks, 1 for a process alone."""
        if self.failure is not None or not (dist.is_available() and dist.is_initialized()):
            return 1
        return dist.get_world_size(self._group)

    @property
    def rank(self) -> int:
        """Rank of this process among them."""
        return dist.get_rank(self._group) if self.size > 1 else 0

    def all_gather(self, value: Any) -> list[Any]:
        """Return the value of every rank, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._open())
        return values

    def gather(self, value: Any) -> list[Any] | None:
        """Return the value of every rank on the first one, None on the others."""
        if self.size == 1:
            return [value]
        group = self._open()
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, values, dst=dist.get_global_rank(group, 0), group=group)
        return values

    def _open(self) -> ProcessGroup:
        if self._group is None:
            # Objects of a gloo group do not pass through a device.
            usable = dist.is_gloo_available()
            timeout = dt.timedelta(seconds=self._timeout)
            group: Any = dist.new_group(backend="gloo", timeout=timeout) if usable else dist.group.WORLD
            self._group = group
        assert self._group is not None, "a process group is initialized"
        return self._group
