# SPDX-License-Identifier: Apache-2.0
"""Facts of one rank's epoch that the audit compares with those of the other ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class RankFacts:
    """Facts that one rank sends to the others with its ids."""

    whole: bool
    """Whether the epoch was iterated to its end."""
    resumed: bool = False
    """Whether the rank returned only the rest of the epoch, from a saved state on."""
    batches: int
    samples: int
    largest: int
    """Size of its largest batch."""
    digest: str
    same_order: bool | None
    """Whether the order equals that of the epoch before; None: there was none."""
    shuffled: bool
    """Whether the ids are not ascending."""
    last: NDArray[np.uint64]
    """Ids of the last batch."""
    hashed: bool
    """Whether ids are hashes; else they are indices of the data set."""
    expected: int | None
    """Samples of the data set; None: unknown."""
    chosen: bool = False
    """Whether the rank reads only a subset of the data set."""
    share: tuple[int, int] | None = None
    """Index and number of the rank's share of the data, if its loader has them."""
    padded_by_batch: bool = False
    drop_last: bool = False
    replacement: bool = False
    dataset: tuple[Any, ...] = ()
    """Equal on ranks that hold the same data set."""
    workers: int = 0
    iterable: bool = False
    own: bool | None = None
    """Verdict of a Foresee loader's own audit."""
    unknown: str | None = None
    """Reason why the ids are unknown."""
