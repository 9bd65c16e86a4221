# SPDX-License-Identifier: Apache-2.0
"""What makes the batches of one ``DataLoader``: a feed, with threads or worker processes behind it.

Apart from the loader, to which nothing here refers, so that a loader that nobody uses is collected, and this
is closed with it. Refuses to know epochs and orders: the feed goes where the loader sends it.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from foresee.errors import Closed
from foresee.torch._assemble import Recipe, SampleError, Work
from foresee.torch._feed import Ahead, Direct, Job
from foresee.torch._mend import mend

if TYPE_CHECKING:
    from collections.abc import Callable

    from foresee._session import Session
    from foresee.torch._workers import WorkerPool

# Python threads beyond these mostly wait for the interpreter.
_THREADS_MAX = 4


class Resources:
    """Opened at the first ``iter()``.

    Args:
        session: whose batches they are.
        recipe: how a batch is made of its bytes.
        workers: processes; 0: threads, or none where a batch needs no work.
        per_worker: batches made ahead by each worker, 1 or more. Without workers: by all threads; 0 for one
            more than there are.
        persistent: keep the workers between epochs.
        in_order: False gives out whichever batch is made first (workers only).
        init_fn: called in each worker with its number.
        pin: copy batches into page-locked memory.
    """

    def __init__(
        self,
        session: Session,
        recipe: Recipe,
        *,
        workers: int,
        per_worker: int,
        persistent: bool,
        in_order: bool,
        init_fn: Callable[[int], None] | None,
        pin: bool,
    ) -> None:
        self._session = session
        self._recipe = recipe
        self._workers = workers
        self._per_worker = per_worker
        self._persistent = persistent
        self._in_order = in_order
        self._init_fn = init_fn
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
        return self._feed

    def epoch_over(self) -> None:
        """All batches of an epoch are made, or not wanted."""
        if self._pool is not None and not self._persistent:
            pool, self._pool = self._pool, None
            pool.close()

    def close(self) -> None:
        """Release everything; the engine is closed already."""
        self._closed = True
        if self._pool is not None:
            self._pool.close()
        if self._feed is not None:
            self._feed.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _make_feed(self) -> Direct | Ahead:
        known = self._session.order is not None
        if self._workers:
            return Ahead(
                self._session,
                self._submit,
                depth=self._workers * self._per_worker,
                across_epochs=self._persistent and known,
                in_order=self._in_order,
            )
        if self._session.off or (self._recipe.whole and not self._pin):
            return Direct(self._session, self._make)
        count = min(_THREADS_MAX, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(count, "foresee-transform")
        return Ahead(self._session, self._run, depth=self._per_worker or count + 1, across_epochs=known)

    def _make(self, job: Job) -> Any:
        """The batch, in this thread."""
        raw = job.raw
        if self._recipe.whole and not self._pin and not raw.faults:
            # After a step all caches are cold: what is not called is most of what a batch that needs no work can save.
            return self._recipe.dataset.stack(raw.data, raw.offsets, raw.labels)
        batch = self._session.batch(raw, job.start)
        while True:
            work = Work(batch.data, batch.offsets, batch.labels, batch.positions, batch.epoch, job.seed)
            try:
                value = self._recipe.assemble(work)
            except SampleError as error:
                batch = mend(self._session, batch, error)
            else:
                return _pinned(value) if self._pin else value

    def _run(self, job: Job) -> Future[Any]:
        """The batch, on one of the threads."""
        assert self._threads is not None, "made with the feed"
        return self._threads.submit(self._make, job)

    def _submit(self, job: Job) -> Future[Any]:
        """The batch, by a worker."""
        assert self._pool is not None, "opened with the epoch"
        batch = self._session.batch(job.raw, job.start)
        return self._pool.submit(batch, job.seed)

    def _open_pool(self, base_seed: int) -> None:
        if self._pool is not None and self._pool.broken:
            self._pool.close()
            self._pool = None
        if self._pool is None:
            from foresee.torch._workers import WorkerPool

            self._pool = WorkerPool(
                self._session,
                self._recipe,
                count=self._workers,
                slots=self._per_worker,
                base_seed=base_seed,
                init_fn=self._init_fn,
                pin=self._pin,
            )


def _pinned(value: Any) -> Any:
    """``value`` with its tensors copied into page-locked memory, as torch's own loader does it."""
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(value)
