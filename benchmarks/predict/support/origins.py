# SPDX-License-Identifier: Apache-2.0
"""Origins of the samples: a slow mount or a slow bucket of the testbed, with the same limits for all processes.

Reads from the mount are not cached in the page cache, so every read reaches the origin.
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
#: Burst of the origin's limits. A real link has none; this compensates for timers that fire late.
BURST_MS = 0.2


@dataclass(frozen=True)
class Place:
    """Location of the samples."""

    #: For a loader: a folder, or ``s3://``.
    uri: str
    #: For a plain read: a folder, or the URL prefix of the samples' names.
    plain: str
    truth: Truth
    options: dict[str, str] = field(default_factory=dict)


class Limits:
    """Limits of an origin."""

    def __init__(self, testbed: Testbed, setup: SetUp) -> None:
        self._testbed = testbed
        self._setup = setup

    def apply(self) -> None:
        """Apply the limits of the set-up."""
        self._testbed.limit(
            bytes_per_s=self._setup.bytes_per_s,
            requests_per_s=self._setup.requests_per_s,
            latency_ms=self._setup.latency_ms,
        )

    def lift(self) -> None:
        """Remove all limits."""
        self._testbed.limit()


@contextlib.contextmanager
def placed(setup: SetUp, home: Path, seed: int) -> Iterator[tuple[Place, Limits]]:
    """Serve the samples of a set-up, without limits at first; samples in the folder ``home`` are reused by later calls.

    Raises:
        Unavailable: this host cannot provide such an origin.
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
    # A testbed that was killed leaves a mount behind that does not respond.
    subprocess.run(["umount", "--lazy", "--quiet", str(at)], check=False, capture_output=True)
    at.mkdir(exist_ok=True)
    return at
