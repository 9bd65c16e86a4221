# SPDX-License-Identifier: Apache-2.0
"""Samples that a run avoids: their entries in a state, and their substitutes.

The core computes the substitutes (``avoid-1`` in ``docs/formats/order.md``). A state has the position from which on
each sample is avoided, so the samples of earlier steps can still be computed. A loader avoids all of them everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from foresee import _native

if TYPE_CHECKING:
    from foresee._loading.batch import Ints


@dataclass(frozen=True)
class Avoided:
    """Samples that are avoided from ``position`` of ``epoch`` on."""

    epoch: int
    position: int
    ids: tuple[int, ...]
    """Ascending, at least one."""

    def to_state(self) -> dict[str, Any]:
        """Return the entry of a state."""
        return {"epoch": self.epoch, "position": self.position, "ids": list(self.ids)}


def from_state(entries: object) -> tuple[Avoided, ...]:
    """Return the entries under ``avoid`` of a state.

    Raises:
        ValueError: they have another form, or an id comes twice.
    """
    if not isinstance(entries, list | tuple) or not entries:
        raise ValueError("a list of entries expected")
    avoided = tuple(_entry(entry) for entry in entries)
    if len(union(avoided)) < sum(len(entry.ids) for entry in avoided):
        raise ValueError("a sample is listed twice")
    return avoided


def _entry(entry: object) -> Avoided:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("ids"), list | tuple) or not entry["ids"]:
        raise ValueError(f"entry {entry!r}")
    for value in (entry.get("epoch"), entry.get("position"), *entry["ids"]):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"entry {entry!r}")
    return Avoided(entry["epoch"], entry["position"], tuple(sorted(entry["ids"])))


def union(avoided: Iterable[Avoided]) -> tuple[int, ...]:
    """Return all avoided ids, ascending."""
    return tuple(sorted({sample for entry in avoided for sample in entry.ids}))


def before(avoided: Iterable[Avoided], epoch: int, position: int) -> tuple[int, ...]:
    """Return the ids that are avoided at ``position`` of ``epoch``, ascending."""
    return union(entry for entry in avoided if (entry.epoch, entry.position) <= (epoch, position))


def substituted(ids: Ints, avoid: tuple[int, ...], *, samples: int, seed: int, epoch: int) -> Ints:
    """Replace the avoided samples among ``ids`` of ``epoch`` by their substitutes."""
    if not avoid:
        return ids
    sorted_avoid = np.array(avoid, np.int64)
    places = np.searchsorted(sorted_avoid, ids)
    is_avoided = sorted_avoid[np.minimum(places, len(avoid) - 1)] == ids
    if not is_avoided.any():
        return ids
    substitutes = _native.order_substitutes(samples, seed, epoch, sorted_avoid.astype(np.uint64))
    result: Ints = ids.copy()
    result[is_avoided] = substitutes.astype(np.int64)[places[is_avoided]]
    return result
