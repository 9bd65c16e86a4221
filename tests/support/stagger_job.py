# SPDX-License-Identifier: Apache-2.0
"""A job that sleeps instead of computing, and reads a real file: what is not in the page cache takes ``--wait``.

The kernel is asked with ``mincore`` whether a step's bytes are in memory: a read with ``RWF_NOWAIT`` would start a
readahead, which a fast disk may end before the kernel looks. If not, the origin delivers them to one job after the other,
as a lock on a file has it.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import mmap
import os
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

# As a program of its own it finds no package of the tests.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from foresee._runtime.step_times import CACHES, Meter, order_hash
from foresee.config import Cache
from support.waiting import pause

CHUNK = 1 << 16


def options(words: Sequence[str]) -> argparse.Namespace:
    """What a command line asks of the job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--compute", type=float, default=0.004)
    parser.add_argument("--wait", type=float, default=0.008)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--order", default="sequential 40", help="empty: not known")
    parser.add_argument("--loader-steps", type=int)
    parser.add_argument("--dies-after", type=int)
    parser.add_argument("--hangs-after", type=int)
    parser.add_argument("--slow-after", type=int, help="from this step on it waits for --slow")
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--loads", type=float, default=0.0, help="seconds until its loader is there")
    parser.add_argument("--cache", help="a folder on disk")
    parser.add_argument("--deaf", action="store_true", help="print on SIGTERM, and go on")
    return parser.parse_args(words)


def is_in_memory(file: int, step: int) -> bool:
    """Whether all pages of a step's chunk are."""
    with mmap.mmap(file, CHUNK, prot=mmap.PROT_READ, offset=step * CHUNK) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        pages = np.zeros(CHUNK // mmap.PAGESIZE, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        if libc.mincore(view.ctypes.data, CHUNK, pages.ctypes.data):
            raise OSError(ctypes.get_errno(), "mincore")
        del view
    return bool((pages & 1).all())


def read(file: int, step: int, wait: float) -> None:
    """The bytes of a step."""
    room = bytearray(CHUNK)
    if is_in_memory(file, step):
        os.preadv(file, [room], step * CHUNK)
        return
    print(f"waits for chunk {step}", flush=True)
    with open(f"/proc/self/fd/{file}", "rb") as origin:
        fcntl.flock(origin, fcntl.LOCK_EX)
        pause(wait)
        os.preadv(file, [room], step * CHUNK)


def main() -> None:
    asked = options(sys.argv[1:])
    if asked.deaf:
        import signal

        signal.signal(signal.SIGTERM, lambda *_: print("does not listen", flush=True))
    print(f"this job sleeps, seed {os.environ.get('FORESEE_SEED')}", flush=True)
    pause(asked.loads)
    if asked.cache:
        Cache(ram="1MB", disk=asked.cache, disk_size="1GB").native()
        # As a loader would, with its first sample.
        with open(os.path.join(os.environ["FORESEE_STEPS"], CACHES), encoding="utf-8") as told:
            os.makedirs(told.read().strip(), exist_ok=True)
    file = os.open(asked.data, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    meter = Meter(os.environ.get("FORESEE_STEPS"))
    done, order = 0, order_hash(asked.order) if asked.order else 0
    for _ in range(asked.epochs):
        timer = meter.timer(steps=asked.loader_steps or asked.steps, order=order)
        for step in range(asked.steps):
            timer.begin_wait()
            if done == asked.dies_after:
                print("no more memory", flush=True)
                sys.exit(3)
            if done == asked.hangs_after:
                pause(600)
            slow = asked.slow_after is not None and done >= asked.slow_after
            read(file, step, asked.slow if slow else asked.wait)
            timer.end_wait()
            pause(asked.compute)
            done += 1
        timer.end_step()


if __name__ == "__main__":
    main()
