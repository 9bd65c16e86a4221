# SPDX-License-Identifier: Apache-2.0
"""Requirements of a training goal for a storage: the origin's rate without a cache, the cached share with one.

The closed forms need only a step's compute time and bytes; ``storage.model`` starts from a measured job. Goals are a
share of the time spent computing (MLPerf Storage's accelerator utilization), steps per second, or hours. Loading
overlaps with computing, so a step takes the longer of the two. Latency, metadata, bursts and order are left to the
simulator. A rate is that of one rank; ranks that share a storage need the sum.

Source: MLPerf Storage's emulation (utilization = compute time / run time; mlcommons/storage#692 does it by hand), and
SiloD's throughput of a partly cached job, ``f = min(f*, b / (1 - c / d))``, inverted.
"""

from __future__ import annotations

import math

from foresee.errors import ConfigError
from foresee.storage.model import Infeasible

__all__ = ["cached_share", "rate_for_hours", "rate_for_steps", "rate_for_utilization"]

_HOUR_S = 3600.0


def rate_for_utilization(batch_bytes: float, compute_time: float, utilization: float = 1.0) -> float:
    """Bytes per second that keep a rank computing for a share of its time: ``utilization * bytes / compute``.

    Args:
        batch_bytes: bytes that a rank reads for a step, > 0.
        compute_time: seconds that a step computes, > 0.
        utilization: compute time over run time, above 0, at most 1.

    Raises:
        ConfigError: arguments outside their range.

    MLPerf's unet3d on an H100 reads 7 samples of 146.6 MB for a step of 0.323 s:

    >>> round(rate_for_utilization(7 * 146.6e6, 0.323) / 1e9, 2)
    3.18
    """
    faults = _faults(batch_bytes=batch_bytes, compute_time=compute_time)
    if not 0 < utilization <= 1:
        faults.append(f"utilization = {utilization!r}; above 0, at most 1, expected")
    if faults:
        raise ConfigError(faults)
    return utilization * batch_bytes / compute_time


def rate_for_steps(batch_bytes: float, compute_time: float, steps_per_s: float) -> float | Infeasible:
    """Bytes per second for some steps per second: their product; infeasible if computing alone takes longer.

    Args:
        batch_bytes: as in :func:`rate_for_utilization`.
        compute_time: as there.
        steps_per_s: > 0.

    Returns:
        The rate, or :class:`foresee.storage.model.Infeasible` with the seconds of a step: the goal, and computing.

    Raises:
        ConfigError: arguments outside their range.

    >>> rate_for_steps(100e6, 0.25, 2)
    200000000.0
    >>> rate_for_steps(100e6, 0.25, 5)
    Infeasible(goal=0.2, best=0.25)
    """
    if faults := _faults(batch_bytes=batch_bytes, compute_time=compute_time, steps_per_s=steps_per_s):
        raise ConfigError(faults)
    if steps_per_s * compute_time > 1:
        return Infeasible(1 / steps_per_s, compute_time)
    return batch_bytes * steps_per_s


def rate_for_hours(batch_bytes: float, compute_time: float, steps: int, hours: float) -> float | Infeasible:
    """Bytes per second for all steps within some hours: ``steps * bytes / hours``.

    Args:
        batch_bytes: as in :func:`rate_for_utilization`.
        compute_time: as there.
        steps: of a rank in the whole run, 1 or more.
        hours: limit of the run, > 0.

    Returns:
        The rate, or :class:`foresee.storage.model.Infeasible` with the seconds of the run: the goal, and computing.

    Raises:
        ConfigError: arguments outside their range.

    >>> rate_for_hours(36e6, 0.25, 10_000, 1)
    100000000.0
    >>> rate_for_hours(36e6, 0.5, 10_000, 1)
    Infeasible(goal=3600.0, best=5000.0)
    """
    if faults := _faults(batch_bytes=batch_bytes, compute_time=compute_time, steps=steps, hours=hours):
        raise ConfigError(faults)
    seconds = hours * _HOUR_S
    if steps * compute_time > seconds:
        return Infeasible(seconds, steps * compute_time)
    return steps * batch_bytes / seconds


def cached_share(needed: float, origin_rate: float) -> float:
    """Return the least cached share of the data with which the origin suffices for the rest: ``1 - origin / needed``.

    The cache is assumed to be fast enough, and its share of the data to be its share of the reads, as with one read of
    every sample per epoch and no eviction.

    Args:
        needed: bytes per second that the job reads, > 0, as the functions above return it.
        origin_rate: bytes per second of the origin for the job, 0 or more.

    Returns:
        0 to 1; 0 if the origin is fast enough.

    Raises:
        ConfigError: arguments outside their range.

    >>> round(cached_share(3.18e9, 1e9), 4)
    0.6855
    """
    faults = _faults(needed=needed)
    if not 0 <= origin_rate < math.inf:
        faults.append(f"origin_rate = {origin_rate!r}; a finite number expected, 0 or more")
    if faults:
        raise ConfigError(faults)
    rest = origin_rate / needed
    cached = max(0.0, 1 - rest)
    # Near 1 a share is rounded by more than a small rest. It is rounded up, else the origin would not suffice.
    return math.nextafter(cached, 1.0) if 1 - cached > rest else cached


def _faults(**values: float) -> list[str]:
    return [
        f"{name} = {value!r}; a finite number expected, above 0"
        for name, value in values.items()
        if not 0 < value < math.inf
    ]
