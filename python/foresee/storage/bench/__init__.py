# SPDX-License-Identifier: Apache-2.0
"""Throughput of an origin and a local tier at each cache rate: the hierarchical-storage paper's measurement.

The origin's folder has files of one size, and the cache's folder a growing share of them. Some processes read all files
in a shuffled order, each from the cache if it has the file, and time every open, read and close. Each cache rate
yields one run folder, which ``foresee.storage.analysis`` reads like that of a training run.

| file | content |
|---|---|
| `plan.py` | the checked request, and the free space |
| `measurement.py` | cases, rates and epochs: which process reads which file from where |
| `files.py` | the files: created, evicted from memory, removed |
| `ranks.py` | the processes |
| `rank.py` | one process: opens, reads and closes files, and writes its ledger |
| `throttle.py` | a model of a slower origin, for all processes together |
| `loop.py` | a slower origin on a loop device that the kernel throttles |
| `result.py` | the results as plain values |

Source: Fukai et al., "Analyzing I/O Performance of a Hierarchical HPC Storage System for Distributed Deep Learning",
sections 4.2 and 5.1.
"""

from __future__ import annotations

from foresee.storage.bench.measurement import Case, RateResult, cases, measure
from foresee.storage.bench.plan import FILES, RATES, SHUFFLES, BenchRequest, check
from foresee.storage.bench.result import facts, tables

__all__ = [
    "FILES",
    "RATES",
    "SHUFFLES",
    "BenchRequest",
    "Case",
    "RateResult",
    "cases",
    "check",
    "facts",
    "measure",
    "tables",
]
