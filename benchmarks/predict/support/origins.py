# SPDX-License-Identifier: Apache-2.0
"""Where the samples lie: a slow mount, or a slow bucket, of one testbed; slow for every process alike.

Nothing that is read from the mount stays in the page cache, so that this is no tier: whoever reads, reads the origin.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from common.disk_origin import Unavailable
from common.testbed import Testbed

from .setups import SetUp, Truth, fingerprint, make

BUCKET = "data"
FUSE = Path("/dev/fuse")
#: Unused time that the origin lets catch up later: a pipe has none, but its timers wake up a little late.
BURST_MS = 0.2


@dataclass(frozen=True)
class Place:
    """How a rank reaches the samples."""

    #: For a loader: a folder, or ``s3://``.
    uri: str
    #: For a plain read: a folder, or what stands before a sample's name in a request.
    plain: str
    truth: Truth
    options: dict[str, str] = field(default_factory=dict)


class Limits:
    """An origin's limits, set and lifted."""

    def __init__(self, testbed: Testbed, setup: SetUp) -> None:
        self._testbed = testbed
        self._setup = setup

    def begin(self) -> None:
        """From now on it is slow."""
        self._testbed.limit(
            bytes_per_s=self._setup.bytes_per_s,
            requests_per_s=self._setup.requests_per_s,
            latency_ms=self._setup.latency_ms,
        )

    def end(self) -> None:
        """It is as quick as it can be."""
        self._testbed.limit()


@contextlib.contextmanager
def placed(setup: SetUp, home: Path, seed: int) -> Iterator[tuple[Place, Limits]]:
    """The samples of a set-up, without limits so far; a folder ``home`` keeps them from call to call.

    Raises:
        Unavailable: this machine cannot have such an origin.
    """
    name = fingerprint(setup, seed)
    folder = home / "predict-buckets" / BUCKET / name
    truth = make(folder, setup, seed)
    at = _mount_point(home / "predict-mount") if setup.origin == "mount" else None
    mounted = ["--mount", str(at)] if at else []
    with Testbed("serve", str(folder.parents[1]), *mounted, "--burst-ms", str(BURST_MS)) as testbed:
        limits = Limits(testbed, setup)
        if at:
            samples = str(at / BUCKET / name)
            yield Place(samples, samples, truth), limits
            return
        options = {
            "endpoint": testbed.url,
            "region": "us-east-1",
            "access_key_id": "test",
            "secret_access_key": "testsecret",
            "allow_http": "true",
        }
        plain = f"{testbed.url}/{BUCKET}/{name}/"
        yield Place(f"s3://{BUCKET}/{name}/", plain, truth, options), limits


def _mount_point(at: Path) -> Path:
    if os.geteuid() != 0 or not FUSE.exists():
        raise Unavailable(
            f"a mount needs root and {FUSE}: run as root, or measure the bucket set-ups only (--set-ups)"
        )
    # A testbed that was killed leaves its mount behind, without an answer to anything.
    subprocess.run(["umount", "--lazy", "--quiet", str(at)], check=False, capture_output=True)
    at.mkdir(exist_ok=True)
    return at
