# SPDX-License-Identifier: Apache-2.0
"""The process's random generators and their states.

An optimizer that draws from them in its step updates all ranks equally only if their states are equal on all ranks.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

__all__ = ["SEEDS", "digest_state", "preserve_generators", "read_states"]

#: The function that seeds each generator.
SEEDS = {"torch": "torch.manual_seed()", "random": "random.seed()", "numpy.random": "numpy.random.seed()"}


def read_states() -> dict[str, object]:
    """Return the state of each generator; NumPy's if it is imported."""
    found: dict[str, object] = {"torch": torch.get_rng_state().tolist(), "random": random.getstate()}
    if (numpy_random := _numpy_random()) is not None:
        kind, keys, *rest = numpy_random.get_state()
        found["numpy.random"] = kind, keys.tolist(), *rest
    return found


def digest_state(generator: str, devices: Sequence[torch.device]) -> str:
    """Return a digest of one generator's state; of torch's also on CUDA devices."""
    found: list[object] = [read_states().get(generator)]
    if generator == "torch":
        found += [torch.cuda.get_rng_state(device).tolist() for device in devices if device.type == "cuda"]
    return hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest()


@contextlib.contextmanager
def preserve_generators() -> Iterator[None]:
    """Restore the states of the generators at the end."""
    python_state, numpy_random = random.getstate(), _numpy_random()
    numpy_state = None if numpy_random is None else numpy_random.get_state()
    with torch.random.fork_rng(devices=()):
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy_random is not None:
                numpy_random.set_state(numpy_state)


def _numpy_random() -> Any:
    return getattr(sys.modules.get("numpy"), "random", None)
