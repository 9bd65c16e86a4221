# SPDX-License-Identifier: Apache-2.0
"""Description of the host and the software that a result depends on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

from common.report import show
from foresee import _native


def describe() -> dict[str, Any]:
    """Return kernel, cores, load and settings for the raw lines; warn if Foresee is a development build."""
    if _native.IS_CHECKED:
        show("foresee is a development build, which is slower: run `make bench-setup` before you measure")
    return {
        "build": "development" if _native.IS_CHECKED else "release",
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "torch": _version_of("torch"),
        "congestion_control": _tcp("tcp_congestion_control"),
        **{name: _tcp(name) for name in ("tcp_wmem", "tcp_rmem", "tcp_limit_output_bytes")},
    }


def memcpy_bytes_per_s(sample_bytes: int, *, seconds: float = 0.5) -> float:
    """Return the rate at which one core copies samples that its caches do not hold.

    The best of several intervals counts, so that other load on the host does not lower the limit.
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


def _tcp(name: str) -> str | None:
    setting = Path("/proc/sys/net/ipv4") / name
    return " ".join(setting.read_text().split()) if setting.exists() else None


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
