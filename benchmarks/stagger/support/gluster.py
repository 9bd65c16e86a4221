# SPDX-License-Identifier: Apache-2.0
"""A GlusterFS volume with one brick on a throttled disk. A server and a client host share a fast link.

The client's own caches are off, so jobs share only the page cache. GlusterFS must be installed; other volumes of this
host are not touched.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from common.disk_origin import Disk, Throttle, Unavailable
from common.testbed import program

from .models import Size
from .origin import MEMORY_BYTES, READS_PER_S, Mount, image_bytes

PROGRAMS = ("glusterd", "gluster", "mount.glusterfs", "nsenter")
SEARCH_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
VOLUME = "foresee-bench"
#: Features of the client that would cache files or revalidate them.
DISABLED_FEATURES = ("quick-read", "io-cache", "read-ahead", "readdir-ahead")
TIMEOUT_S = 60.0


class Gluster(Mount):
    """The mounted volume; it is removed at the end of the ``with`` block."""

    def __init__(self, home: Path, size: Size) -> None:
        missing = [name for name in PROGRAMS if shutil.which(name, path=SEARCH_PATH) is None]
        if missing:
            raise Unavailable(
                f"{', '.join(missing)} missing: `apt-get install glusterfs-server glusterfs-client util-linux`, as root"
            )
        self._at = home / "gluster.mount"
        image = home / f"gluster-{size.samples}.ext4"
        self._disk = Disk(image, image_bytes(size), "foresee-gluster")
        self._brick = self._disk.folder / "brick"
        self._stack = ExitStack()
        super().__init__(self._at, "glusterfs", size)

    def __enter__(self) -> Gluster:
        with ExitStack() as stack:
            stack.enter_context(self._disk)
            server, client, address = _hosts(stack)
            shutil.rmtree(self._brick, ignore_errors=True)
            self._brick.mkdir()
            self._at.mkdir(parents=True, exist_ok=True)
            # Bricks are child processes of the daemon, so the throttle applies to them too.
            daemon = ["ip", "netns", "exec", server, "glusterd", "-N"]
            stack.callback(_stop, subprocess.Popen(self._disk.enter_command(daemon)))
            volume = ["ip", "netns", "exec", server, "gluster", "--mode=script", "volume"]
            _until([*volume, "info"])
            # A benchmark that was killed leaves its volume behind.
            for words in (["stop", VOLUME, "force"], ["delete", VOLUME]):
                subprocess.run([*volume, *words], check=False, capture_output=True)
            _run([*volume, "create", VOLUME, f"{address}:{self._brick}", "force"])
            stack.callback(_run, [*volume, "delete", VOLUME])
            for name in DISABLED_FEATURES:
                _run([*volume, "set", VOLUME, f"performance.{name}", "off"])
            _run([*volume, "start", VOLUME])
            stack.callback(_run, [*volume, "stop", VOLUME, "force"])
            options = "fopen-keep-cache,attribute-timeout=3600,entry-timeout=3600"
            mount = ["mount", "-t", "glusterfs", "-o", options, f"{address}:/{VOLUME}", str(self._at)]
            _run(["nsenter", f"--net=/run/netns/{client}", *mount])
            stack.callback(_run, ["umount", "--lazy", str(self._at)])
            super().__enter__()
            self._disk.throttle(Throttle(self._size.bytes_per_s, READS_PER_S, MEMORY_BYTES))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def data(self) -> list[Path]:
        """Folders of the client and of the server, which share the page cache of this host."""
        return [self.folder, self._brick / self.folder.name]


def _hosts(stack: ExitStack) -> tuple[str, str, str]:
    """Create hosts that live as long as ``stack``; return both namespaces and the server's address."""
    command = [str(program("foresee-testbed", "make setup")), "hosts", "gs", "gc", "--congestion", "cubic"]
    hosts = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert hosts.stdin is not None
    assert hosts.stdout is not None
    stack.callback(hosts.wait)
    stack.callback(hosts.stdin.close)
    answer = hosts.stdout.readline()
    if not answer:
        raise Unavailable("hosts in namespaces need root and iproute2")
    made: dict[str, Any] = json.loads(answer)["hosts"]
    return made["gs"]["namespace"], made["gc"]["namespace"], made["gs"]["address"]


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


def _run(command: list[str]) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise Unavailable(f"`{' '.join(command)}` failed: {(ended.stderr or ended.stdout).strip()}")


def _until(command: list[str]) -> None:
    """Repeat ``command`` until it succeeds."""
    deadline = time.monotonic() + TIMEOUT_S
    while subprocess.run(command, capture_output=True, check=False).returncode != 0:
        if time.monotonic() > deadline:
            raise Unavailable(f"`{' '.join(command)}` did not succeed within {TIMEOUT_S:.0f} s")
        time.sleep(0.2)
