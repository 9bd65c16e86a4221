# SPDX-License-Identifier: Apache-2.0
"""Processes of one run: the ranks of its jobs, and the service that they may share."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from .memory import memory_bytes
from .task import Result, Task

HERE = Path(__file__).resolve().parents[1]
#: Interval of the memory samples.
SAMPLE_S = 0.25
#: Time in which the service must listen.
SERVICE_START_S = 20
#: Variables of launchers that this process may have inherited.
_LAUNCHERS = ("SLURM_", "OMPI_", "PMI_", "TORCHELASTIC_")
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class ProcessFailed(Exception):
    """A process of a run failed, ended or timed out; the message names it."""


class Rank:
    """A rank, and the states that it has reported."""

    def __init__(self, name: str, task: Task, environment: Mapping[str, str], log: BinaryIO) -> None:
        self.name = name
        #: Text of each reported state.
        self.states: dict[str, str] = {}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "rank.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=dict(environment),
            text=True,
        )
        self._write(task.to_line())

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def result(self) -> Result:
        """The reported result."""
        return Result.from_line(self.states["done"])

    def go_on(self) -> None:
        """End a wait of the rank."""
        self._write("")

    def listen(self, events: queue.SimpleQueue[tuple[Rank, str]]) -> None:
        """Put each report into ``events`` from a thread, and an empty one at the end."""

        def read() -> None:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                events.put((self, line))
            events.put((self, ""))

        threading.Thread(target=read, daemon=True).start()

    def wait(self, timeout_s: float) -> int:
        """Wait for the end; return the exit status."""
        return self._process.wait(timeout_s)

    def close(self) -> None:
        """Kill the process if it runs."""
        assert self._process.stdin is not None
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ProcessFailed(f"{self.name} has ended; see results/last-errors.log") from None


class Launch:
    """All processes of one run; they end with the ``with`` block."""

    def __init__(self, environment: Mapping[str, str], timeout_s: float) -> None:
        """``environment``: variables beside those of this process. ``timeout_s``: limit of each wait."""
        self._timeout_s = timeout_s
        self._ranks: list[Rank] = []
        self._service: subprocess.Popen[bytes] | None = None
        self._events: queue.SimpleQueue[tuple[Rank, str]] = queue.SimpleQueue()
        self._stack = contextlib.ExitStack()
        # Sockets of a node's cache are found there, and no cache of another run is.
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="foresee-node-")))
        self._log = self._stack.enter_context((HERE / "results" / "last-errors.log").open("ab"))
        inherited = {name: value for name, value in os.environ.items() if not _is_dropped(name)}
        # One thread per library: the benchmark compares loaders, not numerical libraries.
        pinned = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self.environment = {**inherited, **pinned, "XDG_RUNTIME_DIR": str(self._folder), **environment}

    def __enter__(self) -> Launch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank in self._ranks:
            rank.close()
        if self._service is not None:
            self._service.terminate()
            try:
                self._service.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._service.kill()
                self._service.wait()
        self._stack.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of all ranks and the service."""
        service = [] if self._service is None else [self._service.pid]
        return [rank.pid for rank in self._ranks] + service

    def serve(self, ram_bytes: int) -> None:
        """Start ``foresee node``; ranks that start later use it.

        Raises:
            ProcessFailed: it ended or did not listen; the message has its last error.
        """
        socket = self._folder / "node.sock"
        command = [sys.executable, "-m", "foresee", "node", "--ram", str(ram_bytes), "--socket", str(socket)]
        errors = self._folder / "service-errors"
        with errors.open("wb") as log:
            self._service = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=log, env=self.environment
            )
        deadline = time.monotonic() + SERVICE_START_S
        while not socket.exists():
            if self._service.poll() is not None:
                last = (errors.read_text(encoding="utf-8", errors="replace").splitlines() or [""])[-1]
                raise ProcessFailed(f"`foresee node` ended with status {self._service.returncode}: {last}")
            if time.monotonic() > deadline:
                raise ProcessFailed(f"`foresee node` did not create its socket within {SERVICE_START_S} s")
            time.sleep(0.02)
        self.environment["FORESEE_NODE"] = str(socket)

    def service_cpu_s(self) -> float:
        """Return the user and system time of the service; 0 without one."""
        if self._service is None:
            return 0.0
        fields = Path(f"/proc/{self._service.pid}/stat").read_text().rpartition(")")[2].split()
        # utime and stime: fields 14 and 15 of proc(5), two before the bracket.
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def job(self, ranks: int, task: Task) -> list[Rank]:
        """Start the ranks of a job as torchrun does, and wait until all have imported."""
        name = f"job {len(self._ranks)}"
        launcher = {
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            # Nothing listens there; it only distinguishes jobs.
            "MASTER_PORT": str(29500 + len(self._ranks)),
            "TORCHELASTIC_RUN_ID": f"{self._folder.name}-{len(self._ranks)}",
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
        started = []
        for number in range(ranks):
            environment = {
                **self.environment,
                **launcher,
                "RANK": str(number),
                "LOCAL_RANK": str(number),
            }
            rank = Rank(f"rank {number} of {name}", task, environment, self._log)
            self._ranks.append(rank)
            rank.listen(self._events)
            started.append(rank)
        self.until("ready", started)
        return started

    def until(self, state: str, ranks: Sequence[Rank], on_wait: Callable[[], None] | None = None) -> None:
        """Wait until ``ranks`` have reported ``state``; meanwhile call ``on_wait`` every ``SAMPLE_S``.

        Raises:
            ProcessFailed: a rank of the run failed or ended, or the time is up.
        """
        deadline = time.monotonic() + self._timeout_s
        while any(state not in rank.states for rank in ranks):
            if time.monotonic() > deadline:
                raise ProcessFailed(f"not every rank was {state} within {self._timeout_s:.0f} s")
            self.take_reports(SAMPLE_S)
            if on_wait is not None:
                on_wait()

    def take_reports(self, timeout_s: float) -> None:
        """Record the reports that arrive within ``timeout_s``, and return early if one has.

        Raises:
            ProcessFailed: a rank failed or ended.
        """
        try:
            rank, line = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return
        state, _, text = line.strip().partition(" ")
        if state == "failed":
            raise ProcessFailed(f"{rank.name} failed: {text}")
        if not state and "done" not in rank.states:
            raise ProcessFailed(f"{rank.name} ended early; see results/last-errors.log")
        rank.states[state] = text

    def go_on(self, ranks: Iterable[Rank]) -> None:
        """End a wait of ``ranks``."""
        for rank in ranks:
            rank.go_on()

    def end(self, ranks: Sequence[Rank]) -> None:
        """Let ``ranks``, which are done, close their loaders together, and wait for their end."""
        self.go_on(ranks)
        for rank in ranks:
            try:
                status = rank.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                raise ProcessFailed(f"{rank.name} did not end within {self._timeout_s:.0f} s") from None
            if status != 0:
                raise ProcessFailed(f"{rank.name} ended with status {status}; see results/last-errors.log")


class PeakMemory:
    """Growth of the memory of a launch since this object was created."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._base = memory_bytes(launch.pids)
        self._peak = self._base

    def sample(self) -> None:
        """Measure once."""
        self._peak = max(self._peak, memory_bytes(self._launch.pids))

    @property
    def bytes(self) -> int:
        """The largest growth of all samples."""
        return self._peak - self._base


def _is_dropped(name: str) -> bool:
    return name.startswith(("FORESEE_", *_LAUNCHERS)) or name in _RANKS
