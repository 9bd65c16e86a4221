# SPDX-License-Identifier: Apache-2.0
"""Jobs on one node that read the same data: measured, and started at the right moments.

```
job.toml ──> inputs ──> model: best starts ──> timing ──> scheduler ──actions──> runner ──> a job's process
               ^ catalog <── calibrate                       ^ spacing             └── job_monitor: steps, reports
```

=============================== ======================================================================================
``model``                       closed forms and step-by-step play of jobs that share a cache; exported here
``inputs``, ``pooling``         the numbers that predictions need: of the job file, the catalog, or the storage's rate
``catalog``, ``catalog_entry``  measured numbers in an SQLite file, so that nothing is measured twice
``calibrate``                   runs jobs for some steps, alone and in pairs, from a cold and a warm page cache
``scheduler``, ``actions``      decides when each job is launched, released, held or given up
``timing``, ``spacing``         of these decisions: when a job starts, and which one is held
``runner``, ``managed_job``     carries out the actions by a ``clock`` that is passed in
``local_job``, ``slurm``        how a job runs: as a local process, or through Slurm (``slurm_commands``)
``external_job``                a job that another program started
``job_monitor``, ``reports``    steps and reports of one job, as seen from outside
``outcome``, ``termination``    the results of a run, and the end of all jobs on any exit
=============================== ======================================================================================

Needs no torch.
"""

from __future__ import annotations

from foresee.stagger.catalog import Catalog
from foresee.stagger.catalog_entry import Entry, Key
from foresee.stagger.model import (
    CASES,
    FIGURES,
    STATES,
    STEPS_MAX,
    Case,
    Compat,
    Figure,
    JobTimes,
    Optimum,
    Plan,
    Played,
    Prediction,
    Run,
    State,
    Waits,
    led_by,
    optimum,
    plan,
    predict,
    sequential,
    simulate,
    wait_from_storage,
    waits,
)

__all__ = [
    "CASES",
    "FIGURES",
    "STATES",
    "STEPS_MAX",
    "Case",
    "Catalog",
    "Compat",
    "Entry",
    "Figure",
    "JobTimes",
    "Key",
    "Optimum",
    "Plan",
    "Played",
    "Prediction",
    "Run",
    "State",
    "Waits",
    "led_by",
    "optimum",
    "plan",
    "predict",
    "sequential",
    "simulate",
    "wait_from_storage",
    "waits",
]
