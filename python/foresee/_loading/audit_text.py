# SPDX-License-Identifier: Apache-2.0
"""Texts of the report of ``ft.audit``: faults with their remedies, notes, and the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foresee._loading.rank_facts import RankFacts


def faults(report: dict[str, Any], facts: Sequence[RankFacts]) -> list[str]:
    """Return the faults of an epoch, each with its remedy."""
    found, drawn = [], any(each.replacement for each in facts)
    same = report["same_on_all_ranks"]
    batches = report["batches"]
    if same and not drawn:
        is_all = same == report["distinct"]
        which = "every rank read the same samples" if is_all else f"{same} samples came on every rank"
        found.append(
            f"{which}: pass sampler=DistributedSampler(dataset), with an IterableDataset divide it by rank; if ranks "
            "are to share samples, pass group= of those that do not"
        )
    elif report["doubled"] and not drawn:
        copies = any(each.iterable and each.workers > 1 for each in facts)
        found.append(
            f"{report['doubled']} samples were doubled"
            + (
                ": each worker reads the whole IterableDataset; divide it by torch.utils.data.get_worker_info()"
                if copies
                else ": the shares of ranks or batches overlap; check the sampler"
            )
        )
    if report["lost"] and not drawn:
        found.append(f"{report['lost']} of {report['expected']} samples were lost: no rank returned them")
    if report["whole"] and len(set(batches)) > 1:
        found.append(
            f"ranks had {min(batches)} to {max(batches)} batches: those with more wait for the others in a collective; "
            "pass DistributedSampler, which gives every rank equally many"
        )
    if report["whole"] and report["same_order"] and all(each.shuffled for each in facts):
        found.append("the order is that of the epoch before: call sampler.set_epoch(epoch) before each epoch")
    if any(each.own is False for each in facts):
        found.append(
            "the loader's own audit() does not find exactly its share; compare loader.audit() of each rank"
        )
    if len({each.whole for each in facts}) > 1:
        left = [rank for rank, each in enumerate(facts) if not each.whole]
        found.append(f"ranks {', '.join(map(str, left))} left the epoch early, the others did not")
    return found


def notes(report: dict[str, Any], facts: Sequence[RankFacts], *, stable: bool | None) -> list[str]:
    """Return remarks that are no faults; ``stable``: result of ``Sketch.end``."""
    lines = []
    if not report["whole"]:
        why = "left early" if any(not each.whole for each in facts) else "resumed from a saved state"
        lines.append(f"partial: the epoch was {why}, so samples that did not come are not counted as lost")
    if report["padding"]:
        lines.append(
            f"padding: {report['padding']} samples came twice at the end, so that ranks have equally many"
        )
    if report["dropped"]:
        lines.append(f"dropped: {report['dropped']} samples at the end, by drop_last=True")
    if any(each.replacement for each in facts):
        lines.append("the sampler draws with replacement: lost and doubled samples are meant")
    if report["expected"] is None:
        lines.append("the size of the data set is not known, so lost samples are not counted")
    if stable is None and not report["faults"]:
        lines.append("whether these hashes stay the same for a sample is known after a second epoch")
    return lines


def table(report: dict[str, Any]) -> str:
    """Return the report as text, one line per count."""
    state = "" if report["whole"] else ", partial"
    counts = report["batches"]
    batches = str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    ranks = f"{report['ranks']} rank{'s' if report['ranks'] > 1 else ''}"
    head = f"audit of epoch {report['epoch']}{state}: {report['samples']:,} samples on {ranks}, {batches} batches each"
    lines = [f"{head}, ids by {report['source']}"]
    if report["auditable"]:
        for name, label in (
            ("lost", "lost"),
            ("doubled", "doubled"),
            ("padding", "padding"),
            ("dropped", "dropped by drop_last"),
            ("same_on_all_ranks", "same on all ranks"),
        ):
            value = report[name]
            shown = report["examples"].get(name) if value else None
            examples = f"   such as {', '.join(map(str, shown))}" if shown else ""
            lines.append(f"  {label:32} {'not known' if value is None else f'{value:,}'}{examples}")
        same = {None: "not known", True: "yes", False: "no"}[report["same_order"]]
        lines.append(f"  {'same order as the epoch before':32} {same}")
    lines += [f"  note: {note}" for note in report["notes"]]
    lines += [f"  FAULT: {fault}" for fault in report["faults"]]
    return "\n".join(lines)
