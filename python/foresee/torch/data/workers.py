# SPDX-License-Identifier: Apache-2.0
"""Worker processes of the training process: start, tasks, results, and their end.

Batches are distributed round-robin, as by torch. Each worker has several slots of shared memory, so that its next task
is ready when one ends. Sockets and memory have no name: they end with this process, and the workers end with them. A
worker is not restarted, because the cause would kill the next one.
"""

from __future__ import annotations

import select
import selectors
import signal
import socket
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from foresee.errors import Closed, WorkerDied
from foresee.torch.data.arena import Segment
from foresee.torch.data.assemble import BatchInput, Recipe, SampleError
from foresee.torch.data.pipe import load, receive, send
from foresee.torch.data.repair import repair

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

    from foresee._loading.batch import Batch, Bytes
    from foresee._loading.session import Session
    from foresee._runtime.waits import Turns
    from foresee.torch.data.worker_start import Starter

_NO_BYTES: Bytes = np.zeros(0, np.uint8)
# Seconds for a worker to end before it is killed.
_GRACE = 2.0


class RemoteTrace(Exception):
    """The traceback of a worker as text: the ``__cause__`` of its error."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


@dataclass(eq=False)
class _Task:
    future: Future[Any]
    batch: Batch
    seed: int
    slot: int
    turns: Turns


@dataclass(eq=False)
class _Worker:
    id: int
    process: BaseProcess
    channel: socket.socket
    free: list[int]
    slots: dict[int, Segment] = field(default_factory=dict)
    """Memory for the bytes of tasks, by slot."""
    segments: dict[int, Segment] = field(default_factory=dict)
    """The worker's memory for batches."""
    released: deque[int] = field(default_factory=deque)
    """Segments whose batches were freed, for the worker to reuse."""
    tasks: dict[int, _Task] = field(default_factory=dict)
    error: BaseException | None = None
    sending: threading.Lock = field(default_factory=threading.Lock)
    """Lock for a message: the reader may repeat a task while the feed sends the next one."""


