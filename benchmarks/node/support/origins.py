# SPDX-License-Identifier: Apache-2.0
"""Origins of the samples: a bucket behind the counting proxy, or files in memory."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from common import s3, samples
from common.testbed import Testbed

from foresee import _native

from .sizes import LATENCY_MS, Size

#: Unused requests of the cap that may follow later: a bucket of one second.
CAP_BURST_MS = 1000


@dataclass(frozen=True)
class Counted:
    """Counts of the proxy since its last reset."""

    bytes: int = 0
    requests: int = 0
    #: Requests of listings among them.
    listings: int = 0
    #: Requests with the answer 503.
    refused: int = 0


@dataclass
class Origin:
    """Samples of one part, and their counters."""

    uri: str
    #: Path of the index, built before the runs.
    index: str
    truth: samples.Truth
    #: Variables with which a process reaches the bucket.
    environment: dict[str, str] = field(default_factory=dict)
    _proxy: Testbed | None = None

    def begin(self, size: Size) -> None:
        """Apply the limits of ``size``, and reset the counters."""
        if self._proxy is not None:
            self.set_cap(size, size.caps[0])
            self._proxy.reset()

    def set_cap(self, size: Size, cap: int) -> None:
        """Refuse requests above ``cap`` per second; 0: none."""
        assert self._proxy is not None
        self._proxy.limit(bytes_per_s=size.bytes_per_s, refuse_above_per_s=cap, latency_ms=LATENCY_MS)

    def counted(self) -> Counted:
        """Return the counts since ``begin``; zeros for files in memory."""
        if self._proxy is None:
            return Counted()
        counters = self._proxy.counters()
        refused = sum(statuses.get("503", 0) for statuses in counters["requests"].values())
        return Counted(counters["body_bytes"], counters["requests_total"], counters["lists"], refused)


@contextlib.contextmanager
def origin_of(size: Size, home: Path, seed: int) -> Iterator[Origin]:
    """Serve the samples of a part.

    Args:
        size: the part.
        home: folder on a fast disk where objects are kept for later runs.
        seed: of the samples.
    """
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foresee-bench-")))
        index = str(work / "data.fidx")
        if not size.is_bucket:
            memory = stack.enter_context(tempfile.TemporaryDirectory(prefix="foresee-bench-", dir="/dev/shm"))
            folder = Path(memory) / "samples"
            truth = samples.make(folder, size.shape(seed))
            _build(str(folder), index, {})
            yield Origin(str(folder), index, truth)
            return
        shape = size.shape(seed)
        name = samples.fingerprint(shape)
        folder = home / "buckets" / s3.BUCKET / name
        is_new = not folder.with_name(f"{name}.json").exists()
        truth = samples.make(folder, shape)
        if is_new:
            s3.tag(folder)
        server = stack.enter_context(s3.Server(folder.parents[1]))
        burst = ("--burst-ms", str(CAP_BURST_MS)) if size.caps[0] else ()
        proxy = stack.enter_context(Testbed("proxy", server.url, *burst))
        uri = f"s3://{s3.BUCKET}/{name}/"
        keys = {"access_key_id": s3.ACCESS, "secret_access_key": s3.SECRET}
        _build(uri, index, {"endpoint": proxy.url, "region": "us-east-1", "allow_http": "true", **keys})
        environment = {
            "AWS_ACCESS_KEY_ID": s3.ACCESS,
            "AWS_SECRET_ACCESS_KEY": s3.SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": proxy.url,
            "AWS_ALLOW_HTTP": "true",
        }
        yield Origin(uri, index, truth, environment, proxy)


def _build(uri: str, index: str, options: dict[str, str]) -> None:
    _native.Index.build(uri, layout="folder", extensions=[".bin"], options=options).save(index)
