# SPDX-License-Identifier: Apache-2.0
"""Facts of one rank's epoch that the audit compares with those of the other ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class RankFacts:
    """What one rank tells the others of its epoch, besides its ids."""

    whole: bool
    """Whether the epoch was iterated to its end."""
    resumed: bool = False
    """Whether only the rest of the epoch was handed out, from a saved state on."""
    batches: int
    samples: int
    largest: int
    """Samples of its largest batch."""
    digest: str
    same_order: bool | None
    """As in the epoch before; None: there was none."""
    shuffled: bool
    """Whether the ids come in another order than their own."""
    last: NDArray[np.uint64]
    hashed: bool
    """Ids are hashes; else they are indices of the data set."""
    expected: int | None
    """Samples of the data set; None: not known."""
    chosen: bool = False
    """Whether the rank is to hand out chosen samples of the data set only."""
    share: tuple[int, int] | None = None
    """Which share of how many the rank reads, if its loader says so."""
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
    """Why the ids are not known."""
