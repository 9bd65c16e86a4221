# SPDX-License-Identifier: Apache-2.0
"""Options of every command that simulates: the job by file or name, the reading of the model, and the thread count.

They are defined once, so that an option means the same in each command.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from foresee.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from foresee.jobspec import Job

__all__ = ["add_to", "faults", "named_job"]


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add them."""
    parser.add_argument(
        "--compat",
        choices=("physical", "paper"),
        default="physical",
        help="paper: the published formulas, in which every thread has a rank's share of the origin",
    )
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
        "--threads", type=int, metavar="N", help="concurrent simulations (cores of this machine)"
    )


def faults(options: argparse.Namespace) -> list[str]:
    """Return the faults of the options by themselves."""
    if options.threads is not None and options.threads < 1:
        return [f"--threads {options.threads}: 1 or more"]
    return []


def named_job(named: str, wrong: list[str]) -> Job | None:
    """The job from that file, or the published scenario of that name; None, and what is wrong is in ``wrong``."""
    from foresee import jobspec

    try:
        return jobspec.scenario(named) if named in jobspec.scenarios() else jobspec.read(named)
    except ConfigError as error:
        wrong += error.faults
    except FileNotFoundError:
        if named.endswith(".toml") or "/" in named:
            raise
        near = get_close_matches(named, jobspec.scenarios(), 1, 0.0)
        known = ", ".join(jobspec.scenarios())
        wrong.append(
            f"{named}: no such file, and no published scenario; did you mean {near[0]}? Known are {known}"
        )
    return None
