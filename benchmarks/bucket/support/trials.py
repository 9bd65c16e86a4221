# SPDX-License-Identifier: Apache-2.0
"""The points of the paper's figures 3 to 9: a cache and a window each, on a smaller partition.

Sizes are multiples of the paper's: its cache of 2048 samples is ``Size.cache_samples``, its fetch size of 1024 half of
that, and its steps of 256 a quarter of the fetch size.

Source: Krichevsky et al., IC2E 2021, section V.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from .sizes import Settings, Size

#: Reads ahead at a time. The paper's 16 downloads are 5.66 times as fast as one (Table I).
THREADS = 6
#: Figure 5: caches in shares of the partition; there is one without a limit too.
SHARES: tuple[float, ...] = (0.25, 0.5, 0.75)
#: Figure 6: fetch sizes in quarters of 1024 samples.
FETCH_QUARTERS: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
#: Figures 7 and 8: caches in halves of 1024 samples, without a threshold and with it.
CACHE_HALVES: tuple[int, ...] = (1, 2, 4, 6)
#: Figure 8: thresholds in percent of the cache.
THRESHOLDS: tuple[int, ...] = (25, 50, 75)


@dataclass(frozen=True)
class Trial:
    """One point, which may belong to several figures."""

    #: `direct_obstore`, `disk`, `cache` (no read-ahead) or `window`.
    arm: str
    figures: tuple[int, ...]
    #: Samples that the cache holds; 0: all.
    cache: int = 0
    #: Samples announced at a time; 0: none.
    fetch: int = 0
    threshold: int = 0
    #: Whether only its misses count, which do not depend on time, so that it runs without latency and compute.
    is_untimed: bool = False

    @property
    def settings(self) -> Settings:
        """Settings of the arm."""
        if self.arm not in ("cache", "window"):
            return {}
        return {
            "threads": THREADS,
            "cache": self.cache,
            "fetch": self.fetch,
            "threshold": self.threshold,
        }


def trials(size: Size, *, quick: bool) -> list[Trial]:
    """Return the points of all figures, each once; a few of them for the quick run."""
    cache, fetch = size.cache_samples, size.cache_samples // 2
    shares, quarters, halves, thresholds = SHARES, FETCH_QUARTERS, CACHE_HALVES, THRESHOLDS
    if quick:
        shares, quarters, halves, thresholds = (0.5,), (1, 4), (2, 4), (50,)
    found = [
        Trial("direct_obstore", (3,)),
        Trial("disk", (3,)),
        Trial("cache", (3, 5)),
        *(Trial("cache", (5,), round(share * size.partition), is_untimed=True) for share in shares),
        *(Trial("window", (6,), 0, fetch * quarter // 4) for quarter in quarters),
        *(Trial("window", (7, 8), fetch * half // 2, fetch) for half in halves),
        *(
            Trial("window", (8,), fetch * half // 2, fetch, fetch * half * percent // 200)
            for half in halves
            for percent in thresholds
        ),
        # Full fetch of half of the cache and of all of it, and 50/50.
        Trial("window", (3,), fetch, fetch),
        Trial("window", (3, 9), cache, cache),
        Trial("window", (3, 9), cache, fetch, fetch),
    ]
    merged: dict[Trial, tuple[int, ...]] = {}
    for trial in found:
        same = dataclasses.replace(trial, figures=())
        merged[same] = (*merged.get(same, ()), *trial.figures)
    return [
        dataclasses.replace(
            trial, figures=tuple(sorted({*figures, *((4,) if trial.arm == "window" else ())}))
        )
        for trial, figures in merged.items()
    ]
