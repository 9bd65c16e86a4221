# SPDX-License-Identifier: Apache-2.0
"""Resources behind the batches of one ``DataLoader``: a feed, and its threads or worker processes.

Nothing here refers to the loader, so an unused loader is collected and closes these resources. Epochs and orders are
chosen by the loader.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from foresee.errors import Closed
from foresee.torch.data.assemble import ByteRecipe, Recipe, SampleError, Work
from foresee.torch.data.feed import Ahead, Direct, Job
from foresee.torch.data.repair import repair

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import BaseContext

    from foresee._loading.session import Session
    from foresee._runtime.waits import Turns
    from foresee.torch.data.worker_start import Starter
    from foresee.torch.data.workers import WorkerPool

# Threads that only copy batches into page-locked memory; more of them mostly wait for the interpreter.
_PIN_THREADS_MAX = 4
_AUTOCAST_DEVICES = ("cpu", "cuda")


class Resources:
    """Opened at the first ``iter()``.

    Args:
        session: whose batches they are.
        recipe: how a batch is made of its bytes.
        workers: processes that make batches; 0: none.
        threads: that make batches where there are no workers; 0: the thread that asks for them does.
        per_worker: batches made ahead by each worker, 1 or more. Without workers: by all threads; 0 for one
            more than there are.
        persistent: keep the workers between epochs.
        in_order: False gives out whichever batch is made first (workers only).
        init_fn: called in each worker with its number.
        context: how workers are started; None: there are none.
        pin: copies a batch into page-locked memory; None: it stays where it is.
    """

    def __init__(
        self,
        session: Session,
        recipe: Recipe,
        *,
        workers: int,
        threads: int,
        per_worker: int,
        persistent: bool,
        in_order: bool,
        init_fn: Callable[[int], None] | None,
        context: BaseContext | None,
        pin: Callable[[Any], Any] | None,
    ) -> None:
        self._session = session
        self._recipe = recipe
        self._workers = workers
        # No code of the user's runs on them where a batch needs no work but the copy.
        self._thread_count = threads or (
            min(_PIN_THREADS_MAX, os.cpu_count() or 1) if recipe.whole and pin is not None else 0
        )
        self._context: CallerContext | None = None
        self._per_worker = per_worker
        self._persistent = persistent
        self._in_order = in_order
        self._init_fn = init_fn
        self._starter = None if context is None else _starter(context)
        self._pin = pin
        self._feed: Direct | Ahead | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._pool: WorkerPool | None = None
        self._closed = False

    def open(self, base_seed: int) -> Direct | Ahead:
        """The feed, with fresh workers if they do not persist."""
        if self._closed:
            raise Closed("the loader is closed")
        if self._workers:
            self._open_pool(base_seed)
        if self._feed is None:
            self._feed = self._make_feed()
        if self._threads is not None:
            self._context = CallerContext()
        return self._feed

    def epoch_over(self, turns: Turns | None = None) -> None:
        """All batches of an epoch are made, or not wanted. ``turns``: of the wait in which workers are ended."""
        if self._pool is not None and not self._persistent:
            if turns is not None:
                turns.enter("workers")
            pool, self._pool = self._pool, None
            pool.close()

    def close(self) -> None:
        """Release everything; the engine is closed already. Nothing in a fork's child: it is all its parent's."""
        self._closed = True
        if self._session.is_forked:
            return
        if self._pool is not None:
            self._pool.close()
        if self._feed is not None:
            self._feed.close()
        if self._starter is not None:
            self._starter.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _make_feed(self) -> Direct | Ahead:
        if self._workers:
            return Ahead(
                self._session,
                self._submit,
                depth=self._workers * self._per_worker,
                goes_on=self._goes_on,
                in_order=self._in_order,
            )
        count = self._thread_count
        if self._session.off or not count or (self._recipe.whole and self._pin is None):
            return Direct(self._session, self._make)
        self._threads = ThreadPoolExecutor(count, "foresee-transform")
        return Ahead(self._session, self._run, depth=self._per_worker or count + 1, goes_on=self._goes_on)

    def _goes_on(self, epoch: int) -> bool:
        """Whether ``epoch`` may be begun ahead of its ``iter()``."""
        kept = self._persistent or not self._workers
        return kept and self._session.order is not None and not self._session.is_beyond(epoch)

    def _make(self, job: Job) -> Any:
        """The batch, in the calling thread."""
        raw, recipe = job.raw, self._recipe
        if isinstance(recipe, ByteRecipe) and recipe.whole and self._pin is None and not raw.faults:
            # After a step all caches are cold: what is not called is most of what a batch that needs no work can save.
            return recipe.dataset.stack(raw.data, raw.offsets, raw.labels)
        turns = job.turns
        if raw.faults:
            turns.enter("origin_read")
        batch = self._session.batch(raw, job.start)
        made: dict[int, Any] = {}
        while True:
            if not recipe.whole:
                turns.enter("transform")
            work = Work.of(batch, job.seed, self._session.source)
            try:
                value = recipe.assemble(work, made, turns=turns)
            except SampleError as error:
                turns.enter("origin_read")
                batch = repair(self._session, batch, error)
            else:
                if self._pin is None:
                    return value
                turns.enter("copy")
                return self._pin(value)

    def _run(self, job: Job) -> Future[Any]:
        """The batch, on one of the threads."""
        assert self._threads is not None, "made with the feed"
        assert self._context is not None, "opened with the epoch"
        # The thread may come later: until then the batch waits for other transforms.
        job.turns.enter("copy" if self._recipe.whole else "transform")
        return self._threads.submit(self._context.run, self._make, job)

    def _submit(self, job: Job) -> Future[Any]:
        """The batch, by a worker."""
        assert self._pool is not None, "opened with the epoch"
        if job.raw.faults:
            job.turns.enter("origin_read")
        batch = self._session.batch(job.raw, job.start)
        job.turns.enter("workers")
        future = self._pool.submit(batch, job.seed, job.turns)
        if job.raw.last and self._starter is not None and not self._persistent:
            self._prepare(job.raw.epoch + 1)
        return future

    def _prepare(self, epoch: int) -> None:
        """Have the workers of ``epoch`` ready, if there is to be one."""
        assert self._starter is not None, "there are workers"
        if not self._session.is_beyond(epoch):
            # A failure is reported when the workers are needed.
            with contextlib.suppress(OSError):
                self._starter.prepare(self._workers)

    def _open_pool(self, base_seed: int) -> None:
        if self._pool is not None and self._pool.broken:
            self._pool.close()
            self._pool = None
        if self._pool is None:
            from foresee.torch.data.workers import WorkerPool

            assert self._starter is not None, "there are workers"
            self._pool = WorkerPool(
                self._session,
                self._recipe,
                count=self._workers,
                slots=self._per_worker,
                base_seed=base_seed,
                init_fn=self._init_fn,
                starter=self._starter,
                pin=self._pin,
            )


def _starter(context: BaseContext) -> Starter:
    # Workers alone need cloudpickle.
    from foresee.torch.data.worker_start import Starter

    return Starter(context)


class CallerContext:
    """What a thread that runs transforms takes over from the thread that began the epoch.

    Context variables, and what torch keeps per thread: grad and inference mode, and autocast of each device type.
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

    def run(self, function: Callable[[Job], Any], job: Job) -> Any:
        """``function(job)`` as the thread that began the epoch would run it."""
        return self._variables.copy().run(self._run, function, job)

    def _run(self, function: Callable[[Job], Any], job: Job) -> Any:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self._inference))
            stack.enter_context(torch.set_grad_enabled(self._grad))
            for device, dtype, cached in self._autocast:
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=cached))
            return function(job)
