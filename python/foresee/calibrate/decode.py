# SPDX-License-Identifier: Apache-2.0
"""Decoding pictures, as ``FolderDataset(decode="pil")`` does: ``decode.rate`` against threads.

Samples are read once and decoded from memory, so nothing but the decoder counts. Pillow decodes without the
interpreter's lock, so threads of this process are what a loader's threads would be.
"""

from __future__ import annotations

import io
import itertools
import threading
import time
from collections.abc import Callable, Iterator

from foresee import _native
from foresee.calibrate.parts import load
from foresee.calibrate.sweep import REPEATS, cores, counts, rate, sweep
from foresee.jobspec import Figure

__all__ = ["decode"]

_SAMPLES, _BYTES = 64, 32 << 20


def decode(
    trial: _native.Trial, seconds: float, tell: Callable[[str], None], left_out: list[str]
) -> Iterator[Figure]:
    """The rate in encoded bytes, of samples of the origin; nothing if they are no pictures."""
    try:
        from PIL import Image
    except ImportError:
        left_out.append("decode.rate: Pillow is not installed; install foresee[pictures]")
        return

    def picture(data: bytes) -> None:
        Image.open(io.BytesIO(data)).convert("RGB")

    tell("decode.rate: reading samples")
    samples = trial.samples(_SAMPLES, bytes_max=_BYTES)
    try:
        for sample in samples:
            picture(sample)
    except Exception as error:  # noqa: BLE001 - a codec raises what it likes
        left_out.append(f"decode.rate: samples are no pictures that Pillow reads ({error})")
        return
    conditions = f"{len(samples)} pictures of the origin to RGB by Pillow; {REPEATS} repeats, {load()}"
    made = sweep(
        lambda threads, time_s: _run(picture, samples, threads, time_s),
        counts(cores()),
        seconds,
        lambda count: tell(f"decode.rate at {count}"),
    )
    for point in made.points:
        yield rate("decode.rate", point.at, point.rates, conditions)


def _run(
    picture: Callable[[bytes], None], samples: list[bytes], threads: int, seconds: float
) -> tuple[int, float, float]:
    """Decode with so many threads for so long, each at least one picture."""
    moved = [0] * threads
    gate = threading.Barrier(threads + 1)

    def work(nth: int) -> None:
        mine = itertools.cycle(samples[nth % len(samples) :] + samples[: nth % len(samples)])
        gate.wait()
        until = time.monotonic() + seconds
        for sample in mine:
            picture(sample)
            moved[nth] += len(sample)
            if time.monotonic() >= until:
                return

    running = [threading.Thread(target=work, args=(nth,), daemon=True) for nth in range(threads)]
    for thread in running:
        thread.start()
    gate.wait()
    began = time.monotonic()
    for thread in running:
        thread.join()
    return sum(moved), time.monotonic() - began, 0.0
