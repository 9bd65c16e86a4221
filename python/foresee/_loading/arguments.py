# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments that both loaders have.

Faults are returned, not raised, because a loader reports those of all its arguments at once.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from foresee._loading.on_error import checked as on_error_faults
from foresee.config import Cache

if TYPE_CHECKING:
    from typing import TypeGuard

    from foresee._loading.on_error import OnError

_T = TypeVar("_T")
# Seconds, 146 years. A deadline is the sum of a clock and a timeout, and must stay below TIMEOUT_MAX.
_TIMEOUT_MAX = threading.TIMEOUT_MAX / 2


def checked(
    *,
    batch_size: object,
    epochs: object,
    seed: object,
    order: object,
    timeout: object,
    drop_last: object,
    cache: object,
    on_error: OnError,
) -> list[str]:
    """Return all faults, each with its remedy."""
    faults = []
    if not whole(batch_size) or batch_size < 1:
        faults.append(f"batch_size={batch_size!r}; a whole number of 1 or more")
    if epochs is not None and (not whole(epochs) or epochs < 1):
        faults.append(f"epochs={epochs!r}; a whole number of 1 or more, or None if unknown")
    if seed is not None and (not whole(seed) or not -(2**63) <= seed < 2**64):
        faults.append(f"seed={seed!r}; a whole number from -2**63 to 2**64 - 1, as torch takes it")
    if order not in (None, "keyed"):
        faults.append(f'order={order!r}; use "keyed", or leave it out')
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        faults.append(f"timeout={timeout!r}; seconds, 0 or more")
    if not isinstance(drop_last, bool):
        faults.append(f"drop_last={drop_last!r}; True or False")
    if cache is not None and not isinstance(cache, Cache):
        faults.append(f'cache={cache!r}; a foresee.Cache, such as foresee.Cache(ram="16GB")')
    return faults + on_error_faults(on_error)


def plain(value: _T) -> _T | int:
    """Convert an integer of NumPy's to an int."""
    return int(value) if isinstance(value, np.integer) else value


def whole(value: object) -> TypeGuard[int]:
    """Whether ``value`` is an int and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def milliseconds(timeout: float) -> int | None:
    """Convert ``timeout`` in seconds to the engine's milliseconds; None, without a limit, for 0 or over 146 years."""
    return None if timeout == 0 or timeout > _TIMEOUT_MAX else max(1, round(timeout * 1000))
