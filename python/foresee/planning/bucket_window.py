# SPDX-License-Identifier: Apache-2.0
"""Times of a prefetch window over a bucket: of a miss, of each of several downloads, and of the link.

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
    """Return the downloads that a rank has in flight: several for a prefetch request, else one."""
    window = job.cache.window
    if policy not in PREFETCHING:
        return 1
    samples = window.fetch or window.capacity
    return window.parallel if samples is None else min(window.parallel, samples)


def times(job: Job, policy: str, mean: float, compat: Compat) -> dict[str, Any]:
    """Return the section ``bucket`` of a scenario: times in nanoseconds, sizes in samples.

    ``mean`` is the mean size of a sample in bytes.
    """
    window, origin = job.cache.window, job.cluster.origin
    sample_s = _sample_s(job, mean, compat)
    miss_s, download_s = window.miss_time, window.download_time
    # Measured times of downloads include the link.
    link_s = sample_s if miss_s is None and download_s is None else 0.0
    if miss_s is None:
        miss_s = _latency(job) + sample_s
    if policy not in PREFETCHING:
        download_s = miss_s
    elif download_s is None:
        download_s = _latency(job) + downloads(job, policy) * sample_s
    return {
        "miss_ns": round(miss_s * _NS),
        "download_ns": round(download_s * _NS),
        "link_ns": round(link_s * _NS),
        "listing_ns": round(origin.list_time * _NS),
        "hit_ns": round(window.hit_time * _NS),
        "parallel": window.parallel,
        "cache": window.capacity,
        "fetch": window.fetch,
        "threshold": window.threshold,
        "strict": window.strict,
    }


def _sample_s(job: Job, mean: float, compat: Compat) -> float:
    """Return the seconds of a sample's bytes at the rate that the origin gives a rank.

    With a known rate, the origin's latency ends with the first byte. With an unknown rate, or to the letter of the
    paper, the latency includes the whole download, and the bytes take no time.
    """
    origin, ranks = job.cluster.origin, job.cluster.ranks
    if compat == "paper" or origin.read is None:
        return 0.0
    assert ranks is not None, "checked before"
    counts, rates = zip(*sorted(origin.read), strict=True)
    rate = float(np.interp(ranks, counts, rates)) / ranks
    return mean / (rate if origin.link is None else min(rate, origin.link))


def _latency(job: Job) -> float:
    assert job.cluster.origin.latency is not None, "checked before"
    return job.cluster.origin.latency
