# SPDX-License-Identifier: Apache-2.0
"""The training process's side of worker processes: start them, feed them, and notice when one dies.

Batches go to the workers in turn, as torch does. Each worker has a few slots of shared memory, so that it
finds its next task when it has done one. Nothing has a name: when this process dies, sockets and memory go
with it, and the workers end. Refuses to restart a worker: what killed it would kill the next.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from foresee.errors import Closed, WorkerDied
from foresee.torch._assemble import Recipe, SampleError
from foresee.torch._mend import mend
from foresee.torch._pipe import Segment, dump, load, receive, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from foresee._batch import Batch, Bytes
    from foresee._session import Session
    from foresee._waits import Turns

# A worker that was told to end has this long, in seconds, before it is killed.
_GRACE = 2.0


class RemoteTrace(Exception):
    """The traceback of a worker, as text: the cause of the error it raised."""

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
    process: subprocess.Popen[bytes]
    channel: socket.socket
    slots: list[tuple[Segment, Segment]]
    free: list[int]
    tasks: dict[int, _Task] = field(default_factory=dict)
    death: WorkerDied | None = None


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
        pin: bool,
    ) -> None:
        self._session = session
        self._pin = pin
        self._changed = threading.Condition()
        self._next = 0
        self._serial = 0
        self._closed = False
        self._workers: list[_Worker] = []
        payload, _ = dump({"recipe": recipe, "init_fn": init_fn})
        index = _index_descriptor(recipe)
        try:
            for i in range(count):
                worker = _spawn(i, index, slots)
                self._workers.append(worker)
                hello = {
                    "id": i,
                    "count": count,
                    "base_seed": base_seed,
                    "payload": payload,
                    "path": sys.path,
                }
                send(worker.channel, hello)
        except OSError as error:
            self._stop()
            raise WorkerDied(
                f"worker {len(self._workers)} of {count} could not be started: {error}"
            ) from error
        finally:
            os.close(index)
        self._wake, self._woken = socket.socketpair()
        self._reader = threading.Thread(target=self._read, name="foresee-workers", daemon=True)
        self._reader.start()

    @property
    def broken(self) -> bool:
        """Whether a worker has died."""
        return any(worker.death is not None for worker in self._workers)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def submit(self, batch: Batch, seed: int, turns: Turns) -> Future[Any]:
        """Have ``batch`` made by the next worker; waits for a slot of it."""
        future: Future[Any] = Future()
        with self._changed:
            worker = self._workers[self._next]
            self._next = (self._next + 1) % len(self._workers)
            while not worker.free and worker.death is None and not self._closed:
                self._changed.wait()
            if self._closed:
                raise Closed("the workers were closed")
            if worker.death is not None:
                future.set_exception(worker.death)
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
        taken, _ = worker.slots[task.slot]
        taken.write([task.batch.data])
        message = {
            "task": serial,
            "slot": task.slot,
            "bytes": len(task.batch.data),
            "offsets": task.batch.offsets,
            "ids": task.batch.ids,
            "labels": task.batch.labels,
            "positions": task.batch.positions,
            "epoch": task.batch.epoch,
            "seed": task.seed,
        }
        try:
            send(worker.channel, message)
        except OSError:
            # It is dead; the reader finds out how it ended and fails the task.
            return

    def _read(self) -> None:
        try:
            self._receive_all()
        except Exception as cause:  # noqa: BLE001 - else whoever waits for a batch would wait forever
            error = WorkerDied(f"what the workers sent cannot be read: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
            with self._changed:
                for worker in self._workers:
                    worker.death = worker.death or error
                self._changed.notify_all()
            for worker in self._workers:
                self._fail(worker, error)

    def _receive_all(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ, None)
            for worker in self._workers:
                selector.register(worker.channel, selectors.EVENT_READ, worker)
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    message = receive(key.data.channel)
                    if message is None or message["task"] is None:
                        selector.unregister(key.fileobj)
                        self._bury(key.data, message)
                    else:
                        self._take(key.data, message)

    def _take(self, worker: _Worker, message: dict[str, Any]) -> None:
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
                task.batch = mend(self._session, task.batch, failed)
                task.turns.enter("workers")
                self._send(worker, message["task"], task)
                return
            else:
                error = _remote(message)
        except BaseException as raised:  # noqa: BLE001 - it belongs to whoever waits for the batch
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
        if task.future.cancelled():
            return None
        _, given = worker.slots[task.slot]
        spans = message["spans"]
        shared = given.view(max((stop for _, stop in spans), default=0))
        buffers: list[Bytes] = []
        for begin, stop in spans:
            own: Bytes = torch.empty(stop - begin, dtype=torch.uint8, pin_memory=self._pin).numpy()
            np.copyto(own, shared[begin:stop])
            buffers.append(own)
        return load(message["value"], buffers=buffers)

    def _bury(self, worker: _Worker, last_words: dict[str, Any] | None) -> None:
        try:
            code = worker.process.wait(_GRACE)
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        except subprocess.TimeoutExpired:
            how = "closed its channel"
        error = WorkerDied(
            f"worker {worker.id} (pid {worker.process.pid}) {how}; see its stderr, or use num_workers=0"
        )
        if last_words is not None:
            cause = _remote(last_words)
            error = WorkerDied(f"worker {worker.id} could not start: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
        with self._changed:
            worker.death = error
            self._changed.notify_all()
        self._fail(worker, error)

    def _fail(self, worker: _Worker, error: Exception) -> None:
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
            try:
                worker.process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            for taken, given in worker.slots:
                taken.close()
                given.close()


def _spawn(number: int, index: int, slots: int) -> _Worker:
    ours, theirs = socket.socketpair()
    memory = [(Segment.create("foresee-in"), Segment.create("foresee-out")) for _ in range(slots)]
    descriptors = [theirs.fileno(), index, *(part.descriptor for pair in memory for part in pair)]
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "foresee.torch._worker", *map(str, descriptors)],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    return _Worker(number, process, ours, memory, list(range(slots)))


def _index_descriptor(recipe: Recipe) -> int:
    """The index as a descriptor: of its file, or of memory without a name."""
    source = recipe.dataset.source
    if source.file is not None:
        return os.open(source.file, os.O_RDONLY | os.O_CLOEXEC)
    descriptor = os.memfd_create("foresee-index", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(source.file_bytes())
    return descriptor


def _remote(message: dict[str, Any]) -> BaseException:
    error: BaseException = load(message["error"])
    error.__cause__ = RemoteTrace(message["text"])
    return error
