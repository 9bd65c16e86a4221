# SPDX-License-Identifier: Apache-2.0
"""What a rank waits for a batch that is ready: measured on the spot, by the ranks of the set-up themselves.

Samples like the set-up's lie in a folder of this machine, all of them in memory after the first epoch; a rank computes for as
long as in the set-up. What it then waits in ``next()`` is what its loader needs to hand a batch over, on these cores, after
such a pause. Nothing of the set-up's own runs is in it.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

from foresee import _native

from .forecasts import HandOver
from .origins import Place
from .setups import ALL, OURS, PINNED, SetUp, fingerprint, make
from .tasks import Ask, task_of

#: Of an epoch, and epochs: one that fills memory, and those that count.
STEPS, EPOCHS = 10, 5


def measured(setup: SetUp, home: Path, seed: int, ask: Ask) -> HandOver:
    """Of the loader and of a pool; a folder ``home`` keeps the samples from call to call.

    Raises:
        RuntimeError: a run failed.
    """
    small = replace(setup, samples=STEPS * setup.ranks * setup.batch, ram=ALL, disk=0, epochs=EPOCHS)
    folder = home / "predict-ready" / fingerprint(small, seed)
    place = Place(str(folder), str(folder), make(folder, small, seed))
    index = str(folder.with_suffix(".fidx"))
    _native.Index.build(place.uri, layout="flat").save(index)

    def wait(policy: str) -> float:
        told = ask(task_of(small, policy, place, index, seed, folder))
        if errors := [one["error"] for one in told if "error" in one]:
            raise RuntimeError(f"{setup.name}: {policy} with everything in memory: {errors[0]}")
        waits: list[float] = [epoch["waited"] / STEPS for one in told for epoch in one["epochs"][1:]]
        return statistics.median(waits)

    return HandOver(loader=wait(OURS), pool=wait(PINNED))
