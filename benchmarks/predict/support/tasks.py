# SPDX-License-Identifier: Apache-2.0
"""Tasks of the ranks of a set-up: the fields of ``loaders.Task`` that all ranks share, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from .origins import Place
from .predictions import buffer_bytes
from .setups import OURS, PINNED, SetUp

#: Function that runs a task on all ranks of a set-up, and returns the results of each rank.
RunTask: TypeAlias = Callable[[Mapping[str, Any]], list[dict[str, Any]]]


def task_of(setup: SetUp, policy: str, place: Place, index: str, seed: int, scratch: Path) -> dict[str, Any]:
    """Return the task of one policy of a set-up, with its samples at ``place`` and their index at ``index``."""
    return {
        "policy": policy,
        "uri": place.uri,
        "plain": place.plain,
        "options": place.options,
        "index": index,
        "batch": setup.batch,
        "epochs": setup.epochs,
        "seed": seed,
        "sizes": list(place.truth.sizes),
        "compute_rate": setup.compute_rate,
        "ram": setup.capacity_for(setup.ram) if policy in (OURS, PINNED) else 0,
        "disk": setup.capacity_for(setup.disk) if policy == OURS else 0,
        "scratch": str(scratch),
        "buffer": buffer_bytes(setup),
    }
