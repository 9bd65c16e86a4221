# SPDX-License-Identifier: Apache-2.0
"""Measuring this machine: which sweeps, how long each, and what their repeats come to.

Bytes are moved and clocks are read by :class:`foresee._native.Trial`, one short repeat at a time; here repeats become
the figures of a :mod:`foresee.jobspec.profile`. Figures that could not be had are named with the reason, never guessed.

```
plan ──> memory ┐
         disk   ├─> sweep: 1, 2, 4, ... threads, repeats, median and spread ──> figures
         origin │
         decode ┘
         ranks  ──> links between ranks        fio ──> figures out of a file of its own
```

| file | owns |
|---|---|
| `plan.py` | what is asked for, its faults, and each part's share of the time |
| `sweep.py` | counts, repeats, the end of a sweep, median and spread |
| `parts.py` | memory, disk, origin: which sweeps, and under which conditions |
| `decode.py` | pictures, by the decoder that the loaders use |
| `ranks.py` | links between ranks |
| `fio.py` | results of fio |
"""

from __future__ import annotations

from foresee.calibrate.plan import (
    SECONDS,
    CalibrationRequest,
    Disk,
    Measured,
    check,
    machine_name,
    measure,
    profile,
)

__all__ = ["SECONDS", "CalibrationRequest", "Disk", "Measured", "check", "machine_name", "measure", "profile"]
