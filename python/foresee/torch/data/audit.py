# SPDX-License-Identifier: Apache-2.0
"""``ft.audit``: count the samples of any loader that were lost, doubled, or the same on all ranks.

It finds mistakes that raise no error: a missing ``DistributedSampler`` or ``set_epoch``, an ``IterableDataset`` that
each worker reads whole. Batches pass through unchanged, and no random number is drawn.
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
from foresee.torch.data.gather import RankGroup
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
    """Wrap ``loader`` with an audit; iterate over the result instead.

    At each epoch's end the first rank writes one table to stderr: samples that were lost, doubled, and the same on all
    ranks, and whether the order is that of the epoch before. ``last`` has it as a dict for JSON. Padding by
    ``DistributedSampler`` and samples dropped by ``drop_last`` are listed, and are no faults. An epoch that was left
    early is partial; on several ranks its table follows with the next ``iter()`` or ``report()``.

    If ``torch.distributed`` is initialized, an epoch's end waits for all ranks, which exchange their ids. Memory: 4 or
    8 bytes per sample of this rank, and twice that during the exchange.

    Args:
        loader: torch's ``DataLoader``, that of a framework, a Foresee loader, or anything that is iterated once per
            epoch.
        key: a function from a batch to the ids of its samples: a tensor, array or list with one entry for each.
            Default: the indices of the loader's sampler.
        fields: names or positions of batch entries whose content is hashed, for data without ids. Not with random
            augmentation, which is reported as not auditable.
        group: ranks that share the samples. Default: all; where loaders have the index of their share, one rank per
            share.
        timeout: seconds that a rank waits for the others at an epoch's end, above 0; then it reports alone.

    Raises:
        ConfigError: the loader's samples are unknown, or an argument is wrong.
    """
    return Audited(loader, key=key, fields=fields, group=group, timeout=timeout)


@dataclass
class _Epoch:
    """Batches of one iterator."""

    tally: Tally = field(default_factory=Tally)
    unknown: str | None = None
    """Reason why the ids of a batch are unknown."""


class Audited(WrappedLoader[T_co]):
    """A loader with an audit. Other attributes than ``last`` and ``report`` are the loader's."""

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
        self._ranks = RankGroup(group, timeout)
        self._epoch = 0
        self._partial: list[_Epoch] = []
        self._digest: str | None = None
        self._sketch = Sketch()
        self.last: dict[str, Any] | None = None
        """Report of the last epoch, for JSON; on ranks other than the first, None."""

    def __iter__(self) -> Iterator[T_co]:
        """Iterate over one epoch of the loader."""
        self._end_partial()
        epoch = _Epoch()
        try:
            for batch, ids in self._source.open():
                if isinstance(ids, str):
                    epoch.unknown = ids
                elif epoch.unknown is None:
                    epoch.tally.add(ids)
                yield batch
        except BaseException as error:
            self._partial.append(epoch)
            if isinstance(error, GeneratorExit) and self._ranks.size == 1:
                self._end_partial()
            raise
        self._end(epoch, whole=True)

    def report(self) -> str:
        """Return the last epoch's table. After an epoch that several ranks left early, call it on all of them."""
        self._end_partial()
        return "no epoch was audited on this rank" if self.last is None else audit_text.table(self.last)

    def _end_partial(self) -> None:
        """Compare epochs that were left early."""
        partial, self._partial = self._partial, []
        for epoch in partial:
            if epoch.tally.batches or epoch.unknown is not None or self._ranks.size > 1:
                self._end(epoch, whole=False)

    def _end(self, epoch: _Epoch, *, whole: bool) -> None:
        """Compare an epoch with that of the other ranks, and write the table."""
        tally, unknown = epoch.tally, epoch.unknown
        of_loader = {"expected": None, "resumed": False} | self._source.facts()
        of_loader["resumed"] = of_loader["resumed"] or (whole and self._is_rest(tally.batches))
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
            **of_loader,
        )
        self._digest = tally.digest if whole and not facts.resumed else None
        try:
            report = self._compare(facts, tally)
        except RuntimeError as error:
            # Of the process group: a rank ended, or did not end this epoch in time. Training continues.
            self._ranks.failure = (
                f"the other ranks did not answer, so this one reports alone from here on: {error}"
            )
            report = self._compare(facts, tally)
        self._epoch += 1
        if report is None:
            return
        if self._ranks.failure is not None:
            report["notes"].append(self._ranks.failure)
        self.last = report
        sys.stderr.write(audit_text.table(report) + "\n")

    def _is_rest(self, batches: int) -> bool:
        """Whether a loader with a state returned the rest of an epoch."""
        length = length_of(self._loader)
        return hasattr(self._loader, "load_state_dict") and length is not None and batches < length

    def _compare(self, facts: RankFacts, tally: Tally) -> dict[str, Any] | None:
        """Return the report, on the first rank."""
        ranks = self._ranks
        every = ranks.all_gather(facts)
        chosen_ranks = epoch_audit.ranks_to_compare(every)
        compared: list[RankFacts] = [every[rank] for rank in chosen_ranks]
        name = self._source.name
        unknown = _unknown(compared)
        if unknown is not None:
            return epoch_audit.unknown(self._epoch, compared, unknown, name) if ranks.rank == 0 else None
        edges = epoch_audit.partition_edges(compared)
        ids, chosen = tally.sorted(), self._source.chosen()

        def partitions() -> Iterator[tuple[list[Any], list[Any]]]:
            for i in range(len(edges) - 1):
                own = (
                    epoch_audit.select(ids, edges, i),
                    None if chosen is None else epoch_audit.select(chosen, edges, i),
                )
                of_ranks = ranks.gather(own)
                if of_ranks is not None:
                    yield (
                        [of_ranks[rank][0] for rank in chosen_ranks],
                        [of_ranks[rank][1] for rank in chosen_ranks],
                    )

        if ranks.rank != 0:
            for _ in partitions():
                pass
            return None
        return epoch_audit.compare(
            self._epoch, compared, partitions(), edges, source=name, sketch=self._sketch
        )


def _unknown(facts: Sequence[RankFacts]) -> str | None:
    """Return the reason why the samples of these ranks cannot be compared."""
    reasons = [each.unknown for each in facts if each.unknown is not None]
    if reasons:
        return reasons[0]
    if not facts[0].hashed and len({each.dataset for each in facts}) > 1:
        return (
            "not auditable: ranks hold different data sets, so that equal indices are not the same sample; pass key=, "
            "a function from a batch to the ids of its samples"
        )
    return None
