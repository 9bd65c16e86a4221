#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seconds that ``ft.audit`` adds to an epoch of one rank: per batch, and at the epoch's end.

Torch's loader runs with and without an audit, over integers, so that the loader itself takes little time. Then ``key=``
is measured, which hashes each id. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

import foresee.torch as ft


class Order:
    """Sampler over a permutation, with the time at which its last id was taken."""

    def __init__(self, samples: int) -> None:
        self._ids = np.random.default_rng(0).permutation(samples).tolist()
        self.end = 0.0

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[int]:
        yield from self._ids
        self.end = time.perf_counter()


def epoch(samples: int, size: int, audit: Callable[[Any], Any]) -> tuple[float, float]:
    """Return the seconds of the batches, and those from the last one to the epoch's end."""
    order = Order(samples)
    loader = audit(DataLoader(range(samples), batch_size=size, sampler=order, collate_fn=list))  # type: ignore[arg-type] # torch takes any sequence
    began = time.perf_counter()
    with contextlib.redirect_stderr(io.StringIO()):
        for _ in loader:
            pass
    return order.end - began, time.perf_counter() - order.end


def main() -> int:
    """Measure and print the overheads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000_000, help="default %(default)s")
    args = parser.parse_args()
    few = min(args.samples, 1_000_000)
    plain, _ = epoch(args.samples, 4096, lambda loader: loader)
    audited, compared = epoch(args.samples, 4096, ft.audit)
    small_plain, _ = epoch(few, 64, lambda loader: loader)
    small, _ = epoch(few, 64, ft.audit)
    keyed, _ = epoch(few, 64, lambda loader: ft.audit(loader, key=lambda batch: batch))
    results = {
        "samples": args.samples,
        "batches_s": audited - plain,
        "end_s": compared,
        "us_per_batch_of_64": (small - small_plain) / (few / 64) * 1e6,
        "us_per_batch_of_64_with_key": (keyed - small_plain) / (few / 64) * 1e6,
    }
    print(json.dumps({name: round(value, 2) for name, value in results.items()}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
