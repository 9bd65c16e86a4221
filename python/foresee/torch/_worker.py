# SPDX-License-Identifier: Apache-2.0
"""A worker process: bytes in, batches out. Run as ``python -m foresee.torch._worker SOCKET INDEX SLOT...``.

A fresh interpreter, never a fork: it inherits a socket, the index and, for each slot, one piece of shared
memory for bytes in and one for results out, all as descriptors without names. It needs no engine and reads no
origin. When the training process is gone the socket says so, and the worker ends; nothing has to be cleaned
up.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from typing import Any

import numpy as np
import torch
from torch.utils.data import _utils as torch_utils

from foresee.errors import WorkerDied
from foresee.torch._assemble import Recipe, SampleError, Work
from foresee.torch._pipe import Segment, dump, load, receive, send


def main(arguments: list[str]) -> int:
    """Serve until the socket closes."""
    # Ctrl-C goes to the whole foreground group; the training process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptors = [int(argument) for argument in arguments]
    channel = socket.socket(fileno=descriptors[0])
    slots = [
        (Segment(taken), Segment(given))
        for taken, given in zip(descriptors[2::2], descriptors[3::2], strict=True)
    ]
    torch.set_num_threads(1)
    try:
        recipe = _begin(channel, descriptors[1])
        if recipe is not None:
            while (task := receive(channel)) is not None:
                taken, given = slots[task["slot"]]
                send(channel, {"task": task["task"], **_serve(recipe, task, taken, given)})
    except (BrokenPipeError, ConnectionResetError):
        return 0
    return 0


def _begin(channel: socket.socket, index: int) -> Recipe | None:
    """The recipe, once ``worker_init_fn`` has run; None if either failed, which was reported."""
    hello = receive(channel)
    if hello is None:
        return None
    sys.path[:] = hello["path"]
    try:
        worker = load(hello["payload"], index=index)
        seed = hello["base_seed"] + hello["id"]
        # What get_worker_info() returns.
        torch_utils.worker._worker_info = torch_utils.worker.WorkerInfo(  # noqa: SLF001
            id=hello["id"], num_workers=hello["count"], seed=seed, dataset=worker["recipe"].dataset
        )
        torch.manual_seed(seed)
        if worker["init_fn"] is not None:
            worker["init_fn"](hello["id"])
    except BaseException as error:  # noqa: BLE001 - it belongs to the training process
        send(channel, {"task": None, **_failure(error, None)})
        return None
    recipe: Recipe = worker["recipe"]
    return recipe


def _serve(recipe: Recipe, task: dict[str, Any], taken: Segment, given: Segment) -> dict[str, Any]:
    # A copy, because what a decoder keeps of its input must not change with the next task.
    data = np.array(taken.view(task["bytes"]))
    work = Work(
        data, task["offsets"], task["ids"], task["labels"], task["positions"], task["epoch"], task["seed"]
    )
    try:
        pickled, buffers = dump(recipe.assemble(work, seed_globals=True), out_of_band=True)
        return {"ok": True, "value": pickled, "spans": given.write(buffers)}
    except SampleError as error:
        return _failure(error.__cause__ or error, (error.place, error.kind))
    except SystemExit as error:
        text = f"code that a worker runs called sys.exit({error.code!r}); raise an error instead"
        return _failure(WorkerDied(text), None)
    except Exception as error:  # noqa: BLE001 - collate_fn may raise anything
        return _failure(error, None)


def _failure(error: BaseException, sample: tuple[int, str] | None) -> dict[str, Any]:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickled, _ = dump(error)
        load(pickled)
    except Exception:  # noqa: BLE001 - some errors cannot travel; their text can
        pickled, _ = dump(RuntimeError(f"{type(error).__name__}: {error}"))
    return {"ok": False, "error": pickled, "text": text, "sample": sample}


if __name__ == "__main__":
    # os._exit: no atexit of a library may hold up the end of a worker.
    os._exit(main(sys.argv[1:]))
