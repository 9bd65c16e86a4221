# SPDX-License-Identifier: Apache-2.0
"""Options of every command that simulates: the job by file or name, the reading of the model, and the thread count."""

from __future__ import annotations

import argparse
from difflib import get_close_matches
from typing import TYPE_CHECKING

from foresee.cli._commands import add_compat
from foresee.errors import ConfigError

if TYPE_CHECKING:
    from foresee.jobspec import Job


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_compat(parser, "the published formulas, in which every thread has a rank's share of the origin")
    parser.add_argument(
        "--order",
        choices=("shuffled", "distributed", "sequential"),
        default="shuffled",
        help="shuffled: as published scenarios; distributed: torch's DistributedSampler",
    )
    parser.add_argument(
        "--hand-over",
        choices=("sample", "batch"),
        default="sample",
        help="a rank computes sample by sample, as published, or on whole batches, as loaders deliver them",
    )
    parser.add_argument(
        "--node-cache",
        action="store_true",
        help="under the policy foresee, the ranks of a node (cluster.ranks_per_machine) share one cache: their tiers "
        "are one",
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="under the policy foresee, nodes read each other's caches over cluster.network; the runtime has no "
        "peers yet",
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="concurrent simulations (cores of this machine)"
    )


def faults(options: argparse.Namespace) -> list[str]:
    """Return the faults of the options."""
    if options.threads is not None and options.threads < 1:
        return [f"--threads {options.threads}: 1 or more"]
    return []


def read_job(name: str, faults: list[str]) -> Job | None:
    """Return the job in the file ``name``, or the published scenario; None after adding to ``faults``."""
    from foresee import jobspec

    try:
        return jobspec.scenario(name) if name in jobspec.scenarios() else jobspec.read(name)
    except ConfigError as error:
        faults += error.faults
    except FileNotFoundError:
        if name.endswith(".toml") or "/" in name:
            raise
        near = get_close_matches(name, jobspec.scenarios(), 1, 0.0)
        known = ", ".join(jobspec.scenarios())
        faults.append(
            f"{name}: no such file, and no published scenario; did you mean {near[0]}? Known are {known}"
        )
    return None
