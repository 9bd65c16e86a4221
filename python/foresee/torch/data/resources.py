# SPDX-License-Identifier: Apache-2.0
"""Resources of one ``DataLoader``: a feed, and its threads or worker processes.

Nothing here refers to the loader, so that an unused loader is collected and closes these resources.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from foresee.errors import Closed
from foresee.torch.data.assemble import BatchInput, ByteRecipe, Recipe, SampleError
from foresee.torch.data.feed import BatchTask, DirectFeed, PrefetchFeed
from foresee.torch.data.repair import repair

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import BaseContext

    from foresee._loading.session import Session
    from foresee._runtime.waits import Turns
    from foresee.torch.data.worker_start import Starter
    from foresee.torch.data.workers import WorkerPool

# Threads that only copy batches into page-locked memory; more of them wait for the interpreter.
_PIN_THREADS_MAX = 4
_AUTOCAST_DEVICES = ("cpu", "cuda")


@dataclass(eq=False, kw_only=True)
class Resources:
    """Feed, threads and workers of a loader, opened at the first ``iter()``."""

    session: Session
    recipe: Recipe
    workers: int
    """Processes that make batches; 0: none."""
    threads: int
    """Threads that make batches without workers; 0: the thread that requests a batch makes it."""
    per_worker: int
    """Batches made ahead by each worker, 1 or more; without workers by all threads, 0: one more than threads."""
    persistent: bool
    """Whether workers live until the loader is closed."""
    in_order: bool
    """False: return whichever batch is finished first (workers only)."""
    init_fn: Callable[[int], None] | None
    """Called in each worker with its number."""
    context: BaseContext | None
    """Start method of the workers; None: there are none."""
    pin: Callable[[Any], Any] | None
    """Copies a batch into page-locked memory; None: no copy."""

    def __post_init__(self) -> None:
        # No user code runs on the threads where a batch needs only the copy.
        is_copy = self.recipe.is_whole and self.pin is not None
        self._thread_count = self.threads or (min(_PIN_THREADS_MAX, os.cpu_count() or 1) if is_copy else 0)
        self._caller: CallerContext | None = None
        self._starter: Starter | None = None
        if self.context is not None:
            # Only workers need cloudpickle.
            from foresee.torch.data.worker_start import Starter

            self._starter = Starter(self.context)
        self._feed: DirectFeed | PrefetchFeed | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._pool: WorkerPool | None = None
        self._closed = False

    def open(self, base_seed: int) -> DirectFeed | PrefetchFeed:
        """Return the feed, with new workers if they do not persist."""
        if self._closed:
            raise Closed("the loader is closed")
        if self.workers:
            self._open_pool(base_seed)
        if self._feed is None:
            self._feed = self._make_feed()
        if self._threads is not None:
            self._caller = CallerContext()
        return self._feed

    def end_epoch(self, turns: Turns | None = None) -> None:
        """End workers that do not persist; ``turns``: stages of the wait in which that happens."""
        if self._pool is not None and not self.persistent:
            if turns is not None:
                turns.enter("workers")
            pool, self._pool = self._pool, None
            pool.close()

    def close(self) -> None:
        """Release everything, after the engine was closed. In a forked child everything belongs to the parent."""
        self._closed = True
        if self.session.is_forked:
            return
        if self._pool is not None:
            self._pool.close()
        if self._feed is not None:
            self._feed.close()
        if self._starter is not None:
            self._starter.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _make_feed(self) -> DirectFeed | PrefetchFeed:
        if self.workers:
            return PrefetchFeed(
                self.session,
                self._submit,
                depth=self.workers * self.per_worker,
                is_followed_by=self._is_followed_by,
                in_order=self.in_order,
            )
        count = self._thread_count
        if self.session.off or not count or (self.recipe.is_whole and self.pin is None):
            return DirectFeed(self.session, self._make)
        self._threads = ThreadPoolExecutor(count, "foresee-transform")
        return PrefetchFeed(
            self.session, self._run, depth=self.per_worker or count + 1, is_followed_by=self._is_followed_by
        )

    def _is_followed_by(self, epoch: int) -> bool:
        """Whether ``epoch`` may begin before its ``iter()``."""
        may_begin = self.persistent or not self.workers
        return may_begin and self.session.order is not None and not self.session.is_beyond(epoch)

    def _make(self, task: BatchTask) -> Any:
        """Make the batch in the calling thread."""
        raw, recipe = task.raw, self.recipe
        if isinstance(recipe, ByteRecipe) and recipe.is_whole and self.pin is None and not raw.faults:
            # A short path, because the processor's caches are cold after a step.
            return recipe.dataset.base.stack(raw.data, raw.offsets, raw.labels)
        turns = task.turns
        if raw.faults:
            turns.enter("origin_read")
        batch = self.session.batch(raw, task.start)
        made: dict[int, Any] = {}
        while True:
            if not recipe.is_whole:
                turns.enter("transform")
            try:
                value = recipe.assemble(
                    BatchInput.of(batch, task.seed, self.session.source), made, turns=turns
                )
            except SampleError as error:
                turns.enter("origin_read")
                batch = repair(self.session, batch, error)
            else:
                if self.pin is None:
                    return value
                turns.enter("copy")
                return self.pin(value)

    def _run(self, task: BatchTask) -> Future[Any]:
        """Make the batch on one of the threads."""
        assert self._threads is not None, "made with the feed"
        assert self._caller is not None, "opened with the epoch"
        # Until a thread is free, the batch waits for other transforms.
        task.turns.enter("copy" if self.recipe.is_whole else "transform")
        return self._threads.submit(self._caller.run, self._make, task)

    def _submit(self, task: BatchTask) -> Future[Any]:
        """Make the batch in a worker."""
        assert self._pool is not None, "opened with the epoch"
        if task.raw.faults:
            task.turns.enter("origin_read")
        batch = self.session.batch(task.raw, task.start)
        task.turns.enter("workers")
        future = self._pool.submit(batch, task.seed, task.turns)
        if task.raw.last and self._starter is not None and not self.persistent:
            self._prepare(task.raw.epoch + 1)
        return future

    def _prepare(self, epoch: int) -> None:
        """Start the workers of ``epoch``, unless the run ends before it."""
        assert self._starter is not None, "there are workers"
        if not self.session.is_beyond(epoch):
            # A failure is raised when the workers are needed.
            with contextlib.suppress(OSError):
                self._starter.prepare(self.workers)

    def _open_pool(self, base_seed: int) -> None:
        if self._pool is not None and self._pool.is_broken:
            self._pool.close()
            self._pool = None
        if self._pool is None:
            from foresee.torch.data.workers import WorkerPool

            assert self._starter is not None, "there are workers"
            self._pool = WorkerPool(
                self.session,
                self.recipe,
                count=self.workers,
                slots=self.per_worker,
                base_seed=base_seed,
                init_fn=self.init_fn,
                starter=self._starter,
                pin=self.pin,
            )


class CallerContext:
    """Context of the thread that began the epoch, for the threads that run transforms.

    It consists of context variables, and of torch's settings per thread: grad and inference mode, and autocast of each
    device type.
    """

    def __init__(self) -> None:
        self._variables = contextvars.copy_context()
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._autocast = [
            (device, torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled())
            for device in _AUTOCAST_DEVICES
            if torch.is_autocast_enabled(device)
        ]

    def run(self, function: Callable[[BatchTask], Any], task: BatchTask) -> Any:
        """Call ``function(task)`` in this context."""
        return self._variables.copy().run(self._run, function, task)

    def _run(self, function: Callable[[BatchTask], Any], task: BatchTask) -> Any:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self._inference))
            stack.enter_context(torch.set_grad_enabled(self._grad))
            for device, dtype, cached in self._autocast:
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=cached))
            return function(task)
