# SPDX-License-Identifier: Apache-2.0
"""Predictions of traced runs: the duration of the same run on another host.

``run_trace`` reads the run folder; ``transfer`` makes a job for the other host and simulates it. ``live`` predicts a
run while it is running: ``live_job`` makes its job, and ``prediction_file`` writes the file. Both use ``sizes``. The
package does not need torch.
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
    ram_capacity,
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
    "ram_capacity",
    "read",
    "staging_bytes",
    "task",
]
