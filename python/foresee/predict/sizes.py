# SPDX-License-Identifier: Apache-2.0
"""Bytes of each sample of a predicted run: known sizes, and drawn ones in place of unknown sizes.

The simulator draws from a normal distribution, as published scenarios do, and draws values below 0 again. With the
spread of ImageNet's sizes this makes the data a quarter larger. The sizes of this module have the measured mean.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["drawn", "filled"]

_SEED = 0
#: Below this, a gamma distribution has almost only zeros and one huge value.
_SHAPE_LEAST = 0.01
#: A few draws of such a distribution may all be almost 0 and cannot be scaled to sizes.
_MEAN_LEAST = 1e-9


def filled(samples: int, ids: NDArray[np.int64], sizes: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return the bytes of each sample; those of ``ids`` are known, the others are drawn from them.

    Args:
        samples: number of samples, 1 or more.
        ids: shape (known,), at least one; ids above the samples only add to the distribution.
        sizes: shape (known,), bytes, 0 or more; 0 becomes 1, the least that can be read.

    >>> filled(4, np.array([0, 3]), np.array([5.0, 5.0])).tolist()
    [5, 5, 5, 5]
    """
    known = np.maximum(np.rint(sizes), 1).astype(np.uint64)
    within = ids < samples
    made = np.zeros(samples, np.uint64)
    made[ids[within]] = known[within]
    unknown = made == 0
    if missing := int(unknown.sum()):
        made[unknown] = np.random.default_rng(_SEED).choice(known, missing)
    return made


def drawn(samples: int, mean: float, sigma: float) -> NDArray[np.uint64]:
    """Return drawn bytes of each sample, 1 or more, with ``mean`` and ``sigma`` in bytes, above 0.

    They come from a gamma distribution with this mean and deviation (of ten times the mean at most), which has no
    values below 0, scaled so that the drawn sizes have the mean to a byte.

    >>> sizes = drawn(100_000, 107_700.0, 100_000.0)
    >>> round(float(sizes.mean())), round(float(sizes.std()) / 1000)
    (107700, 100)
    """
    shape = max((mean / sigma) ** 2, _SHAPE_LEAST)
    made = np.random.default_rng(_SEED).gamma(shape, mean / shape, samples)
    found = float(made.mean())
    if found > _MEAN_LEAST * mean:
        made *= mean / found
    else:
        made[:] = mean
    return np.maximum(np.rint(made), 1).astype(np.uint64)