class WorkerPool:
    """``count`` processes that make batches by ``recipe``."""

    def __init__(
        self,
        session: Session,
        recipe: Recipe,
        *,
        count: int,
        slots: int,
        base_seed: int,
        init_fn: Callable[[int], None] | None,
        starter: Starter,
        pin: Callable[[Any], Any] | None,
    ) -> None:
        self._session = session
        self._pin = pin
        self._changed = threading.Condition()
        self._next = 0
        self._serial = 0
        self._closed = False
        self._workers: list[_Worker] = []
        try:
            for i, (process, channel) in enumerate(starter.start(count, recipe, init_fn, base_seed)):
                self._workers.append(_Worker(i, process, channel, list(range(slots))))
        except OSError as error:
            self._stop()
            raise WorkerDied(
                f"worker {len(self._workers)} of {count} could not be started: {error}"
            ) from error
        self._wake, self._woken = socket.socketpair()
        self._reader = threading.Thread(target=self._read, name="foresee-workers", daemon=True)
        self._reader.start()

    @property
    def is_broken(self) -> bool:
        """Whether a worker has died."""
        return any(worker.error is not None for worker in self._workers)

    def submit(self, batch: Batch, seed: int, turns: Turns) -> Future[Any]:
        """Send ``batch`` to the next worker, after a wait for one of its slots."""
        future: Future[Any] = Future()
        with self._changed:
            worker = self._workers[self._next]
            self._next = (self._next + 1) % len(self._workers)
            while not worker.free and worker.error is None and not self._closed:
                self._changed.wait()
            if self._closed:
                raise Closed("the workers were closed")
            if worker.error is not None:
                future.set_exception(worker.error)
                return future
            self._serial += 1
            serial, task = self._serial, _Task(future, batch, seed, worker.free.pop(), turns)
            worker.tasks[serial] = task
        self._send(worker, serial, task)
        return future

    def close(self) -> None:
        """End all workers and release their memory. Idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._wake.send(b"x")
        if self._reader is not threading.current_thread():
            self._reader.join()
        self._wake.close()
        self._woken.close()
        self._stop()
        for worker in self._workers:
            self._fail(worker, Closed("the workers were closed"))

    def _send(self, worker: _Worker, serial: int, task: _Task) -> None:
        batch, descriptors = task.batch, []
        message: dict[str, Any] = {
            "task": serial,
            "slot": task.slot,
            "bytes": len(batch.data),
            "batch": replace(BatchInput.of(batch, task.seed, self._session.source), data=_NO_BYTES),
        }
        if len(batch.data):
            if task.slot not in worker.slots:
                worker.slots[task.slot] = Segment.create("foresee-task")
                descriptors.append(worker.slots[task.slot].descriptor)
            worker.slots[task.slot].write([batch.data])
        with worker.sending:
            message["released"] = [worker.released.popleft() for _ in range(len(worker.released))]
            try:
                send(worker.channel, message, descriptors)
            except OSError:
                # It has ended; the reader gets its exit status and fails the task.
                return

    def _read(self) -> None:
        try:
            self._receive_all()
        except Exception as cause:  # noqa: BLE001 - otherwise the loop would wait forever
            error = WorkerDied(f"the messages of the workers cannot be read: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
            with self._changed:
                for worker in self._workers:
                    worker.error = worker.error or error
                self._changed.notify_all()
            for worker in self._workers:
                self._fail(worker, error)

    def _receive_all(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ, None)
            for worker in self._workers:
                selector.register(worker.channel, selectors.EVENT_READ, worker)
                # Another process may hold the worker's end of the channel.
                selector.register(worker.process.sentinel, selectors.EVENT_READ, worker)
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    worker = key.data
                    if worker.error is not None:
                        continue  # Both of its events came together.
                    has_ended = key.fileobj is not worker.channel and not _is_readable(worker.channel)
                    message = None if has_ended else receive(worker.channel)
                    if message is None or message["task"] is None:
                        selector.unregister(worker.channel)
                        selector.unregister(worker.process.sentinel)
                        self._on_exit(worker, message)
                    else:
                        self._on_message(worker, message)

    def _on_message(self, worker: _Worker, message: dict[str, Any]) -> None:
        task = worker.tasks[message["task"]]
        outcome: Any = None
        error: BaseException | None = None
        try:
            if message["ok"]:
                task.turns.enter("copy")
                outcome = self._value(worker, task, message)
            elif message["sample"] is not None and not task.future.cancelled():
                failed = SampleError(*message["sample"])
                failed.__cause__ = _remote(message)
                task.turns.enter("origin_read")
                task.batch = repair(self._session, task.batch, failed)
                task.turns.enter("workers")
                self._send(worker, message["task"], task)
                return
            else:
                error = _remote(message)
        except BaseException as raised:  # noqa: BLE001 - raised in the thread that waits for the batch
            error = raised
        with self._changed:
            del worker.tasks[message["task"]]
            worker.free.append(task.slot)
            self._changed.notify_all()
        if task.future.set_running_or_notify_cancel():
            if error is None:
                task.future.set_result(outcome)
            else:
                task.future.set_exception(error)

    def _value(self, worker: _Worker, task: _Task, message: dict[str, Any]) -> Any:
        number, spans = message["segment"], message["spans"]
        for descriptor in message["descriptors"]:
            worker.segments[number] = Segment(descriptor)
        # The worker reuses this memory when the last array over it is gone.
        lease = worker.segments[number].lease(max((stop for _, stop in spans), default=0))
        weakref.finalize(lease, worker.released.append, number).atexit = False
        if task.future.cancelled():
            return None
        value = load(message["value"], buffers=[lease[begin:stop] for begin, stop in spans])
        return value if self._pin is None else self._pin(value)

    def _on_exit(self, worker: _Worker, message: dict[str, Any] | None) -> None:
        worker.process.join(_GRACE)
        code = worker.process.exitcode
        if code is None:
            how = "closed its channel"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"exited with code {code}"
        error: BaseException = WorkerDied(
            f"worker {worker.id} (pid {worker.process.pid}) {how}; see its stderr, or use num_workers=0"
        )
        if message is not None:
            # As torch's loader: the error of worker_init_fn itself.
            error = _remote(message)
        with self._changed:
            worker.error = error
            self._changed.notify_all()
        self._fail(worker, error)

    def _fail(self, worker: _Worker, error: BaseException) -> None:
        with self._changed:
            tasks = list(worker.tasks.values())
            worker.tasks.clear()
        for task in tasks:
            if task.future.set_running_or_notify_cancel():
                task.future.set_exception(error)

    def _stop(self) -> None:
        for worker in self._workers:
            worker.channel.close()
        for worker in self._workers:
            worker.process.join(_GRACE)
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
            for segment in (*worker.slots.values(), *worker.segments.values()):
                segment.close()


def _is_readable(channel: socket.socket) -> bool:
    return bool(select.select([channel], [], [], 0)[0])


def _remote(message: dict[str, Any]) -> BaseException:
    error: BaseException = load(message["error"])
    error.__cause__ = RemoteTrace(message["text"])
    return error
