# SPDX-License-Identifier: Apache-2.0
"""Predictions of runs that were traced: from the run folder of one machine, how long the same takes on another.

``trace`` reads what a run folder tells, ``elsewhere`` makes a job of it for another machine and asks the simulator.
``beside`` predicts a run while it goes on: ``here`` makes its job, ``foretold`` is the file. ``sizes`` serves both.
Apart from ``models``, which knows no file, and from ``analysis``, which asks only where the time went. Needs no torch.
"""

from __future__ import annotations

from foresee.predict.run_trace import Trace, read
from foresee.predict.transfer import (
    Forecast,
    Range,
    Task,
    interval,
    policies,
    predict,
    ram_room,
    staging_bytes,
    task,
)

__all__ = [
    "Forecast",
    "Range",
    "Task",
    "Trace",
    "interval",
    "policies",
    "predict",
    "ram_room",
    "read",
    "staging_bytes",
    "task",
]
