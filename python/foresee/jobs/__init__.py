# SPDX-License-Identifier: Apache-2.0
"""Jobs that read the same data on one machine: measured, and started at the right moments.

``catalog`` keeps what was measured, each figure an ``entry``, so that nothing is measured twice; ``calibrate`` measures
it, from caches that ``cold`` has emptied. ``watched`` is one job as seen from outside; ``process``, ``slurm`` and
``already`` are the three ways that it comes to run: we start it, Slurm does, somebody else has. ``running`` drives
several of them by a ``clock`` that is passed in. It decides nothing: ``supervise`` does, with ``timing`` for when each
starts and ``pace`` for who is held, and returns ``actions``. What follows from the figures is computed in
``foresee.models.stagger``. Needs no torch.
"""

from __future__ import annotations

from foresee.jobs.catalog import Catalog
from foresee.jobs.entry import Entry, Key

__all__ = ["Catalog", "Entry", "Key"]
