# SPDX-License-Identifier: Apache-2.0
"""Times of a prefetch window over a bucket, from a job: of a miss, of each of several downloads, and of the link.

Source: Krichevsky et al., IC2E 2021, whose Table I gives the times; ``docs/formats/job.md`` has the keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from foresee._schema.compat import Compat
    from foresee.jobspec import Job

__all__ = ["PREFETCHING", "downloads", "times"]

_NS = 1e9
#: Policies of windows that download several samples at a time.
PREFETCHING = ("full_fetch", "fifty_fifty")


def downloads(job: Job, policy: str) -> int:
    """Return the number of downloads that a rank has in flight under a policy of windows.

    A request for prefetching has as many as it may, any other request one.
    """
    window = job.cache.window
    if policy not in PREFETCHING:
        return 1
    asked = window.fetch or window.capacity
    return window.parallel if asked is None else min(window.parallel, asked)


def times(job: Job, policy: str, mean: float, compat: Compat) -> dict[str, Any]:
    """The section ``bucket`` of a scenario: times in nanoseconds, sizes in samples. ``mean``: bytes of a sample."""
    window, origin = job.cache.window, job.cluster.origin
    return {
        "miss_ns": round(_miss_s(job, mean, compat) * _NS),
        "download_ns": round(_download_s(job, policy, mean, compat) * _NS),
        "link_ns": round(_link_s(job, mean, compat) * _NS),
        "listing_ns": round(origin.list_time * _NS),
        "hit_ns": round(window.hit_time * _NS),
        "parallel": window.parallel,
        "cache": window.capacity,
        "fetch": window.fetch,
        "threshold": window.threshold,
        "strict": window.strict,
    }


def _miss_s(job: Job, mean: float, compat: Compat) -> float:
    """Seconds from a request for a sample that is not cached to its last byte: one download alone."""
    told = job.cache.window.miss_time
    return _transfer_s(job, 1, mean, compat) if told is None else told


def _download_s(job: Job, policy: str, mean: float, compat: Compat) -> float:
    """The same for each of the downloads that a request for prefetching has under way at a time."""
    told = job.cache.window.download_time
    if policy not in PREFETCHING:
        return _miss_s(job, mean, compat)
    return _transfer_s(job, downloads(job, policy), mean, compat) if told is None else told


def _transfer_s(job: Job, parallel: int, mean: float, compat: Compat) -> float:
    """Seconds of each of ``parallel`` downloads: the origin's latency, and the bytes of all of them."""
    return _seconds(job.cluster.origin.latency) + parallel * _bytes_s(job, mean, compat)


def _link_s(job: Job, mean: float, compat: Compat) -> float:
    """Seconds for which a sample occupies the rank's link; 0 if the job has the times of downloads."""
    timed = job.cache.window.miss_time is not None or job.cache.window.download_time is not None
    return 0.0 if timed else _bytes_s(job, mean, compat)


def _bytes_s(job: Job, mean: float, compat: Compat) -> float:
    """Seconds of a sample's bytes at the rate that the origin gives a rank.

    Where the origin's rate is known, its latency ends with the first byte, for windows as for everything else. Where it
    is not known, or to the letter of the paper, the latency is all of a download.
    """
    origin, ranks = job.cluster.origin, job.cluster.ranks
    if compat == "paper" or origin.read is None:
        return 0.0
    assert ranks is not None, "asked for before"
    counts, rates = zip(*sorted(origin.read), strict=True)
    rate = float(np.interp(ranks, counts, rates)) / ranks
    if origin.link is not None:
        rate = min(rate, origin.link)
    return mean / rate


def _seconds(value: float | None) -> float:
    assert value is not None, "asked for before"
    return value
