# SPDX-License-Identifier: Apache-2.0
"""Start of worker processes, ahead of the next epoch where that takes long.

A forked worker starts in milliseconds. Any other one imports torch, which takes seconds, so the workers of the next
epoch are started while this one ends. They get the dataset when that epoch begins, because it may change in between.
"""

from __future__ import annotations

import logging
import multiprocessing.process
import os
import socket
import threading
import weakref
from typing import TYPE_CHECKING, TypeAlias

from foresee.torch.data.assemble import ByteRecipe, Recipe
from foresee.torch.data.pipe import dump, send
from foresee.torch.data.worker import ForkState, main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess

    from foresee._loading.data_source import Source

    Started: TypeAlias = tuple[BaseProcess, socket.socket]
    """A process, and the training process's end of its channel."""

_log = logging.getLogger("foresee")
# Bytes of a dataset's pickle from which on a warning names it.
_LARGE_PAYLOAD = 1 << 30
# Seconds for an unused process to end before it is killed.
_GRACE = 2.0
_processes: weakref.WeakSet[BaseProcess] = weakref.WeakSet()


def _forget_processes() -> None:
    """Keep a forked child of the user from ending the parent's workers: multiprocessing ends all known ones at exit."""
    for process in _processes:
        multiprocessing.process._children.discard(process)  # type: ignore[attr-defined] # noqa: SLF001


os.register_at_fork(after_in_child=_forget_processes)


class Starter:
    """Starts the workers of one loader with ``context``."""

    def __init__(self, context: BaseContext) -> None:
        self._context = context
        self._is_fork = context.get_start_method() == "fork"
        self._lock = threading.Lock()
        self._ready: list[Started] = []
        self._closed = False

    def prepare(self, count: int) -> None:
        """Start ``count`` processes for a later ``start``, unless they are forked. Thread-safe."""
        with self._lock:
            while not self._is_fork and not self._closed and len(self._ready) < count:
                self._ready.append(self._process(None, []))

    def start(
        self, count: int, recipe: Recipe, init_fn: Callable[[int], None] | None, base_seed: int
    ) -> Iterator[Started]:
        """Start workers 0 to ``count - 1``, prepared processes first, and yield each.

        Raises:
            OSError: the next one cannot be started.
        """
        payload = b"" if self._is_fork else _pickled(recipe, init_fn)
        source = recipe.dataset.source if isinstance(recipe, ByteRecipe) else None
        index = [] if self._is_fork or source is None else [_index_descriptor(source)]
        fork_state = ForkState(recipe, init_fn, []) if self._is_fork else None
        channels: list[socket.socket] = []
        try:
            for number in range(count):
                with self._lock:
                    ready = self._ready.pop() if self._ready else None
                process, channel = ready or self._process(fork_state, channels)
                channels.append(channel)
                setup = {"id": number, "count": count, "base_seed": base_seed, "payload": payload}
                send(channel, setup, index)
                yield process, channel
        finally:
            for descriptor in index:
                os.close(descriptor)

    def close(self) -> None:
        """End the prepared processes. Idempotent."""
        with self._lock:
            self._closed = True
            ready, self._ready = self._ready, []
        for _, channel in ready:
            channel.close()
        for process, _ in ready:
            process.join(_GRACE)
            if process.exitcode is None:
                process.kill()
                process.join()

    def _process(self, fork_state: ForkState | None, others: list[socket.socket]) -> Started:
        """Start a process; ``others``: this end of the channels of the workers before it."""
        parent_end, worker_end = socket.socketpair()
        if fork_state is not None:
            closed = [channel.fileno() for channel in (*others, parent_end)]
            fork_state = ForkState(fork_state.recipe, fork_state.init_fn, closed)
        with worker_end:
            process = self._context.Process(  # type: ignore[attr-defined] # all contexts have it
                target=main, args=(worker_end, os.getpid(), fork_state), name="foresee-worker", daemon=True
            )
            process.start()
        _processes.add(process)
        return process, parent_end


def _pickled(recipe: Recipe, init_fn: Callable[[int], None] | None) -> bytes:
    payload, _ = dump((recipe, init_fn))
    if len(payload) > _LARGE_PAYLOAD:
        _log.warning(
            "the pickle of %s has %.1f GB, and each worker gets a copy; keep large arrays in files that are mapped "
            '(numpy.memmap), or use multiprocessing_context="fork"',
            type(recipe.dataset).__name__,
            len(payload) / 1e9,
        )
    return payload


def _index_descriptor(source: Source) -> int:
    """Return a descriptor of the index file, or of anonymous memory."""
    if source.file is not None:
        return os.open(source.file, os.O_RDONLY | os.O_CLOEXEC)
    descriptor = os.memfd_create("foresee-index", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(source.file_bytes())
    return descriptor
