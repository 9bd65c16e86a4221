# SPDX-License-Identifier: Apache-2.0
"""Calibration of this machine: sweeps, their share of the time, and the figures of a profile.

:class:`foresee._native.Trial` moves the bytes, one short repeat at a time; this package turns the repeats into figures
of a :mod:`foresee.jobspec.profile`. Figures that could not be measured are listed with the reason.

```
plan ──> memory ┐
         disk   ├─> sweep: 1, 2, 4, ... threads, repeats, median and spread ──> figures
         origin │
         decode ┘
         ranks  ──> links between ranks        fio ──> figures from its results
```

| file | owns |
|---|---|
| `plan.py` | the options, their faults, and each part's share of the time |
| `sweep.py` | counts, repeats, the end of a sweep, median and spread |
| `parts.py` | memory, disk, origin: their sweeps and conditions |
| `decode.py` | images, by the loaders' decoder |
| `ranks.py` | links between ranks |
| `fio.py` | results of fio |
"""

from __future__ import annotations

from foresee.calibrate.plan import (
    SECONDS,
    CalibrationRequest,
    CalibrationResult,
    Disk,
    check,
    machine_name,
    measure,
    profile,
)

__all__ = [
    "SECONDS",
    "CalibrationRequest",
    "CalibrationResult",
    "Disk",
    "check",
    "machine_name",
    "measure",
    "profile",
]
