# SPDX-License-Identifier: Apache-2.0
"""Jobs on one node that read the same data: measured, and started at the right moments.

```
job.toml ──> inputs ──> model: best starts ──> timing ──> scheduler ──actions──> runner ──> a job's process
               ^ catalog <── calibrate                       ^ spacing             └── job_monitor: steps, reports
```

=============================== ======================================================================================
``model``                       closed forms and simulation of jobs that share a cache; exported here
``inputs``, ``pooling``         the times that predictions need: of the job file, the catalog, or the storage's rate
``catalog``, ``catalog_entry``  measured times in an SQLite file, so that nothing is measured twice
``calibrate``, ``measurement``  runs jobs for some steps, alone and in pairs, from a cold and a warm page cache
``scheduler``, ``actions``      decides when each job is launched, released, held or given up
``timing``, ``spacing``         when a job starts, and which job is held
``runner``, ``managed_job``     executes the actions by a ``clock`` that is passed in
``local_job``, ``slurm``        how a job runs: as a local process, or through Slurm (``slurm_commands``)
``external_job``                a job that another program started
``job_monitor``, ``reports``    steps and reports of one job, as seen from outside
``outcome``, ``termination``    the results of a run, and the termination of all jobs on any exit
=============================== ======================================================================================

Needs no torch.
"""

from __future__ import annotations

from foresee.stagger import model
from foresee.stagger.catalog import Catalog
from foresee.stagger.catalog_entry import Entry, Key
from foresee.stagger.model import *  # noqa: F403

__all__ = ["Catalog", "Entry", "Key", *model.__all__]  # noqa: PLE0604
