# SPDX-License-Identifier: Apache-2.0
"""``ft.audit``: any loader, with a count of its samples: which were lost, doubled, or the same on all ranks.

For the faults of a distributed run that no error shows: a forgotten ``DistributedSampler`` or ``set_epoch``, an
``IterableDataset`` that each worker reads whole. Batches pass through unchanged and no random number is drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foresee._loading import audit_text, epoch_audit
from foresee._loading.epoch_audit import Sketch, Tally
from foresee._loading.rank_facts import RankFacts
from foresee.errors import ConfigError
from foresee.torch.data.gather import Ranks
from foresee.torch.data.sample_ids import source_of
from foresee.torch.data.wrapped import T_co, WrappedLoader, length_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Audited", "audit"]


def audit(
    loader: Iterable[T_co],
    *,
    key: Callable[[T_co], Any] | None = None,
    fields: Sequence[Any] | None = None,
    group: ProcessGroup | None = None,
    timeout: float = 300.0,
) -> Audited[T_co]:
    """``loader`` with an audit: iterate over what this returns instead.

    At each epoch's end the first rank writes one table to stderr: samples that were lost, doubled, and the same on all
    ranks, and whether the order is that of the epoch before. ``last`` has it as a dict for JSON. Padding by
    ``DistributedSampler`` and samples dropped by ``drop_last`` are named, and are no faults. An epoch that was left
    early is partial; over several ranks its table comes with the next ``iter()`` or ``report()``.

    Ranks exchange what they saw through ``torch.distributed``, if it is initialized: an epoch's end waits for all of
    them. Takes 4 or 8 bytes per sample of this rank, and twice that for a moment then.

    Args:
        loader: torch's ``DataLoader``, that of a framework, a Foresee loader, or anything that is iterated once per
            epoch.
        key: a function from a batch to the ids of its samples: a tensor, array or list with one entry for each.
            Default: what the loader's sampler gave.
        fields: names or positions of batch entries whose content is hashed, for data without ids. Not with random
            augmentation, which is reported as not auditable.
        group: ranks that divide the samples among them. Default: all; where loaders say which share they read, one rank
            of each share.
        timeout: seconds that a rank waits for the others at an epoch's end, above 0; then it reports alone.

    Raises:
        ConfigError: the loader's samples are not known, or a wrong argument.
    """
    return Audited(loader, key=key, fields=fields, group=group, timeout=timeout)


@dataclass
class _Epoch:
    """What one iterator handed out."""

    tally: Tally = field(default_factory=Tally)
    unknown: str | None = None
    """Why the ids of some batch are not known."""


class Audited(WrappedLoader[T_co]):
    """A loader and its audit. Attributes other than ``last`` and ``report`` are the loader's."""

    def __init__(
        self,
        loader: Iterable[T_co],
        *,
        key: Callable[[T_co], Any] | None = None,
        fields: Sequence[Any] | None = None,
        group: ProcessGroup | None = None,
        timeout: float = 300.0,
    ) -> None:
        super().__init__(loader)
        if key is not None and not callable(key):
            raise ConfigError(f"key={key!r}; a function from a batch to the ids of its samples")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 2**31:
            raise ConfigError(f"timeout={timeout!r}; seconds above 0")
        self._source = source_of(loader, key, fields)
        self._ranks = Ranks(group, timeout)
        self._epoch = 0
        self._left: list[_Epoch] = []
        self._digest: str | None = None
        self._sketch = Sketch()
        self.last: dict[str, Any] | None = None
        """Report of the last epoch, for JSON; on ranks other than the first, None."""

    def __iter__(self) -> Iterator[T_co]:
        """One epoch of the loader."""
        self._end_left()
        epoch = _Epoch()
        try:
            for batch, ids in self._source.open():
                if isinstance(ids, str):
                    epoch.unknown = ids
                elif epoch.unknown is None:
                    epoch.tally.add(ids)
                yield batch
        except BaseException as error:
            self._left.append(epoch)
            if isinstance(error, GeneratorExit) and self._ranks.size == 1:
                self._end_left()
            raise
        self._end(epoch, whole=True)

    def report(self) -> str:
        """The last epoch's table. After an epoch that was left early over several ranks, call it on all of them."""
        self._end_left()
        return "no epoch was audited on this rank" if self.last is None else audit_text.table(self.last)

    def _end_left(self) -> None:
        """Compare epochs that were left early."""
        left, self._left = self._left, []
        for epoch in left:
            if epoch.tally.batches or epoch.unknown is not None or self._ranks.size > 1:
                self._end(epoch, whole=False)

    def _end(self, epoch: _Epoch, *, whole: bool) -> None:
        """Compare an epoch with that of the other ranks, and write the table."""
        tally, unknown = epoch.tally, epoch.unknown
        said = {"expected": None, "resumed": False} | self._source.facts()
        said["resumed"] = said["resumed"] or (whole and self._is_rest(tally.batches))
        facts = RankFacts(
            whole=whole,
            batches=tally.batches,
            samples=tally.samples,
            largest=tally.largest,
            digest=tally.digest,
            same_order=None if self._digest is None or not whole else tally.digest == self._digest,
            shuffled=not tally.is_ascending and not self._source.hashed,
            last=tally.last,
            hashed=self._source.hashed,
            unknown=unknown,
            **said,
        )
        self._digest = tally.digest if whole and not facts.resumed else None
        try:
            report = self._compare(facts, tally)
        except RuntimeError as error:
            # Of a process group: a rank ended, or did not end this epoch in time. Training goes on without the others.
            self._ranks.lost = (
                f"the other ranks did not answer, so this one reports alone from here on: {error}"
            )
            report = self._compare(facts, tally)
        self._epoch += 1
        if report is None:
            return
        if self._ranks.lost is not None:
            report["notes"].append(self._ranks.lost)
        self.last = report
        sys.stderr.write(audit_text.table(report) + "\n")

    def _is_rest(self, batches: int) -> bool:
        """Whether a loader with a state gave the rest of an epoch that was begun before."""
        length = length_of(self._loader)
        return hasattr(self._loader, "load_state_dict") and length is not None and batches < length

    def _compare(self, facts: RankFacts, tally: Tally) -> dict[str, Any] | None:
        """Return the report, on the first rank."""
        ranks = self._ranks
        every = ranks.all(facts)
        kept = epoch_audit.kept(every)
        compared: list[RankFacts] = [every[rank] for rank in kept]
        name = self._source.name
        unknown = _unknown(compared)
        if unknown is not None:
            return epoch_audit.unknown(self._epoch, compared, unknown, name) if ranks.rank == 0 else None
        edges = epoch_audit.part_edges(compared)
        ids, chosen = tally.sorted(), self._source.chosen()

        def parts() -> Iterator[tuple[list[Any], list[Any]]]:
            for part in range(len(edges) - 1):
                mine = (
                    epoch_audit.cut(ids, edges, part),
                    None if chosen is None else epoch_audit.cut(chosen, edges, part),
                )
                all_parts = ranks.first(mine)
                if all_parts is not None:
                    yield [all_parts[rank][0] for rank in kept], [all_parts[rank][1] for rank in kept]

        if ranks.rank != 0:
            for _ in parts():
                pass
            return None
        return epoch_audit.compare(self._epoch, compared, parts(), edges, source=name, sketch=self._sketch)


def _unknown(facts: Sequence[RankFacts]) -> str | None:
    """Why the samples of these ranks cannot be compared."""
    reasons = [each.unknown for each in facts if each.unknown is not None]
    if reasons:
        return reasons[0]
    if not facts[0].hashed and len({each.dataset for each in facts}) > 1:
        return (
            "not auditable: ranks hold different data sets, so that equal indices are not the same sample; pass key=, "
            "a function from a batch to the ids of its samples"
        )
    return None
