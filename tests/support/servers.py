# SPDX-License-Identifier: Apache-2.0
"""Real origins: an S3 server that checks signatures, and a testbed that throttles, injects faults and counts.

The testbed is a proxy in front of the server, so bytes and requests are counted independently of the loader.
"""

from __future__ import annotations

import json
import pathlib
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import boto3
import botocore.config

from support.processes import tool
from support.waiting import WATCHDOG, wait_until

ACCESS, SECRET = "test", "testsecret"


class Testbed:
    """`foresee-testbed` with its limits, faults and counters."""

    __test__ = False

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [tool("foresee-testbed"), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url: str = json.loads(self._process.stdout.readline())["url"]

    @staticmethod
    def serving(folder: pathlib.Path) -> Testbed:
        """Serve the subfolders of `folder` as buckets, without checks of signatures."""
        return Testbed("serve", str(folder))

    @staticmethod
    def in_memory() -> Testbed:
        """Serve buckets in memory with any keys, without checks of signatures."""
        return Testbed("memory")

    @staticmethod
    def before(url: str) -> Testbed:
        """Start a proxy in front of the server at `url`."""
        return Testbed("proxy", url)

    def counters(self) -> dict[str, Any]:
        """Return the counters since `reset`."""
        return dict(self._call("counters"))

    def reset(self) -> None:
        """Set the counters to 0, and remove limits and faults."""
        self.limits()
        self.faults()
        self._call("reset", b"")

    def limits(self, *, bytes_per_s: int = 0, requests_per_s: int = 0, latency_ms: float = 0) -> None:
        """Set the limits; 0: unlimited."""
        limits = {"bytes_per_s": bytes_per_s, "requests_per_s": requests_per_s, "latency_ms": latency_ms}
        self._call("limits", json.dumps(limits).encode())

    def faults(self, *rules: dict[str, Any]) -> None:
        """Replace the fault rules."""
        self._call("faults", json.dumps(rules).encode())

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the process within the block; after it, the process answers what it has received meanwhile."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.communicate(timeout=WATCHDOG)

    def _call(self, what: str, body: bytes | None = None) -> Any:
        with urllib.request.urlopen(f"{self.url}/-/{what}", data=body, timeout=WATCHDOG) as answer:
            return json.load(answer)


class MemoryBucket(AbstractContextManager["MemoryBucket"]):
    """The bucket ``b`` of a testbed in memory, with ``objects``; ``rules`` are the testbed's faults."""

    def __init__(self, objects: Mapping[str, bytes], *rules: dict[str, Any]) -> None:
        self._testbed = Testbed.in_memory()
        for key, body in objects.items():
            url = f"{self._testbed.url}/b/{urllib.parse.quote(key, safe='')}"
            request = urllib.request.Request(url, data=body, method="PUT")
            urllib.request.urlopen(request, timeout=WATCHDOG).close()
        self._testbed.faults(*rules)
        self.options = {
            "endpoint": self._testbed.url,
            "access_key_id": "a",
            "secret_access_key": "b",
            "region": "us-east-1",
        }

    def faults(self, *rules: dict[str, Any]) -> None:
        """Replace the testbed's faults."""
        self._testbed.faults(*rules)

    def __exit__(self, *error: object) -> None:
        self._testbed.close()


class Gateway:
    """versitygw: an S3 server on a directory, which checks every signature."""

    def __init__(self, folder: pathlib.Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [tool("versitygw"), "--access", ACCESS, "--secret", SECRET, "--port", f"127.0.0.1:{port}"]
        command += ["--keep-alive", "--quiet", "--health", "/health", "posix", str(folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers, what="the start of versitygw")

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(timeout=WATCHDOG)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


class Bucket:
    """One bucket of the gateway, behind the testbed."""

    def __init__(self, gateway: Gateway, testbed: Testbed, name: str) -> None:
        self.testbed = testbed
        self.name = name
        self.uri = f"s3://{name}/train"
        self.options = {
            "endpoint": testbed.url,
            "access_key_id": ACCESS,
            "secret_access_key": SECRET,
            "region": "us-east-1",
        }
        # Directly to the gateway, so that requests of the test are not counted.
        self._client = boto3.client(
            "s3",
            endpoint_url=gateway.url,
            aws_access_key_id=ACCESS,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            config=botocore.config.Config(retries={"max_attempts": 1}),
        )
        self._client.create_bucket(Bucket=name)

    def put(self, key: str, body: bytes) -> None:
        """Put an object below the prefix `train`."""
        self._client.put_object(Bucket=self.name, Key=f"train/{key}", Body=body)

    def put_folder(self, folder: pathlib.Path) -> None:
        """Put all files of a local tree."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(path.relative_to(folder).as_posix(), path.read_bytes())

    def delete(self, key: str) -> None:
        """Remove an object below the prefix `train`."""
        self._client.delete_object(Bucket=self.name, Key=f"train/{key}")
