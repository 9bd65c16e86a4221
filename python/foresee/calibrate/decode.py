# SPDX-License-Identifier: Apache-2.0
"""``decode.rate`` against threads: decoding of images, as ``FolderDataset(decode="pil")`` does.

Samples are read once and decoded from memory, so that only the decoder is measured. Pillow releases the interpreter's
lock, so that threads of this process behave as a loader's threads.
"""

from __future__ import annotations

import io
import itertools
import threading
import time
from collections.abc import Callable, Iterator

from foresee import _native
from foresee._loading.packages import pillow
from foresee.calibrate.parts import Recorder, load
from foresee.calibrate.sweep import REPEATS, cores, counts, rate, sweep
from foresee.errors import PackageMissing
from foresee.jobspec import Figure

_SAMPLES, _BYTES = 64, 32 << 20


def decode(trial: _native.Trial, seconds: float, recorder: Recorder) -> Iterator[Figure]:
    """Measure the rate in encoded bytes of the origin's samples, if they are images."""
    try:
        images = pillow()
    except PackageMissing as error:
        recorder.left_out.append(f"decode.rate: {error}")
        return

    def decode_image(data: bytes) -> None:
        images.open(io.BytesIO(data)).convert("RGB")

    recorder.on_progress("decode.rate: reading samples")
    samples = trial.samples(_SAMPLES, bytes_max=_BYTES)
    try:
        for sample in samples:
            decode_image(sample)
    except Exception as error:  # noqa: BLE001 - a codec may raise anything
        recorder.left_out.append(f"decode.rate: samples are no pictures that Pillow reads ({error})")
        return
    conditions = f"{len(samples)} pictures of the origin to RGB by Pillow; {REPEATS} repeats, {load()}"
    made = sweep(
        lambda threads, time_s: _run(decode_image, samples, threads, time_s),
        counts(cores()),
        seconds,
        lambda count: recorder.on_progress(f"decode.rate at {count}"),
    )
    for point in made.points:
        yield rate("decode.rate", point.at, point.rates, conditions)


def _run(
    decode_image: Callable[[bytes], None], samples: list[bytes], threads: int, seconds: float
) -> tuple[int, float, float]:
    """Decode on ``threads`` threads for ``seconds``, at least one image on each."""
    moved = [0] * threads
    barrier = threading.Barrier(threads + 1)

    def work(nth: int) -> None:
        own = itertools.cycle(samples[nth % len(samples) :] + samples[: nth % len(samples)])
        barrier.wait()
        until = time.monotonic() + seconds
        for sample in own:
            decode_image(sample)
            moved[nth] += len(sample)
            if time.monotonic() >= until:
                return

    running = [threading.Thread(target=work, args=(nth,), daemon=True) for nth in range(threads)]
    for thread in running:
        thread.start()
    barrier.wait()
    began = time.monotonic()
    for thread in running:
        thread.join()
    return sum(moved), time.monotonic() - began, 0.0
