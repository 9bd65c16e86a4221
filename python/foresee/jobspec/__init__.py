# SPDX-License-Identifier: Apache-2.0
"""The job file, ``job.toml``, and the machine profile, ``profile.toml``: the input of every planning command.

``sections`` has the tables as dataclasses, ``file`` reads them, ``profile`` reads and writes measured values.
``scenarios/`` are the job files of published simulations. The package needs neither torch nor the native core.
"""

from __future__ import annotations

from foresee.jobspec.epoch import RankShare, rank_share
from foresee.jobspec.file import complete, facts, loads, read, read_all, scenario, scenarios
from foresee.jobspec.profile import Figure, Profile
from foresee.jobspec.sections import (
    CACHE_POLICIES,
    GRADIENT_POLICIES,
    POLICIES,
    WINDOW_POLICIES,
    Cache,
    Cluster,
    Cost,
    Data,
    Gradients,
    Job,
    Network,
    Origin,
    Run,
    Stagger,
    Staging,
    Tier,
    Train,
    Window,
)

__all__ = [
    "CACHE_POLICIES",
    "GRADIENT_POLICIES",
    "POLICIES",
    "WINDOW_POLICIES",
    "Cache",
    "Cluster",
    "Cost",
    "Data",
    "Figure",
    "Gradients",
    "Job",
    "Network",
    "Origin",
    "Profile",
    "RankShare",
    "Run",
    "Stagger",
    "Staging",
    "Tier",
    "Train",
    "Window",
    "complete",
    "facts",
    "loads",
    "rank_share",
    "read",
    "read_all",
    "scenario",
    "scenarios",
]
