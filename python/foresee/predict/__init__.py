# SPDX-License-Identifier: Apache-2.0
"""Predictions of traced runs: from the run folder of one machine, the duration of the same run on another.

``run_trace`` reads the run folder; ``transfer`` makes a job for another machine of it and simulates that. ``live``
predicts a run while it is running: ``live_job`` makes its job, and ``prediction_file`` writes the file. ``sizes``
serves both. The package needs no torch.
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
