# SPDX-License-Identifier: Apache-2.0
"""A worker process: samples in, batches out.

It is started as torch starts its own (fork, forkserver or spawn), gets one socket, and through it the descriptors of
the memory that it shares with the training process. It needs no engine. When the training process is gone the
socket says so, and the worker ends; nothing has to be cleaned up.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import _utils as torch_utils

from foresee.errors import WorkerDied
from foresee.torch.data.arena import Arena, Segment
from foresee.torch.data.assemble import Recipe, SampleError, Work
from foresee.torch.data.pipe import dump, load, receive, send

# Seconds after which a worker whose socket is still open looks whether the training process is there: a process that
# some other code forked may hold the other end.
_ORPHAN_CHECK = 5.0


@dataclass(frozen=True, eq=False)
class Inherited:
    """What a forked worker has without a message."""

    recipe: Recipe
    init_fn: Callable[[int], None] | None
    descriptors: list[int]
    """Ends of sockets that belong to the training process."""


def main(channel: socket.socket, parent: int, inherited: Inherited | None) -> None:
    """Serve until the socket closes. ``parent``: process id of the training process."""
    # Ctrl-C goes to the whole foreground group; the training process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for descriptor in [] if inherited is None else inherited.descriptors:
        os.close(descriptor)
    torch.set_num_threads(1)
    try:
        hello = _next(channel, parent)
        recipe = None if hello is None else _begin(channel, hello, inherited)
        if recipe is not None:
            _Server(recipe).run(channel, parent)
    except (BrokenPipeError, ConnectionResetError):
        return


def _next(channel: socket.socket, parent: int) -> dict[str, Any] | None:
    """The next message; None when the training process is gone."""
    while not select.select([channel], [], [], _ORPHAN_CHECK)[0]:
        if os.getppid() != parent:
            return None
    return receive(channel)


def _begin(channel: socket.socket, hello: dict[str, Any], inherited: Inherited | None) -> Recipe | None:
    """The recipe, once ``worker_init_fn`` has run; None if either failed, which was reported."""
    number, base_seed = hello["id"], hello["base_seed"]
    try:
        if inherited is None:
            index = hello["descriptors"][0] if hello["descriptors"] else None
            recipe, init_fn = load(hello["payload"], index=index)
        else:
            recipe, init_fn = inherited.recipe, inherited.init_fn
        seed = base_seed + number
        # What get_worker_info() returns.
        torch_utils.worker._worker_info = torch_utils.worker.WorkerInfo(  # noqa: SLF001
            id=number, num_workers=hello["count"], seed=seed, dataset=recipe.given
        )
        # As torch's loader, for worker_init_fn and for what a dataset does once per worker.
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(torch_utils.worker._generate_state(base_seed, number))  # noqa: NPY002, SLF001
        if init_fn is not None:
            init_fn(number)
        recipe.check()
    except BaseException as error:  # noqa: BLE001 - it belongs to the training process
        send(channel, {"task": None, **_failure(error, None)})
        return None
    return recipe  # type: ignore[no-any-return] # what was dumped is what is loaded


class _Server:
    """Makes one batch after another."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._arena = Arena()
        self._sent: set[int] = set()
        """Segments whose descriptor the training process has."""
        self._slots: dict[int, Segment] = {}
        self._made: dict[int, dict[int, Any]] = {}
        """By task, the samples of batches of which one sample failed."""

    def run(self, channel: socket.socket, parent: int) -> None:
        while (task := _next(channel, parent)) is not None:
            for descriptor in task["descriptors"]:
                self._slots[task["slot"]] = Segment(descriptor)
            self._arena.release(task["released"])
            result, descriptors = self._serve(task)
            send(channel, {"task": task["task"], **result}, descriptors)

    def _serve(self, task: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        work: Work = task["work"]
        if task["bytes"]:
            # A copy, because what a decoder keeps of its input must not change with the next task.
            work = replace(work, data=np.array(self._slots[task["slot"]].view(task["bytes"])))
        made = self._made.pop(task["task"], {})
        self._arena.begin()
        try:
            value = self._recipe.assemble(work, made, seed_globals=True, collate=self._arena.collate)
            pickled, buffers = dump(value, out_of_band=True)
            number, descriptor, spans = self._arena.finish(buffers)
        except SampleError as error:
            self._made[task["task"]] = made
            return _failure(error.__cause__ or error, (error.place, error.kind)), []
        except SystemExit as error:
            text = f"code that a worker runs called sys.exit({error.code!r}); raise an error instead"
            return _failure(WorkerDied(text), None), []
        except Exception as error:  # noqa: BLE001 - collate_fn may raise anything
            return _failure(error, None), []
        result = {"ok": True, "value": pickled, "spans": spans, "segment": number}
        if number in self._sent:
            return result, []
        self._sent.add(number)
        return result, [descriptor]


def _failure(error: BaseException, sample: tuple[int, str] | None) -> dict[str, Any]:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickled, _ = dump(error)
        load(pickled)
    except Exception:  # noqa: BLE001 - some errors cannot travel; their text can
        pickled, _ = dump(RuntimeError(f"{type(error).__name__}: {error}"))
    return {"ok": False, "error": pickled, "text": text, "sample": sample}
