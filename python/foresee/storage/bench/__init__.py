# SPDX-License-Identifier: Apache-2.0
"""Throughput of an origin and a local tier at each cache rate: the hierarchical-storage paper's measurement.

Our own reader takes it. Files of one size lie in the origin's folder, and a growing share of them in the cache's too.
Some processes read all of them in a shuffled order, each from the cache if it is there, and write down every open, read
and close. Each cache rate yields one run folder, which ``foresee.storage.analysis`` reads like that of a training run.

```
plan ──> storage: case by case, rate by rate, epoch by epoch ──> run folders ──> result: tables, answers
            │ files     made, made cold, removed
            └ ranks ──> rank (a process each): open, read, close ──> ledger
                          └ throttle: an origin slower than the folder is; or loop: one that the kernel slows
```

| file | owns |
|---|---|
| `plan.py` | what is asked for, its faults, whether there is room |
| `storage.py` | the measurement: what is read by whom, in which order, in which run folder |
| `files.py` | the files: made, driven out of memory, removed |
| `ranks.py` | the processes: started, given an epoch at a time, ended |
| `rank.py` | one process: times what it does to files |
| `throttle.py` | a slower origin, modelled for all processes together |
| `loop.py` | a slower origin, for real: a loop device that the kernel throttles |
| `result.py` | what was measured as plain values; everything that is printed |

Source: Fukai et al., "Analyzing I/O Performance of a Hierarchical HPC Storage System for Distributed Deep Learning",
sections 4.2 and 5.1.
"""

from __future__ import annotations

from foresee.storage.bench.measurement import Case, Measured, cases, measure
from foresee.storage.bench.plan import FILES, RATES, SHUFFLES, BenchRequest, check
from foresee.storage.bench.result import facts, tables

__all__ = [
    "FILES",
    "RATES",
    "SHUFFLES",
    "BenchRequest",
    "Case",
    "Measured",
    "cases",
    "check",
    "facts",
    "measure",
    "tables",
]
