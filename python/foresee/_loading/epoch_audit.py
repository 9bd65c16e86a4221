# SPDX-License-Identifier: Apache-2.0
"""Comparison of the samples of all ranks in one epoch: lost, doubled, the same on every rank, in the same order.

Pure: ids in, a report out. Ids are sorted and compared by partitions of their range, so memory is 4 or 8 bytes per
sample of a rank, and bounded per partition. ``foresee.torch.audit`` finds the ids and exchanges them between ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foresee._loading.audit_text import faults, notes
from foresee._loading.rank_facts import RankFacts

if TYPE_CHECKING:
    Ids = NDArray[np.unsignedinteger[Any]]

_BLOCK = 1 << 16
_PARTITION = 1 << 20
_EXAMPLES = 5
_SKETCH = 1 << 14


class Tally:
    """Ids of one rank in one epoch, in order."""

    def __init__(self) -> None:
        self.batches = 0
        self.samples = 0
        self.largest = 0
        self._new: list[NDArray[np.uint64]] = []
        self._new_count = 0
        self._blocks: list[Ids] = []
        self._digest = hashlib.blake2b(digest_size=16)
        self._descents = 0
        self._last = np.zeros(0, np.uint64)

    def add(self, ids: NDArray[np.uint64]) -> None:
        """Count a batch."""
        self.batches += 1
        self.samples += len(ids)
        self.largest = max(self.largest, len(ids))
        self._digest.update(ids.tobytes())
        row = np.concatenate([self._last[-1:], ids])
        self._descents += int((row[1:] <= row[:-1]).sum())
        self._last = ids
        self._new.append(ids)
        self._new_count += len(ids)
        if self._new_count >= _BLOCK:
            self._pack()

    def sorted(self) -> Ids:
        """Return all ids, ascending."""
        self._pack()
        ids: Ids = np.concatenate(self._blocks) if self._blocks else np.zeros(0, np.uint64)
        ids.sort()
        self._blocks = [ids]
        return ids

    @property
    def last(self) -> NDArray[np.uint64]:
        """Ids of the last batch."""
        return self._last

    @property
    def digest(self) -> str:
        """Digest of the ids in their order."""
        return self._digest.hexdigest()

    @property
    def is_ascending(self) -> bool:
        """Whether the ids are ascending, except for padding from the start."""
        return self._descents <= 1

    def _pack(self) -> None:
        if self._new:
            ids = np.concatenate(self._new)
            fits = len(ids) == 0 or int(ids.max()) < 2**32
            self._blocks.append(ids.astype(np.uint32) if fits else ids)
            self._new, self._new_count = [], 0


@dataclass
class _Counts:
    distinct: int = 0
    lost: int = 0
    doubled: int = 0
    doubled_last: int = 0
    same: int = 0
    examples: dict[str, list[int]] = field(
        default_factory=lambda: {"lost": [], "doubled": [], "same_on_all_ranks": []}
    )

    def show(self, name: str, ids: NDArray[Any]) -> None:
        """Add the first few of ``ids`` to the examples."""
        shown = self.examples[name]
        shown += ids[: _EXAMPLES - len(shown)].tolist()


def ranks_to_compare(facts: Sequence[RankFacts]) -> list[int]:
    """Return one rank for each share of the data; all ranks if the shares are unknown."""
    shares = [each.share for each in facts]
    sizes = {share[1] for share in shares if share is not None}
    if None in shares or len(sizes) != 1:
        return list(range(len(facts)))
    first: dict[int, int] = {}
    for rank, share in enumerate(shares):
        if share is not None:
            first.setdefault(share[0], rank)
    return list(first.values()) if len(first) == sizes.pop() else list(range(len(facts)))


def partition_edges(facts: Sequence[RankFacts]) -> list[int]:
    """Return the edges of the partitions of the ids' range, the same on every rank."""
    hashed = any(each.hashed for each in facts)
    expected = max((each.expected or 0) for each in facts)
    space = 2**64 if hashed else max(expected, 1)
    count = max(1, -(-max(sum(each.samples for each in facts), 0 if hashed else expected) // _PARTITION))
    edges = [space * i // count for i in range(count)]
    return [*edges, 2**64]


def select(ids: Ids, edges: Sequence[int], partition: int) -> Ids:
    """Return those of the ascending ``ids`` that are in a partition."""
    largest = int(np.iinfo(ids.dtype).max)
    first, last = (
        len(ids) if edge > largest else int(np.searchsorted(ids, ids.dtype.type(edge)))
        for edge in edges[partition : partition + 2]
    )
    return ids[first:last]


def compare(
    epoch: int,
    facts: Sequence[RankFacts],
    partitions: Iterable[tuple[Sequence[Ids], Sequence[Ids | None]]],
    edges: Sequence[int],
    *,
    source: str,
    sketch: Sketch,
) -> dict[str, Any]:
    """Return the report of an epoch.

    Args:
        epoch: its number.
        facts: of each rank that is compared.
        partitions: for each partition the ids of each rank, ascending, and those of its subset if it reads one.
        edges: of the partitions.
        source: name of the source of the ids, for the report.
        sketch: of the epoch before; updated with this epoch.
    """
    counts, hashed, whole = _Counts(), facts[0].hashed, _whole(facts)
    lasts = np.concatenate([each.last for each in facts])
    expected = max((each.expected or 0) for each in facts) or None
    chosen_total = 0
    for partition, (ids, chosen) in enumerate(partitions):
        values, times = np.unique(np.concatenate(ids), return_counts=True)
        counts.distinct += len(values)
        twice = values[times > 1]
        counts.doubled += int((times - 1).sum())
        counts.doubled_last += int((times - 1)[np.isin(values, lasts)].sum())
        counts.show("doubled", twice)
        if len(ids) > 1:
            each, on = np.unique(np.concatenate([np.unique(one) for one in ids]), return_counts=True)
            counts.same += int((on == len(ids)).sum())
            counts.show("same_on_all_ranks", each[on == len(ids)])
        sketch.add(values)
        if hashed or expected is None:
            continue
        if any(each is not None for each in chosen):
            due = np.unique(np.concatenate([each for each in chosen if each is not None]))
        else:
            due = np.arange(edges[partition], min(edges[partition + 1], expected), dtype=np.uint64)
        chosen_total += len(due)
        missing = np.setdiff1d(due, values, assume_unique=True)
        counts.lost += len(missing)
        counts.show("lost", missing)
    stable = sketch.end(whole=whole)
    if hashed and expected is not None:
        counts.lost, chosen_total = max(0, expected - counts.distinct), expected
    return _report(
        epoch,
        facts,
        counts,
        whole=whole,
        due=chosen_total if expected is not None else None,
        source=source,
        stable=stable if hashed else True,
    )


class Sketch:
    """The smallest hashes of two successive epochs, which show whether hashes of a sample are stable."""

    def __init__(self) -> None:
        self._before: Ids | None = None
        self._now: list[Ids] = []

    def add(self, values: Ids) -> None:
        """Add the ascending values of the next partition."""
        missing = _SKETCH - sum(map(len, self._now))
        if missing > 0:
            self._now.append(values[:missing])

    def end(self, *, whole: bool) -> bool | None:
        """End the epoch; return whether most of its values were in the whole epoch before, None if there was none."""
        values, self._now = np.concatenate(self._now) if self._now else np.zeros(0, np.uint64), []
        before = self._before
        if whole:
            self._before = values
        if before is None or not len(before) or not len(values):
            return None
        limit = min(before[-1], values[-1])
        now, then = values[values <= limit], before[before <= limit]
        return bool(2 * np.isin(now, then).sum() >= len(now))


def unknown(epoch: int, facts: Sequence[RankFacts], reason: str, source: str) -> dict[str, Any]:
    """Return the report of an epoch whose samples are unknown."""
    report = _report(epoch, facts, _Counts(), whole=_whole(facts), due=None, source=source)
    for name in ("lost", "doubled", "padding", "dropped", "same_on_all_ranks", "distinct"):
        report[name] = None
    return {**report, "auditable": False, "ok": None, "notes": [reason], "faults": []}


def _report(
    epoch: int,
    facts: Sequence[RankFacts],
    counts: _Counts,
    *,
    whole: bool,
    due: int | None,
    source: str,
    stable: bool | None = True,
) -> dict[str, Any]:
    world, samples = len(facts), sum(each.samples for each in facts)
    largest = max(each.largest for each in facts)
    padding, dropped, same, doubled, lost = 0, 0, counts.same, counts.doubled, counts.lost
    padding_max = world * largest if any(each.padded_by_batch for each in facts) else world
    if 0 < doubled < padding_max and counts.doubled_last == doubled:
        padding, doubled, same = doubled, 0, 0
    if any(each.drop_last for each in facts) and lost < world * largest + world:
        dropped, lost = lost, 0
    report: dict[str, Any] = {
        "epoch": epoch,
        "whole": whole,
        "ranks": world,
        "batches": [each.batches for each in facts],
        "samples": samples,
        "distinct": counts.distinct,
        "expected": due,
        "lost": lost if whole and due is not None else None,
        "doubled": doubled,
        "padding": padding,
        "dropped": dropped if whole else 0,
        "same_on_all_ranks": same if world > 1 else 0,
        "same_order": _all(each.same_order for each in facts),
        "source": source,
        "examples": {} if facts[0].hashed else counts.examples,
        "auditable": True,
        "faults": [],
        "notes": [],
        "ok": None,
    }
    if stable is False:
        reason = (
            "not auditable: fewer than half of the hashes of the epoch before came again, as where fields change by "
            "random augmentation; pass key=, a function from a batch to the ids of its samples"
        )
        return {**unknown(epoch, facts, reason, source), "same_order": None}
    report["faults"] = faults(report, facts)
    report["notes"] = notes(report, facts, stable=stable)
    if report["faults"]:
        report["ok"] = False
    elif whole and due is not None and stable:
        report["ok"] = True
    return report


def _whole(facts: Sequence[RankFacts]) -> bool:
    """Whether every rank returned all of its epoch."""
    return all(each.whole and not each.resumed for each in facts)


def _all(values: Iterable[bool | None]) -> bool | None:
    each = list(values)
    return None if None in each else all(each)
