# SPDX-License-Identifier: Apache-2.0
"""Measure how long a rank waits for a batch that is ready, with the ranks of the set-up.

Samples like those of the set-up are in a local folder, and in memory after the first epoch. A rank computes as long as in
the set-up. Its wait in ``next()`` is then the time in which the loader hands over a batch. No run of the set-up is used.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

from foresee import _native

from .origins import Place
from .predictions import HandOver
from .setups import ALL, OURS, PINNED, SetUp, fingerprint, make
from .tasks import RunTask, task_of

#: Steps of an epoch, and epochs; the first epoch fills memory and is not measured.
STEPS, EPOCHS = 10, 5


def measured(setup: SetUp, home: Path, seed: int, run_task: RunTask) -> HandOver:
    """Measure the hand-over of the loader and of a pool; samples in the folder ``home`` are reused by later calls.

    Raises:
        RuntimeError: a run failed.
    """
    small = replace(setup, samples=STEPS * setup.ranks * setup.batch, ram=ALL, disk=0, epochs=EPOCHS)
    folder = home / "predict-ready" / fingerprint(small, seed)
    place = Place(str(folder), str(folder), make(folder, small, seed))
    index = str(folder.with_suffix(".fidx"))
    _native.Index.build(place.uri, layout="flat").save(index)

    def wait(policy: str) -> float:
        results = run_task(task_of(small, policy, place, index, seed, folder))
        if errors := [one["error"] for one in results if "error" in one]:
            raise RuntimeError(f"{setup.name}: {policy} with all samples in memory: {errors[0]}")
        waits: list[float] = [epoch["waited"] / STEPS for one in results for epoch in one["epochs"][1:]]
        return statistics.median(waits)

    return HandOver(loader=wait(OURS), pool=wait(PINNED))
