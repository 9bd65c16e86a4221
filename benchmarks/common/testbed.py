# SPDX-License-Identifier: Apache-2.0
"""Run ``foresee-testbed``: an origin, or a proxy in front of one, with limits and counters."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

BIN = Path(__file__).resolve().parents[2] / ".tools" / "bin"


class Testbed:
    """A running ``foresee-testbed``; it ends with the ``with`` block or with this process."""

    def __init__(self, *arguments: str) -> None:
        command = [str(program("foresee-testbed", "make setup")), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(command)} ended with status {self._process.wait()}")
        self.url: str = json.loads(line)["url"]

    def counters(self) -> dict[str, Any]:
        """Return the counters since the last reset."""
        return dict(self._request("counters"))

    def reset(self) -> None:
        """Set all counters to 0."""
        self._request("reset", b"")

    def limit(
        self,
        *,
        bytes_per_s: int = 0,
        requests_per_s: int = 0,
        refuse_above_per_s: int = 0,
        latency_ms: float = 0,
    ) -> None:
        """Set the limits; 0 means no limit.

        Requests above ``requests_per_s`` wait, those above ``refuse_above_per_s`` get 503 ``SlowDown``.
        """
        limits = {
            "bytes_per_s": bytes_per_s,
            "requests_per_s": requests_per_s,
            "refuse_above_per_s": refuse_above_per_s,
            "latency_ms": latency_ms,
        }
        self._request("limits", json.dumps(limits).encode())

    def faults(self, *rules: dict[str, Any]) -> None:
        """Replace the rules for injected faults."""
        self._request("faults", json.dumps(rules).encode())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> Testbed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _request(self, path: str, body: bytes | None = None) -> Any:
        with urllib.request.urlopen(f"{self.url}/-/{path}", data=body, timeout=10) as response:
            return json.load(response)


def program(name: str, remedy: str) -> Path:
    """Return the path of a program that setup installed; ``remedy`` is the command that installs it."""
    path = BIN / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: run `{remedy}`")
    return path
