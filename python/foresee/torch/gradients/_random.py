# SPDX-License-Identifier: Apache-2.0
"""Random generators of the process that an optimizer draws from in its step, and their states.

Such an optimizer updates all ranks alike only if these generators are in the same state on all ranks at every step.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

__all__ = ["SEEDS", "preserved", "state", "states"]

#: What seeds each generator.
SEEDS = {"torch": "torch.manual_seed()", "random": "random.seed()", "numpy.random": "numpy.random.seed()"}


def states() -> dict[str, object]:
    """The state of each generator; NumPy's where it is imported."""
    found: dict[str, object] = {"torch": torch.get_rng_state().tolist(), "random": random.getstate()}
    if (drawn := _numpy_random()) is not None:
        kind, keys, *rest = drawn.get_state()
        found["numpy.random"] = kind, keys.tolist(), *rest
    return found


def state(generator: str, devices: Sequence[torch.device]) -> str:
    """A digest of the state of one of them; of torch's also on CUDA devices."""
    found: list[object] = [states().get(generator)]
    if generator == "torch":
        found += [torch.cuda.get_rng_state(device).tolist() for device in devices if device.type == "cuda"]
    return hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest()


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Draws inside change no state outside."""
    numbers, drawn = random.getstate(), _numpy_random()
    of_numpy = None if drawn is None else drawn.get_state()
    with torch.random.fork_rng(devices=()):
        try:
            yield
        finally:
            random.setstate(numbers)
            if drawn is not None:
                drawn.set_state(of_numpy)


def _numpy_random() -> Any:
    return getattr(sys.modules.get("numpy"), "random", None)
