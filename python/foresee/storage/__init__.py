# SPDX-License-Identifier: Apache-2.0
"""Storage of a training job: where its I/O time goes, and what storage meets a goal.

``model``, ``goal`` and ``smallest_sets`` compute on plain tables; the names of ``model`` are exported here.
``analysis`` reads those tables from run folders and Darshan logs. ``bench`` measures an origin and a local tier under
the load of a training job, and ``page_cache`` removes files from memory before a measurement.
"""

from __future__ import annotations

from foresee.storage.model import (
    CLASSES,
    Choice,
    Choices,
    Front,
    Infeasible,
    Offer,
    Slowest,
    at_rate,
    best_rate,
    choose,
    front,
    latest,
    minimum_rate,
    prune,
    slowest,
    sufficient,
    totals,
)

__all__ = [
    "CLASSES",
    "Choice",
    "Choices",
    "Front",
    "Infeasible",
    "Offer",
    "Slowest",
    "at_rate",
    "best_rate",
    "choose",
    "front",
    "latest",
    "minimum_rate",
    "prune",
    "slowest",
    "sufficient",
    "totals",
]
