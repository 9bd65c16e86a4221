# SPDX-License-Identifier: Apache-2.0
"""The processes of a measurement, which read one epoch at a time, all from the same moment on.

The parent process handles Ctrl-C: the others never receive it, and the parent ends them.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from foresee.errors import CacheError, OriginError, WorkerDied
from foresee.storage.bench import rank
from foresee.storage.bench.throttle import TokenBucket

__all__ = ["Ranks"]

_GRACE_S = 5.0


class Ranks:
    """``count`` processes, for a ``with`` block."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        self._buckets: list[TokenBucket] = []

    def __enter__(self) -> Ranks:
        context = multiprocessing.get_context("spawn")
        # Referenced until the end: shared values are freed with their last reference here, maybe before a process opens
        # them.
        self._buckets = [TokenBucket(context.Value("q", 0)) for _ in range(2)]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for number in range(self._count):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=rank.serve,
                    args=(theirs, number, *self._buckets),
                    name=f"rank {number}",
                    daemon=True,
                )
                process.start()
                theirs.close()
                self._connections.append(ours)
                self._processes.append(process)
        except BaseException:
            self.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Return the process ids."""
        return [process.pid for process in self._processes]

    def epoch(self, tasks: Sequence[rank.Task]) -> float:
        """Run an epoch; return the seconds from the begin of the first rank to the end of the last one.

        Raises:
            OriginError: a file of the origin cannot be read; ``CacheError``: one of the cache.
            WorkerDied: a process has ended.
        """
        self._exchange(tasks)
        times = self._exchange([None] * self._count)
        for answer in times:
            if isinstance(answer, rank.Fault):
                raise (OriginError if answer.origin else CacheError)(answer.message)
        seconds: float = (max(each.ended_ns for each in times) - min(each.began_ns for each in times)) / 1e9
        return seconds

    def end_run(self) -> None:
        """Complete the ledgers of the last epoch's run.

        Raises:
            CacheError: a ledger could not be written.
        """
        for lost in self._exchange([None] * self._count):
            if lost is not None:
                raise CacheError(f"a ledger is incomplete: {lost}")

    def _exchange(self, messages: Sequence[Any]) -> list[Any]:
        """Send each rank a message, and wait for all answers."""
        answers: list[Any] = [None] * self._count
        waiting: dict[Any, int] = {}
        for number, (connection, message) in enumerate(zip(self._connections, messages, strict=True)):
            try:
                connection.send(message)
            except OSError:
                raise self._death(number) from None
            waiting[connection] = number
        while waiting:
            for ready in wait([*waiting, *(self._processes[number].sentinel for number in waiting.values())]):
                if not isinstance(ready, Connection):
                    continue
                number = waiting.pop(ready)
                try:
                    answers[number] = ready.recv()
                except (EOFError, OSError):
                    raise self._death(number) from None
            for connection, number in waiting.items():
                if not self._processes[number].is_alive() and not connection.poll():
                    raise self._death(number)
        return answers

    def _death(self, number: int) -> WorkerDied:
        process = self._processes[number]
        process.join(_GRACE_S)
        code = process.exitcode
        how = "" if code is None else f" (signal {-code})" if code < 0 else f" (exit code {code})"
        return WorkerDied(
            f"rank {number} of the measurement has ended{how}; check whether it was killed for memory"
        )

    def close(self) -> None:
        """End the processes. Idempotent."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(_GRACE_S)
            if process.is_alive():
                process.kill()
                process.join()
        # Last: a process that still answers would print a traceback.
        for connection in self._connections:
            connection.close()
        self._connections, self._processes = [], []
