# SPDX-License-Identifier: Apache-2.0
"""A job that sleeps instead of computing, and reads a real file. Reads outside the page cache take ``--wait``.

``mincore`` reports whether the bytes of a step are in memory. A read with ``RWF_NOWAIT`` would start a readahead, which a
fast disk may finish before the kernel checks. A file lock serializes the reads of several jobs, like a shared origin.
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

# A separate program does not have the tests in its path.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from foresee._runtime.step_times import CACHES, Meter, order_hash
from foresee.config import Cache
from support.waiting import pause

CHUNK = 1 << 16


def options(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line of the job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--compute", type=float, default=0.004)
    parser.add_argument("--wait", type=float, default=0.008)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--order", default="sequential 40", help="empty: unknown")
    parser.add_argument("--loader-steps", type=int)
    parser.add_argument("--dies-after", type=int)
    parser.add_argument("--hangs-after", type=int)
    parser.add_argument("--slow-after", type=int, help="first step that waits for --slow")
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--loads", type=float, default=0.0, help="seconds until its loader exists")
    parser.add_argument("--cache", help="a folder on disk")
    parser.add_argument("--ignore-sigterm", action="store_true", help="print on SIGTERM, and continue")
    return parser.parse_args(words)


def is_in_memory(file: int, step: int) -> bool:
    """Whether all pages of a step's chunk are in memory."""
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
    """Read the bytes of a step."""
    buffer = bytearray(CHUNK)
    if is_in_memory(file, step):
        os.preadv(file, [buffer], step * CHUNK)
        return
    print(f"waits for chunk {step}", flush=True)
    with open(f"/proc/self/fd/{file}", "rb") as origin:
        fcntl.flock(origin, fcntl.LOCK_EX)
        pause(wait)
        os.preadv(file, [buffer], step * CHUNK)


def main() -> None:
    arguments = options(sys.argv[1:])
    if arguments.ignore_sigterm:
        import signal

        signal.signal(signal.SIGTERM, lambda *_: print("ignores SIGTERM", flush=True))
    print(f"this job sleeps, seed {os.environ.get('FORESEE_SEED')}", flush=True)
    pause(arguments.loads)
    if arguments.cache:
        Cache(ram="1MB", disk=arguments.cache, disk_size="1GB").native()
        # Like a loader at its first sample.
        with open(os.path.join(os.environ["FORESEE_STEPS"], CACHES), encoding="utf-8") as file_of_caches:
            os.makedirs(file_of_caches.read().strip(), exist_ok=True)
    file = os.open(arguments.data, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    meter = Meter(os.environ.get("FORESEE_STEPS"))
    done, order = 0, order_hash(arguments.order) if arguments.order else 0
    for _ in range(arguments.epochs):
        timer = meter.timer(steps=arguments.loader_steps or arguments.steps, order=order)
        for step in range(arguments.steps):
            timer.begin_wait()
            if done == arguments.dies_after:
                print("no more memory", flush=True)
                sys.exit(3)
            if done == arguments.hangs_after:
                pause(600)
            slow = arguments.slow_after is not None and done >= arguments.slow_after
            read(file, step, arguments.slow if slow else arguments.wait)
            timer.end_wait()
            pause(arguments.compute)
            done += 1
        timer.end_step()


if __name__ == "__main__":
    main()
