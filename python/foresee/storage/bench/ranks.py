# SPDX-License-Identifier: Apache-2.0
"""The processes of a measurement: started once, given one epoch at a time, started together, ended with the block.

The parent process handles Ctrl-C: the others never receive it, and are ended by the parent.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

from foresee.errors import CacheError, OriginError, WorkerDied
from foresee.storage.bench import rank
from foresee.storage.bench.throttle import Bucket

__all__ = ["Ranks"]

_GRACE_S = 5.0


class Ranks:
    """So many processes, for a ``with`` block."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._ends: list[Connection] = []
        self._processes: list[Any] = []
        self._buckets: list[Bucket] = []

    def __enter__(self) -> Ranks:
        context = multiprocessing.get_context("spawn")
        # Kept: what processes share is gone with its last name here, and they take a while to find it.
        self._buckets = [Bucket(context.Value("q", 0)) for _ in range(2)]
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
                self._ends.append(ours)
                self._processes.append(process)
        except BaseException:
            self.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Of the processes."""
        return [process.pid for process in self._processes]

    def epoch(self, tasks: Sequence[rank.Task]) -> float:
        """Seconds from the first rank's begin to the last one's end.

        Raises:
            OriginError: a file of the origin cannot be read; ``CacheError``: one of the cache.
            WorkerDied: a process is gone.
        """
        self._each(tasks)
        took = self._each([None] * self._count)
        for answer in took:
            if isinstance(answer, rank.Fault):
                raise (OriginError if answer.origin else CacheError)(answer.message)
        seconds: float = (max(each.ended_ns for each in took) - min(each.began_ns for each in took)) / 1e9
        return seconds

    def end_run(self) -> None:
        """Complete the ledgers of the run that the last epoch was of.

        Raises:
            CacheError: one could not be written.
        """
        for answer in self._each([None] * self._count):
            if answer.lost is not None:
                raise CacheError(f"a ledger was given up: {answer.lost}")

    def _each(self, words: Sequence[Any]) -> list[Any]:
        """Tell each rank something, and wait for all answers."""
        answers: list[Any] = [None] * self._count
        open_: dict[Any, int] = {}
        for number, (end, word) in enumerate(zip(self._ends, words, strict=True)):
            try:
                end.send(word)
            except OSError:
                raise self._died(number) from None
            open_[end] = number
        while open_:
            for ready in wait([*open_, *(self._processes[number].sentinel for number in open_.values())]):
                if not isinstance(ready, Connection):
                    continue
                number = open_.pop(ready)
                try:
                    answers[number] = ready.recv()
                except (EOFError, OSError):
                    raise self._died(number) from None
            for end, number in open_.items():
                if not self._processes[number].is_alive() and not end.poll():
                    raise self._died(number)
        return answers

    def _died(self, number: int) -> WorkerDied:
        process = self._processes[number]
        process.join(_GRACE_S)
        code = process.exitcode
        how = "" if code is None else f" (signal {-code})" if code < 0 else f" (exit code {code})"
        return WorkerDied(f"rank {number} of the measurement has ended{how}; was it killed for memory?")

    def close(self) -> None:
        """End the processes; again is fine."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(_GRACE_S)
            if process.is_alive():
                process.kill()
                process.join()
        # Last: a process that still answered would find no reader, and print a long error.
        for end in self._ends:
            end.close()
        self._ends, self._processes = [], []
