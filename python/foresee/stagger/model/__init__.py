# SPDX-License-Identifier: Apache-2.0
"""Starts of jobs that read the same data.

The second job finds in the cache what the first has read, until it catches up; then both compete for the origin.
:class:`JobTimes` has the times of one job per step. ``pair`` computes makespan, GPU-seconds, catch-up time and the best
start of two jobs. ``frontier`` plans any number of jobs so that no job catches up. Both are closed forms; ``steps``
simulates step by step where those end. All times are seconds; nothing is read or written here.

Source: Assogba et al., "Optimizing the Training of Co-Located Deep Learning Models Using Cache-Aware Staggering",
HiPC 2023, section V. The cases that it omits, the second reading, the exact optimum and the frontier are additions.
"""

from __future__ import annotations

from foresee.stagger.model.frontier import Plan, led_by, plan
from foresee.stagger.model.pair import (
    CASES,
    Case,
    Compat,
    Optimum,
    Prediction,
    Waits,
    optimum,
    predict,
    sequential,
    waits,
)
from foresee.stagger.model.steps import STATES, STEPS_MAX, Played, Run, State, simulate
from foresee.stagger.model.times import FIGURES, Figure, JobTimes, wait_from_storage

__all__ = [
    "CASES",
    "FIGURES",
    "STATES",
    "STEPS_MAX",
    "Case",
    "Compat",
    "Figure",
    "JobTimes",
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
