# SPDX-License-Identifier: Apache-2.0
"""Origin of the images: a local process that throttles and counts, or a user's bucket.

Both loaders get it through environment variables that boto3 and Foresee share, so that they use the same origin.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]
TESTBED = ROOT / ".tools" / "bin" / "foresee-testbed"


@dataclass(frozen=True)
class Limits:
    """Limits of the local origin over all ranks and connections; 0: no limit."""

    requests_per_s: int
    bytes_per_s: int
    latency_ms: float

    def fastest_s(self, samples: int, data_bytes: int) -> float:
        """Return the least time of one pass over all samples."""
        by_requests = samples / self.requests_per_s if self.requests_per_s else 0.0
        by_bytes = data_bytes / self.bytes_per_s if self.bytes_per_s else 0.0
        return max(by_requests, by_bytes, self.latency_ms / 1e3)

    def __str__(self) -> str:
        return (
            f"{self.requests_per_s or 'any number of'} requests/s, "
            f"{self.bytes_per_s / 1e6 or 'any number of'} MB/s, {self.latency_ms:g} ms"
        )


class Bucket:
    """A user's bucket, without limits and counters."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.counters: str | None = None
        self.environment: Mapping[str, str] = dict(os.environ)

    def __enter__(self) -> Bucket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing."""


class Local(Bucket):
    """A ``foresee-testbed`` on ``folder``; it ends with this process, which closes its standard input."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        super().__init__(f"s3://{folder.name}")
        self._command = [
            *(str(TESTBED), "serve", str(folder.parent)),
            *("--requests-per-s", str(limits.requests_per_s)),
            *("--bytes-per-s", str(limits.bytes_per_s)),
            *("--latency-ms", str(limits.latency_ms)),
        ]

    def __enter__(self) -> Local:
        # A separate session, so that Ctrl-C does not end it before the ranks.
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None, "a pipe"
        line = self._process.stdout.readline()
        if not line:
            raise OSError(f"{' '.join(self._command)} ended with status {self._process.wait()}")
        url: str = json.loads(line)["url"]
        self.counters = f"{url}/-/counters"
        others = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self.environment = {
            **others,
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "demo",
            "AWS_SECRET_ACCESS_KEY": "demo",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None, "a pipe"
        self._process.stdin.close()
        self._process.wait()
