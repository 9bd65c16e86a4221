# SPDX-License-Identifier: Apache-2.0
"""Rank and world size of this process.

Both loaders and the gradients take them from here, so that no two parts of a run disagree. Only data-parallel ranks
count: ranks that share tensors or sequences pass ``rank`` and ``world_size`` themselves.
"""

from __future__ import annotations

import operator
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex

from foresee.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Launcher(NamedTuple):
    """A launcher, and its variables of rank and size, over all nodes and within this node."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str


_UNDER_TORCHRUN = "TORCHELASTIC_RUN_ID"
# The first that is set wins.
_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    _Launcher("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    _Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Launcher("PMI", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
)


@dataclass(frozen=True)
class World:
    """``rank`` of ``size``, and ``local_rank`` of ``local_size`` within this node."""

    rank: int
    size: int
    local_rank: int = 0
    local_size: int = 1
    local_size_known: bool = False
    """Whether the launcher sets ``local_size``; else it is the least that ``local_rank`` allows."""


def detect(
    rank: int | None = None,
    world_size: int | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    provisional: bool = False,
) -> World:
    """Return the rank of this process, from the first of these sources that exists:

    1. ``rank`` and ``world_size``. They may differ from everything below, as data-parallel ranks do under tensor
       parallelism.
    2. The initialized process group of ``torch.distributed``. torch is not imported for that.
    3. ``jax.process_index()`` and ``jax.process_count()``, after ``jax.distributed.initialize()``. JAX is not imported
       for that.
    4. ``RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE``, then the variables of Slurm, Open MPI and PMI.
    5. Rank 0 of 1.

    A process group, JAX and the variables that are set must agree. Under torchrun only its own variables count.

    Args:
        rank: of this process among those that share the data.
        world_size: how many there are.
        environ: variables; default: those of this process.
        provisional: return rank 0 of 1 where the variables of a launcher are incomplete. Lightning sets no ``RANK``
            before it initializes the process group.

    Raises:
        ConfigError: one of a pair is missing, a value is no number or out of range, or two sources disagree.
    """
    env = os.environ if environ is None else environ
    if (rank is None) != (world_size is None):
        raise ConfigError(f"rank={rank} and world_size={world_size}: give both or neither")
    if rank is not None and world_size is not None:
        return _checked(
            "arguments", _whole(rank, "rank"), _whole(world_size, "world_size"), *_local_of_first(env)
        )
    runtimes = {"the process group": _process_group(), "JAX": _jax()}
    initialized = [(name, pair) for name, pair in runtimes.items() if pair is not None]
    if initialized:
        name, group = initialized[0]
        for second, pair in initialized[1:]:
            if pair != group:
                raise ConfigError(
                    f"{name} says rank {group[0]} of {group[1]}, {second} says rank {pair[0]} of {pair[1]}; pass rank= "
                    "and world_size="
                )
        _check_against(name, group, env)
        return _checked(name, group[0], group[1], *_local_of_first(env))
    torchrun = _LAUNCHERS[0]
    if provisional and torchrun.size in env and torchrun.rank not in env:
        return World(0, 1)
    found = [(launcher, world) for launcher in _LAUNCHERS if (world := _read(env, launcher)) is not None]
    if not found:
        return World(0, 1)
    winner, first = found[0]
    # torchrun under Slurm: there Slurm counts agents, one per node, not ranks.
    for launcher, other in [] if _UNDER_TORCHRUN in env else found[1:]:
        if (other.rank, other.size) != (first.rank, first.size):
            raise ConfigError(
                f"{winner.name} says rank {first.rank} of {first.size}, {launcher.name} says rank {other.rank} of "
                f"{other.size}; pass rank= and world_size=, or unset the stale variables"
            )
    return first


def has_local_peers(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the launcher has started several ranks on this node; False if its variables are wrong."""
    try:
        return _local_of_first(os.environ if environ is None else environ)[1] > 1
    except ConfigError:
        return False


