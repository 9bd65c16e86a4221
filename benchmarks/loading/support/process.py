# SPDX-License-Identifier: Apache-2.0
"""A loading process that runs one job after another."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from common.process_tree import pss_bytes

from .job import Job, Result

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]

#: Arms that need the environment of the peers; the others use this one.
PEERS = {"spdl", "litdata", "streaming", "webdataset", "grain", "s3torchconnector", "pool"}

#: Interval of the memory samples.
SAMPLE_S = 0.25


class ProcessFailed(Exception):
    """A loading process ended or timed out."""


class Loading:
    """A loading process of one arm; imports are reused across jobs."""

    def __init__(self, arm: str, wrap: list[str] | None = None) -> None:
        """``wrap`` is a command prefix, for example to enter a control group."""
        python = ROOT / ".bench-venv" / "bin" / "python" if arm in PEERS else Path(sys.executable)
        if not python.exists():
            raise FileNotFoundError(f"{python} is missing: run `make bench-setup`")
        # One thread per library: the benchmark compares loaders, not numerical libraries.
        pinned = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        quiet = {"GRPC_VERBOSITY": "ERROR", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
        self._log = (HERE / "results" / "last-errors.log").open("ab")
        self._process = subprocess.Popen(
            [*(wrap or []), str(python), str(HERE / "worker.py"), arm],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **pinned, **quiet},
            start_new_session=True,
        )

    def run(self, job: Job, *, timeout_s: float) -> tuple[Result, int]:
        """Run one job; return its result and the peak PSS of all its processes in bytes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(job.to_line().encode() + b"\n")
        self._process.stdin.flush()
        peak = 0
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not selector.select(SAMPLE_S):
                peak = max(peak, pss_bytes(self._process.pid))
                if time.monotonic() > deadline:
                    raise ProcessFailed(
                        f"{job.arm} on {job.workload} returned no result within {timeout_s:.0f} s"
                    )
        peak = max(peak, pss_bytes(self._process.pid))
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise ProcessFailed(
                f"{job.arm} on {job.workload} ended with status {status}; see results/{Path(self._log.name).name}"
            )
        return Result.from_line(line.decode()), peak

    def close(self) -> None:
        """Stop the process and all its children."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Loading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
