# SPDX-License-Identifier: Apache-2.0
"""Program: hits and hit bytes of libCacheSim's caches for traces on standard input, in the environment of libCacheSim.

The input is a JSON list of objects: ``rule`` (a class of libCacheSim), ``capacity`` in bytes, and ``accesses``, each
``[sample, bytes, time of its next access]``. The output is a JSON list of ``[hits, bytes]``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import libcachesim  # type: ignore[import-not-found, unused-ignore]


def replay(rule: str, capacity: int, accesses: list[tuple[int, int, int]]) -> tuple[int, int]:
    """Return the hits and their bytes."""
    # A small hash table: one of the default size takes 128 MiB.
    cache: Any = getattr(libcachesim, rule)(capacity, hashpower=12)
    hits = hit_bytes = 0
    for time, (sample, size, next_access) in enumerate(accesses):
        request = libcachesim.Request(
            obj_size=size,
            op=libcachesim.ReqOp.OP_GET,
            valid=True,
            obj_id=sample + 1,
            clock_time=time,
            next_access_vtime=next_access,
        )
        if cache.get(request):
            hits += 1
            hit_bytes += size
    return hits, hit_bytes


if __name__ == "__main__":
    json.dump([replay(**trace) for trace in json.load(sys.stdin)], sys.stdout)