def _process_group() -> tuple[int, int] | None:
    """Return rank and size of the process group, None if there is none."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def _jax() -> tuple[int, int] | None:
    """Return index and number of JAX's processes, None unless its distributed runtime is initialized."""
    jax = sys.modules.get("jax")
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if jax is None or is_initialized is None or not is_initialized():
        return None
    return jax.process_index(), jax.process_count()


def _check_against(name: str, group: tuple[int, int], env: Mapping[str, str]) -> None:
    """Refuse variables of a launcher that contradict ``group``; one of a pair may be missing."""
    for launcher in _LAUNCHERS:
        if launcher.name != "torchrun" and (_UNDER_TORCHRUN in env or env.get(launcher.size, "1") == "1"):
            continue  # One task of Slurm or MPI may start all ranks of its node by itself.
        if not _is_set(env, launcher):
            continue
        for variable, value in zip((launcher.rank, launcher.size), group, strict=True):
            if variable in env and _number(env, variable) != value:
                raise ConfigError(
                    f"{name} says rank {group[0]} of {group[1]}, but {variable}={env[variable]}; unset the stale "
                    "variable, or pass rank= and world_size= if other ranks share the data"
                )


def _local_of_first(env: Mapping[str, str]) -> tuple[int, int, bool]:
    """Local rank and size, as the first launcher with a local rank has them."""
    present = (one for one in _LAUNCHERS if one.local_rank in env and not _is_script(env, one))
    return _local(env, next(present, _LAUNCHERS[0]))


def _read(env: Mapping[str, str], launcher: _Launcher) -> World | None:
    if not _is_set(env, launcher):
        return None
    missing = [variable for variable in (launcher.rank, launcher.size) if variable not in env]
    if missing:
        present = launcher.size if launcher.rank in missing else launcher.rank
        raise ConfigError(
            f"{present}={env[present]} is set but {missing[0]} is not; set both or neither, or initialize the process "
            "group of torch.distributed first"
        )
    return _checked(
        f"{launcher.rank}, {launcher.size}",
        _number(env, launcher.rank),
        _number(env, launcher.size),
        *_local(env, launcher),
    )


def _is_set(env: Mapping[str, str], launcher: _Launcher) -> bool:
    """Whether the launcher's variables describe this process."""
    # A shell inside a Slurm allocation has SLURM_NTASKS, but only a launched task has a rank.
    if launcher.rank not in env and (launcher.size not in env or launcher.name == "Slurm"):
        return False
    return not _is_script(env, launcher)


def _is_script(env: Mapping[str, str], launcher: _Launcher) -> bool:
    """Whether Slurm's variables describe a batch script, not one of the tasks that srun starts: those have a step."""
    return launcher.name == "Slurm" and "SLURM_JOB_ID" in env and "SLURM_STEP_ID" not in env


def _local(env: Mapping[str, str], launcher: _Launcher) -> tuple[int, int, bool]:
    """Return rank and size within this node, and whether the size is known; else it is the least possible one."""
    rank = _number(env, launcher.local_rank) if launcher.local_rank in env else 0
    known = launcher.local_rank in env and launcher.local_size in env
    return rank, _number(env, launcher.local_size) if launcher.local_size in env else rank + 1, known


def _number(env: Mapping[str, str], variable: str) -> int:
    try:
        return int(env[variable])
    except ValueError:
        raise ConfigError(f"{variable}={env[variable]!r}; a whole number expected") from None


def _whole(value: object, name: str) -> int:
    """Convert ``value``, also an integer of NumPy, to an int."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise ConfigError(f"{name}={value!r}; a whole number expected")
    return operator.index(value)


def _checked(source: str, rank: int, size: int, local_rank: int, local_size: int, known: bool) -> World:
    if size < 1 or not 0 <= rank < size:
        raise ConfigError(f"rank {rank} of {size} ({source}): a rank is 0 or more and below the world size")
    if not 0 <= local_rank < local_size:
        raise ConfigError(
            f"local rank {local_rank} of {local_size}: 0 or more and below the local world size"
        )
    return World(rank, size, local_rank, local_size, known)
