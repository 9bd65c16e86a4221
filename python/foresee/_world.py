# SPDX-License-Identifier: Apache-2.0
"""Which rank this process is, and of how many.

Apart from the loaders because both faces and every launcher meet here. Only data-parallel ranks count: ranks that
share tensors or sequences pass ``rank`` and ``world_size`` themselves. Nothing is asked over the network.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from foresee.errors import ConfigError

# Launcher, variables of rank, size and local rank. The first that is set wins.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK"),
)


@dataclass(frozen=True)
class World:
    """``rank`` of ``size``; ``local_rank`` counts within this machine."""

    rank: int
    size: int
    local_rank: int


def detect(rank: int | None = None, world_size: int | None = None, environ: Mapping[str, str] | None = None) -> World:
    """The arguments, else the launcher's variables, else 1 of 1.

    ``RANK WORLD_SIZE LOCAL_RANK``, then Slurm's, Open MPI's and PMI's; the first that is set wins, and whoever
    else is set must agree. torchrun under Slurm is the exception: there Slurm counts agents, not ranks.

    Raises:
        ConfigError: one of a pair is missing, a value is no number or out of range, or two launchers disagree.
    """
    env = os.environ if environ is None else environ
    if (rank is None) != (world_size is None):
        raise ConfigError(f"rank={rank} and world_size={world_size}: give both or neither")
    if rank is not None and world_size is not None:
        return _checked("arguments", rank, world_size, _local(env, rank))
    found = [world for launcher in _LAUNCHERS if (world := _read(env, *launcher)) is not None]
    if not found:
        return World(0, 1, 0)
    name, first = found[0]
    if "TORCHELASTIC_RUN_ID" not in env:
        for other_name, other in found[1:]:
            if (other.rank, other.size) != (first.rank, first.size):
                raise ConfigError(
                    f"{name} says rank {first.rank} of {first.size}, {other_name} says rank {other.rank} of "
                    f"{other.size}; pass rank= and world_size=, or unset the stale variables"
                )
    return first


def _read(env: Mapping[str, str], name: str, rank: str, size: str, local: str) -> tuple[str, World] | None:
    # A shell inside a Slurm allocation has SLURM_NTASKS, but only a launched task has a rank.
    if rank not in env and (size not in env or name == "Slurm"):
        return None
    missing = [variable for variable in (rank, size) if variable not in env]
    if missing:
        present = size if rank in missing else rank
        raise ConfigError(f"{present}={env[present]} is set but {missing[0]} is not; set both or neither")
    try:
        numbers = int(env[rank]), int(env[size]), int(env.get(local, env[rank]))
    except ValueError:
        raise ConfigError(f"{rank}={env[rank]!r}, {size}={env[size]!r}: whole numbers expected") from None
    return name, _checked(f"{rank}, {size}", *numbers)


def _local(env: Mapping[str, str], rank: int) -> int:
    for _, _, _, local in _LAUNCHERS:
        if (value := env.get(local, "")).isdigit():
            return int(value)
    return rank


def _checked(source: str, rank: int, size: int, local: int) -> World:
    if size < 1 or not 0 <= rank < size:
        raise ConfigError(f"rank {rank} of {size} ({source}): a rank is 0 or more and below the world size")
    return World(rank, size, local)
