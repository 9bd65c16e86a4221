# SPDX-License-Identifier: Apache-2.0
"""Time of a training step whose gradients cross a network.

``model`` has the closed forms and the timeline of one step; its names are exported here. ``trace`` reads and writes
``model.json``, the sizes and times of one model's gradients. ``foresee network`` prints both.
"""

from __future__ import annotations

from foresee.network.model import (
    POLICIES,
    Compat,
    Infeasible,
    Policy,
    Shares,
    Step,
    Sweep,
    Timeline,
    Transfers,
    barrier_cost,
    effective_bandwidth,
    goodput,
    linear_scaling,
    minimum_bandwidth,
    packet_delay,
    shares,
    speed,
    sweep,
    t_iter,
    timeline,
)

__all__ = [
    "POLICIES",
    "Compat",
    "Infeasible",
    "Policy",
    "Shares",
    "Step",
    "Sweep",
    "Timeline",
    "Transfers",
    "barrier_cost",
    "effective_bandwidth",
    "goodput",
    "linear_scaling",
    "minimum_bandwidth",
    "packet_delay",
    "shares",
    "speed",
    "sweep",
    "t_iter",
    "timeline",
]
