# SPDX-License-Identifier: Apache-2.0
"""Misses of a cache in front of a bucket that retains its latest reads.

Each epoch shuffles a data set and shards it among the ranks, as torch's ``DistributedSampler`` does. A rank's cache
adds every sample that it missed and evicts the oldest one (FIFO). :func:`miss_rate` is the limit of many samples,
:func:`misses` counts a known order.

Source: the setting is that of Krichevsky et al., IC2E 2021, section V; the closed form is ours.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from foresee.errors import ConfigError

__all__ = ["miss_rate", "misses"]


def miss_rate(ranks: int, share: float) -> float:
    """Return the share of an epoch's reads that the cache misses, for each epoch after the first.

    After a share ``h`` of the epoch, ``u`` (in shares of it) were missed and inserted, and as many of the oldest
    evicted: ``u' = 1 - (c - u) / n``, from ``u(0) = 0``, until all samples of the last epoch are evicted, ``u = c``. A
    cache of more than an epoch's share evicts nothing until it is full.

    Args:
        ranks: n, 1 or more.
        share: c, the capacity in shares of a rank's samples per epoch, 0 or more; infinite: everything.

    Raises:
        ConfigError: an argument outside its range.

    >>> [round(miss_rate(3, share), 4) for share in (math.inf, 0.75, 0.5, 0.25, 0.0)]
    [0.6667, 0.887, 0.953, 0.989, 1.0]
    """
    faults = []
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        faults.append(f"ranks = {ranks!r}; a whole number of 1 or more expected")
    if math.isnan(share) or share < 0:
        faults.append(f"share = {share!r}; 0 or more expected")
    if faults:
        raise ConfigError(faults)
    if share <= 1:
        return _misses_of_full_cache(ranks, share, 1.0)
    if share >= 2 or ranks == 1:
        return 1.0 - 1.0 / ranks
    full = (share - 1) * ranks / (ranks - 1)
    return 1.0 - 1.0 / ranks if full >= 1 else (share - 1) + _misses_of_full_cache(ranks, 1.0, 1.0 - full)


def misses(epochs: Iterable[ArrayLike], capacity: int | None) -> list[int]:
    """Count the misses of the cache in each epoch, in a known order.

    Args:
        epochs: ids of the samples that one rank reads, in order, epoch by epoch.
        capacity: samples, 0 or more; None: unlimited.

    Raises:
        ConfigError: ``capacity`` is negative.

    >>> misses([[0, 1, 2, 3], [3, 0, 2, 1]], 2)
    [4, 3]
    """
    if capacity is not None and capacity < 0:
        raise ConfigError(f"capacity = {capacity}; a whole number of 0 or more expected")
    held: OrderedDict[int, None] = OrderedDict()
    counts = []
    for ids in epochs:
        missed = 0
        for sample in np.asarray(ids).tolist():
            if sample in held:
                continue
            missed += 1
            held[sample] = None
            if capacity is not None and len(held) > capacity:
                held.popitem(last=False)
        counts.append(missed)
    return counts


def _misses_of_full_cache(ranks: int, share: float, passed: float) -> float:
    """Return the misses in the part ``passed`` of an epoch, of a cache of ``share`` that was full of the last epoch."""
    if share >= ranks:
        return 0.0
    gone = ranks * math.log(ranks / (ranks - share))
    if passed <= gone:
        return (ranks - share) * math.expm1(passed / ranks)
    return share + passed - gone
