# SPDX-License-Identifier: Apache-2.0
"""Storage of a training job: its I/O time by class, and the storage that meets a goal.

``model`` and ``purchases``, whose names are exported here, ``goal`` and ``smallest_sets`` compute on plain tables.
``analysis`` reads tables from run folders and Darshan logs. ``bench`` measures an origin and a local tier under the
load of a training job, and ``page_cache`` evicts files from memory before a measurement.
"""

from __future__ import annotations

from foresee.storage.model import (
    CLASSES,
    Front,
    Infeasible,
    Slowest,
    at_rate,
    best_rate,
    front,
    latest,
    minimum_rate,
    prune,
    slowest,
    sufficient,
    totals,
)
from foresee.storage.purchases import Choice, Choices, Offer, choose

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
