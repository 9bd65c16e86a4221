# SPDX-License-Identifier: Apache-2.0
"""An S3 server on a local folder."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from common.testbed import program

BUCKET = "data"
ACCESS, SECRET = "test", "testsecret"


class Server:
    """A versitygw process whose buckets are the subfolders of ``folder``."""

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
        """Stop the process."""
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
    """Set the ETag of every file below a bucket's folder as an upload would.

    versitygw stores ETags in an extended attribute that only uploads set. Without it, clients with conditional reads
    reject files that were written directly into the folder.
    """
    for file in folder.rglob("*"):
        if file.is_file():
            os.setxattr(
                file,
                "user.etag",
                f'"{hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()}"'.encode(),
            )
