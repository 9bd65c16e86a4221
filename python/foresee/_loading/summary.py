# SPDX-License-Identifier: Apache-2.0
"""``repr`` of a loader or data set, and the text of ``report()``.

A debugger shows the ``repr`` of loaders that are closed, forked or unfinished, so it starts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foresee._loading.data_source import Source
    from foresee._loading.session import Session

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_SECRETS = re.compile(r"(?<=://)[^/@]*@|[?#].*")
# Share of the time since start below which a wait has no hint.
_WAIT_SHARE_MIN = 0.02
_SOURCES = {"origin": "origin", "disk": "disk", "ram": "RAM", "staging": "shared in staging"}
_ROLES = {
    "host": "the host of the node's cache is in this process",
    "rank_consumer": "the host of the node's cache is in another rank's process",
    "service_consumer": "a service has the node's cache",
}
_HINTS = {
    "plan": "batches were requested while the loader still started: call start() while the model is built",
    "origin_queue": "more samples were due than the origin served: keep more, with Cache(ram=, disk=, disk_size=)",
    "origin_read": "the origin was slower than the loop: keep more samples, with Cache(ram=, disk=, disk_size=)",
    "origin_retry": "the origin failed or throttled: start fewer ranks at a time, or keep more samples with cache=",
    "disk": "the cache's disk is slower than the loop: give Cache a faster disk=, or more ram=",
    "node": "the host of the node's cache still read the samples: give it more ram=, a disk=, or a faster one",
    "copy": "batches were ready: only returning them took time",
    "transform": "transforms are slower than the loop: raise num_workers=, or transform_threads= if they keep no state",
    "collate": "collating is slower than the loop: raise num_workers=",
    "workers": "workers were started or could not keep up: persistent_workers=True, or raise num_workers=",
}


def loader_line(name: str, session: Session, batches: int | None, *, provisional: bool) -> str:
    """Return the ``repr`` of a loader of class ``name``; ``batches``: of an epoch, None if unknown."""
    world, cache = session.world, session.cache
    size = "of their own" if session.batch_size is None else f"of {session.batch_size:,}"
    count = "batches" if batches is None else _count(batches, "batch", "batches")
    rank = f"rank {world.rank} of {world.size}" + (" until the first iter()" if provisional else "")
    parts = [_count(session.samples, "sample"), f"{count} {size} per epoch", rank]
    if session.off:
        parts.append("no cache (FORESEE_OFF)")
    else:
        disk = "" if cache.disk is None else f" and {shown_bytes(cache.disk_bytes)} of disk in {cache.disk}"
        parts.append(f"cache {shown_bytes(cache.ram_bytes)} of RAM{disk}")
    if session.avoided:
        parts.append(f"avoids {sum(len(entry.ids) for entry in session.avoided):,}")
    if session.is_forked:
        parts.append("of the parent process")
    elif session.progress.is_stopped:
        parts.append("closed")
    return f"{name}({', '.join(parts)})"


def source_line(name: str, source: Source) -> str:
    """Return the ``repr`` of a data set of class ``name``."""
    index = source.index
    classes = f", {_count(len(index.classes), 'class', 'classes')}" if index.classes else ""
    total = shown_bytes(index.total_bytes)
    return f"{name}({_count(len(index), 'sample')}, {total}{classes}, {shown_uri(source.uri)})"


def shown_uri(uri: str) -> str:
    """Return ``uri`` without user, password, query and fragment, which may be secret."""
    return _SECRETS.sub("", uri) if "://" in uri else uri


def shown_bytes(count: int) -> str:
    """Return a size with three digits and a unit.

    >>> shown_bytes(999), shown_bytes(1_234_567), shown_bytes(8 * 10**9)
    ('999 B', '1.23 MB', '8 GB')
    """
    value, unit = float(count), 0
    while value >= 999.5 and unit + 1 < len(_UNITS):
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {_UNITS[unit]}"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def report(stats: Mapping[str, Any]) -> str:
    """Return a few lines on ``stats()`` of a loader."""
    waits = {cause: each["seconds"] for cause, each in stats["waits"].items() if each is not None}
    lines = ["plain reads, FORESEE_OFF=1"] if stats.get("off") else []
    lines += _bytes(stats) + _tiers(stats) + _node(stats.get("node")) + _waits(waits, stats.get("elapsed_s"))
    if events := repeated_reads(stats.get("origin", {})):
        lines.append(f"origin    {events}")
    counts = {**stats["on_error"], "avoided": stats["avoided"]}
    odd = [f"{count:,} {name}" for name, count in counts.items() if count]
    if odd:
        lines.append(f"samples   {', '.join(odd)}")
    return "\n".join(lines) if lines else "nothing was read yet"


def repeated_reads(origin: Mapping[str, Any]) -> str:
    """Return the counts of repeated reads of the origin, those above 0; empty without any."""
    names = ("retries", "throttles", "hedges")
    return ", ".join(f"{origin[name]:,} {name}" for name in names if origin.get(name))


def _bytes(stats: Mapping[str, Any]) -> list[str]:
    """Return the sources of the bytes, and the share of samples that were not read from the origin."""
    if stats.get("off"):
        return [
            f"bytes     {shown_bytes(stats['bytes'])} of {_count(stats['samples'], 'sample')} from the origin"
        ]
    reads = {place: each["read"]["ok"] for place, each in stats["operations"].items()}
    reads = {place: read for place, read in reads.items() if read is not None and read["samples"]}
    total, samples = (sum(read[what] for read in reads.values()) for what in ("bytes", "samples"))
    if not samples:
        return []
    order = sorted(reads, key=lambda place: reads[place]["bytes"], reverse=True)
    shares = [
        f"{_SOURCES.get(place, place)} {shown_bytes(reads[place]['bytes'])} "
        f"({reads[place]['bytes'] / max(total, 1):.0%})"
        for place in order
    ]
    hits = 1 - (reads["origin"]["samples"] if "origin" in reads else 0) / samples
    return [
        f"bytes     {', '.join(shares)}",
        f"hits      {hits:.0%} of {samples:,} reads of samples without the origin",
    ]


def _tiers(stats: Mapping[str, Any]) -> list[str]:
    tiers = [
        f"{tier['place']} {shown_bytes(tier['used_bytes'])} of {shown_bytes(tier['capacity_bytes'])}"
        for tier in stats.get("tiers", [])
    ]
    return [f"cache     {', '.join(tiers)}"] if tiers else []


def _node(node: Mapping[str, Any] | None) -> list[str]:
    """Return the cache of the node: its host and capacity, and what all its consumers got from it."""
    if node is None:
        return []
    disk = f" and {shown_bytes(node['disk_bytes'])} of disk" if node["disk_bytes"] else ""
    lost = "" if node["attached"] else "; its host has ended, this rank reads the origin itself"
    lines = [f"node      {_ROLES[node['role']]}, {shown_bytes(node['ram_bytes'])} of RAM{disk}{lost}"]
    host = node["host"]
    if host is not None:
        answers = [one[place] for one in host["consumers"] for place in ("memory", "disk", "peers", "origin")]
        delivered, read = sum(each["bytes"] for each in answers), host["origin"]["bytes"]
        repeated = repeated_reads(host["origin"])
        lines.append(
            f"          {shown_bytes(delivered)} delivered to its {_count(len(host['consumers']), 'consumer')}; "
            f"{shown_bytes(read)} read from the origin{f' ({repeated})' if repeated else ''}"
        )
    return lines


def _waits(waits: Mapping[str, float], elapsed: float | None) -> list[str]:
    """Return the loop's waits by cause, the longest first, and a hint for that one."""
    total = sum(waits.values())
    if not waits:
        return []
    order = sorted(waits, key=lambda cause: waits[cause], reverse=True)
    causes = [
        f"{cause} {_seconds(waits[cause])} ({waits[cause] / total:.0%})"
        for cause in order
        if waits[cause] > 0
    ]
    share = f" of {_seconds(elapsed)} since start" if elapsed else ""
    lines = [f"waited    {_seconds(total)}{share}: {', '.join(causes)}"]
    if elapsed and total < _WAIT_SHARE_MIN * elapsed:
        return [
            *lines,
            f"hint      the loop waited for {total / elapsed:.1%} of the time; nothing to gain here",
        ]
    return [*lines, f"hint      {order[0]}: {_HINTS[order[0]]}"] if order[0] in _HINTS else lines
