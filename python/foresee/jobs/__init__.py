# SPDX-License-Identifier: Apache-2.0
"""Jobs that read the same data on one machine: measured, and started at the right moments.

``catalog`` keeps what was measured, so that nothing is measured twice; ``calibrate`` measures it, from caches that
``cold`` has emptied. ``process`` is one job that runs; ``running`` drives two of them, and ``timing`` decides when the
second starts. What follows from the figures is computed in ``foresee.models.stagger``. Needs no torch.
"""

from __future__ import annotations

from foresee.jobs.catalog import Catalog, Entry, Key

__all__ = ["Catalog", "Entry", "Key"]
