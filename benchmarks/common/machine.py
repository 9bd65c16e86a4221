# SPDX-License-Identifier: Apache-2.0
"""What a result depends on besides the code."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np


def describe() -> dict[str, Any]:
    """Kernel, cores, load and the like, as they stand in every raw line."""
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "congestion_control": congestion.read_text().strip() if congestion.exists() else None,
    }


def memcpy_bytes_per_s(sample_bytes: int, *, seconds: float = 0.5) -> float:
    """The rate at which one core copies samples out of memory that its caches do not hold.

    The best of ten stretches: a limit is what the machine can do, not what its neighbours let it do.
    """
    samples = max(8, (256 << 20) // sample_bytes)
    source = np.random.Generator(np.random.Philox(0)).integers(0, 256, (samples, sample_bytes), np.uint8)
    target = np.empty((64, sample_bytes), np.uint8)
    best = 0.0
    end = time.perf_counter() + seconds
    at = 0
    while time.perf_counter() < end:
        began = time.perf_counter()
        count = max(1, (32 << 20) // sample_bytes)
        for _ in range(count):
            np.copyto(target[at % 64], source[at % samples])
            at += 1
        best = max(best, count * sample_bytes / (time.perf_counter() - began))
    return best


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
