# SPDX-License-Identifier: Apache-2.0
"""A worker process, which makes batches of samples.

It starts as torch's workers do (fork, forkserver or spawn), and gets the descriptors of shared memory through one
socket. It needs no engine. It ends when the training process closes the socket, and leaves nothing to clean up.
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
from foresee.torch.data.assemble import BatchInput, Recipe, SampleError
from foresee.torch.data.pipe import dump, load, receive, send

# Seconds after which a worker checks whether the training process is alive: another forked process may hold the other
# end of its socket.
_ORPHAN_CHECK = 5.0


@dataclass(frozen=True, eq=False)
class ForkState:
    """State that a forked worker inherits."""

    recipe: Recipe
    init_fn: Callable[[int], None] | None
    descriptors: list[int]
    """The training process's ends of sockets."""


def main(channel: socket.socket, parent: int, fork_state: ForkState | None) -> None:
    """Serve until the socket closes. ``parent``: process id of the training process."""
    # Ctrl-C goes to the whole foreground group; the training process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for descriptor in [] if fork_state is None else fork_state.descriptors:
        os.close(descriptor)
    torch.set_num_threads(1)
    try:
        setup = _next(channel, parent)
        recipe = None if setup is None else _begin(channel, setup, fork_state)
        if recipe is not None:
            _Server(recipe).run(channel, parent)
    except (BrokenPipeError, ConnectionResetError):
        return


def _next(channel: socket.socket, parent: int) -> dict[str, Any] | None:
    """Receive the next message; None when the training process has ended."""
    while not select.select([channel], [], [], _ORPHAN_CHECK)[0]:
        if os.getppid() != parent:
            return None
    return receive(channel)


def _begin(channel: socket.socket, setup: dict[str, Any], fork_state: ForkState | None) -> Recipe | None:
    """Run ``worker_init_fn`` and return the recipe; None after a failure, which is sent."""
    number, base_seed = setup["id"], setup["base_seed"]
    try:
        if fork_state is None:
            index = setup["descriptors"][0] if setup["descriptors"] else None
            recipe, init_fn = load(setup["payload"], index=index)
        else:
            recipe, init_fn = fork_state.recipe, fork_state.init_fn
        seed = base_seed + number
        # For get_worker_info().
        torch_utils.worker._worker_info = torch_utils.worker.WorkerInfo(  # noqa: SLF001
            id=number, num_workers=setup["count"], seed=seed, dataset=recipe.original
        )
        # As torch's loader, for worker_init_fn and for a dataset's work per worker.
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(torch_utils.worker._generate_state(base_seed, number))  # noqa: NPY002, SLF001
        if init_fn is not None:
            init_fn(number)
        recipe.check()
    except BaseException as error:  # noqa: BLE001 - raised in the training process
        send(channel, {"task": None, **_failure(error, None)})
        return None
    return recipe  # type: ignore[no-any-return] # the type that was pickled


class _Server:
    """Makes the batches of a worker."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._arena = Arena()
        self._sent: set[int] = set()
        """Segments whose descriptor the training process has."""
        self._slots: dict[int, Segment] = {}
        self._made: dict[int, dict[int, Any]] = {}
        """Finished samples of batches with a failed sample, by task."""

    def run(self, channel: socket.socket, parent: int) -> None:
        while (task := _next(channel, parent)) is not None:
            for descriptor in task["descriptors"]:
                self._slots[task["slot"]] = Segment(descriptor)
            self._arena.release(task["released"])
            result, descriptors = self._serve(task)
            send(channel, {"task": task["task"], **result}, descriptors)

    def _serve(self, task: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        batch: BatchInput = task["batch"]
        if task["bytes"]:
            # A copy, because a decoder may keep its input longer than this task.
            batch = replace(batch, data=np.array(self._slots[task["slot"]].view(task["bytes"])))
        made = self._made.pop(task["task"], {})
        self._arena.begin()
        try:
            value = self._recipe.assemble(batch, made, seed_globals=True, collate=self._arena.collate)
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
    except Exception:  # noqa: BLE001 - some errors cannot be pickled; their text can
        pickled, _ = dump(RuntimeError(f"{type(error).__name__}: {error}"))
    return {"ok": False, "error": pickled, "text": text, "sample": sample}
