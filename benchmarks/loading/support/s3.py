# SPDX-License-Identifier: Apache-2.0
"""An S3 server on a local folder with the throttled, counting proxy before it."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
BIN = ROOT / ".tools" / "bin"
BUCKET = "data"
ACCESS, SECRET = "test", "testsecret"


class Testbed:
    """A running ``foresee-testbed``; ends with the ``with`` block, or with this process."""

    def __init__(self, *arguments: str) -> None:
        command = [str(program("foresee-testbed", "make setup")), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(command)} ended with status {self._process.wait()}")
        self.url: str = json.loads(line)["url"]

    def counters(self) -> dict[str, Any]:
        """What went through since the last reset."""
        return dict(self._ask("counters"))

    def reset(self) -> None:
        """Set all counters to 0."""
        self._ask("reset", b"")

    def limit(self, *, bytes_per_s: int = 0, requests_per_s: int = 0, latency_ms: float = 0) -> None:
        """Change the limits; 0 lifts one."""
        limits = {"bytes_per_s": bytes_per_s, "requests_per_s": requests_per_s, "latency_ms": latency_ms}
        self._ask("limits", json.dumps(limits).encode())

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

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        with urllib.request.urlopen(f"{self.url}/-/{path}", data=body, timeout=10) as answer:
            return json.load(answer)


class Server:
    """A versitygw whose buckets are the folders below ``folder``."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        address = f"127.0.0.1:{port}"
        keys = ["--access", ACCESS, "--secret", SECRET]
        options = ["--port", address, "--keep-alive", "--quiet", "--health", "/health"]
        command = [str(program("versitygw", "make setup")), *keys, *options, "posix", str(folder)]
        self.url = f"http://{address}"
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._wait()

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"versitygw ended with status {self._process.returncode}")
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=1):
                    return
            except OSError:
                time.sleep(0.02)
        self.close()
        raise RuntimeError("versitygw did not answer within 20 s")


def tag(folder: Path) -> None:
    """Give every file below a bucket's folder the ETag that an upload would have given it.

    versitygw serves files that were put into its folder, but keeps ETags in an extended attribute that only uploads
    set; without one, clients that read conditionally refuse the object.
    """
    for file in folder.rglob("*"):
        if file.is_file():
            os.setxattr(
                file,
                "user.etag",
                f'"{hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()}"'.encode(),
            )


def program(name: str, remedy: str) -> Path:
    """A program that set-up installed."""
    path = BIN / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: run `{remedy}`")
    return path
