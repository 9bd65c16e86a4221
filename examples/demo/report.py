# SPDX-License-Identifier: Apache-2.0
"""Comparison of the results of all ranks: a table, and whether training was identical.

Pure: it reads no file and no clock, so that a test can pass any result. Missing values are None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

#: The file of a rank, see `train.py`.
Rank = dict[str, Any]

NOT_MEASURED = "not measured"


def compare(stock: list[Rank], ours: list[Rank]) -> dict[str, Any]:
    """Compare both loaders; ``identical``: every rank had equal losses at every step, and equal weights."""
    difference = first_difference(stock, ours)
    return {
        "identical": difference is None,
        "first_difference": difference,
        "ranks": len(ours),
        "samples": ours[0]["samples"],
        "epochs": len(ours[0]["epochs"]),
        "steps_per_rank": sum(len(epoch["losses"]) for epoch in ours[0]["epochs"]),
        "last_loss": float.fromhex(ours[0]["epochs"][-1]["losses"][-1]),
        "loaders": {"torch": summary(stock), "foresee": summary(ours)},
    }


def first_difference(stock: list[Rank], ours: list[Rank]) -> str | None:
    """Describe the first difference of the two runs; None if they are bit for bit the same."""
    if len(stock) != len(ours):
        return f"{len(stock)} ranks with torch, {len(ours)} with Foresee"
    for number, (theirs, own) in enumerate(zip(stock, ours, strict=True)):
        for name in ("samples", "classes"):
            if theirs[name] != own[name]:
                return f"rank {number}: {name} {theirs[name]} with torch, {own[name]} with Foresee"
        pairs = zip_longest(losses(theirs), losses(own))
        for step, (one, other) in enumerate(pairs):
            if one != other:
                return (
                    f"rank {number}, step {step}: loss {shown(one)} with torch, {shown(other)} with Foresee"
                )
        if theirs["weights_sha256"] != own["weights_sha256"]:
            return f"rank {number}: the weights at the end"
    return None


def losses(rank: Rank) -> Iterable[str]:
    """Return the losses of all steps, as hexadecimal digits of their exact values."""
    return (loss for epoch in rank["epochs"] for loss in epoch["losses"])


def shown(loss: str | None) -> str:
    """Format an exact value, or a missing one."""
    return "missing" if loss is None else f"{float.fromhex(loss)!r}"


def summary(ranks: list[Rank]) -> dict[str, Any]:
    """Return the numbers of one loader: times of the slowest rank, sums of all ranks' counts."""
    epochs = []
    before: list[tuple[int, int] | None] = [(0, 0) for _ in ranks]
    for number in range(len(ranks[0]["epochs"])):
        of_ranks = [rank["epochs"][number] for rank in ranks]
        now = [own_count(epoch["stats"]) for epoch in of_ranks]
        counted = of_ranks[0]["origin"]
        epochs.append(
            {
                "seconds": max(epoch["seconds"] for epoch in of_ranks),
                "waited_s": max(epoch["waited_s"] for epoch in of_ranks),
                **(counts_of_loader(before, now) if counted is None else counts_of_origin(counted)),
            }
        )
        before = now
    listing = ranks[0]["listing"]
    counted = listing["origin"]
    unknown = {"requests": None, "bytes": None, "counted_by": None}
    return {
        "listing": {
            "seconds": listing["seconds"],
            **(unknown if counted is None else counts_of_origin(counted)),
        },
        "epochs": epochs,
        "seconds": sum(epoch["seconds"] for epoch in epochs),
        "waited_s": sum(epoch["waited_s"] for epoch in epochs),
        "without_io": {
            "seconds": max(rank["without_io"]["seconds"] for rank in ranks),
            "waited_s": max(rank["without_io"]["waited_s"] for rank in ranks),
        },
    }


def counts_of_origin(counted: dict[str, int]) -> dict[str, Any]:
    """Return the counts of the origin."""
    return {"requests": counted["requests"], "bytes": counted["bytes"], "counted_by": "origin"}


def counts_of_loader(
    before: list[tuple[int, int] | None], now: list[tuple[int, int] | None]
) -> dict[str, Any]:
    """Return the counts of the loaders, if they have any."""
    requests = total = 0
    for old, new in zip(before, now, strict=True):
        if old is None or new is None:
            return {"requests": None, "bytes": None, "counted_by": None}
        requests += new[0] - old[0]
        total += new[1] - old[1]
    return {"requests": requests, "bytes": total, "counted_by": "loader"}


def own_count(stats: dict[str, Any] | None) -> tuple[int, int] | None:
    """Return Foresee's number of reads of the origin since its start, with failed ones, and their bytes."""
    if stats is None:
        return None
    reads = [outcome for outcome in stats["operations"]["origin"]["read"].values() if outcome is not None]
    return sum(read["count"] for read in reads), sum(read["bytes"] for read in reads)


def causes(before: dict[str, Any] | None, now: dict[str, Any] | None) -> str:
    """Return the two longest causes of Foresee's waits since ``before``, in brackets; empty if unknown.

    >>> waits = lambda **seconds: {"waits": {cause: {"seconds": seconds[cause]} for cause in seconds}}
    >>> causes(waits(transform=1.0), waits(transform=1.5, origin_read=4.0, copy=0.2))
    ' (origin_read 4.0, transform 0.5)'
    """
    if now is None:
        return ""
    spent = {
        cause: each["seconds"] - seconds_of(before, cause)
        for cause, each in now["waits"].items()
        if each is not None
    }
    longest = sorted(spent.items(), key=lambda each: -each[1])[:2]
    parts = [f"{cause} {seconds:.1f}" for cause, seconds in longest if seconds >= 0.05]
    return f" ({', '.join(parts)})" if parts else ""


def seconds_of(stats: dict[str, Any] | None, cause: str) -> float:
    """Return the wait for ``cause`` so far, in seconds."""
    each = None if stats is None else stats["waits"].get(cause)
    return 0.0 if each is None else float(each["seconds"])


def table(result: dict[str, Any], *, origin: str, fastest_s: float | None) -> str:
    """Format the comparison. ``fastest_s``: the origin's least time for one pass; None: unknown."""
    lines = [f"{'loader':<9}{'epoch':<9}{'time':>9}{'waited':>10}{'requests':>14}{'MB':>14}"]
    for name, loader in result["loaders"].items():
        lines.append(row(name, "listing", loader["listing"]))
        lines += [row(name, str(number), epoch) for number, epoch in enumerate(loader["epochs"], 1)]
        # Measured with each loader: if the two differ, other programs have disturbed the times above.
        lines.append(row(name, "no I/O", loader["without_io"]))
    lines.append("")
    lines.append(f"Origin: {origin}.")
    if fastest_s is not None:
        lines.append(
            f"It needs {fastest_s:.1f} s for one pass over {result['samples']} samples, with any loader."
        )
    stock, ours = result["loaders"]["torch"], result["loaders"]["foresee"]
    lines.append(
        f"All epochs: {stock['seconds']:.1f} s with torch (waited {stock['waited_s']:.1f} s), "
        f"{ours['seconds']:.1f} s with Foresee (waited {ours['waited_s']:.1f} s)."
    )
    if any(epoch["counted_by"] == "loader" for epoch in ours["epochs"]):
        lines.append("The origin has no counters: Foresee's requests are its own count.")
    lines.append(verdict(result))
    return "\n".join(lines) + "\n"


def row(name: str, epoch: str, numbers: dict[str, Any]) -> str:
    """Format one line of the table."""
    waited = f"{numbers['waited_s']:>8.1f} s" if "waited_s" in numbers else f"{'':>10}"
    line = f"{name:<9}{epoch:<9}{numbers['seconds']:>7.1f} s{waited}"
    if "requests" not in numbers:
        return line
    requests = NOT_MEASURED if numbers["requests"] is None else str(numbers["requests"])
    megabytes = NOT_MEASURED if numbers["bytes"] is None else f"{numbers['bytes'] / 1e6:.1f}"
    return f"{line}{requests:>14}{megabytes:>14}"


def verdict(result: dict[str, Any]) -> str:
    """Format whether training was identical."""
    if result["identical"]:
        return (
            f"Loss curves: identical bit for bit, {result['steps_per_rank']} steps on each of {result['ranks']} ranks, "
            f"and equal weights; last loss {result['last_loss']:.4f}."
        )
    return f"Loss curves: DIFFERENT. {result['first_difference']}"
