# SPDX-License-Identifier: Apache-2.0
"""A GlusterFS of one brick: server and client are hosts of their own, and the link between them is the origin's rate.

The client keeps nothing but what the page cache has, which jobs share: its own caches are off. Refuses to install anything,
and to touch other volumes of this machine.
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

from common.disk_origin import Unavailable
from common.testbed import program

from .models import Size
from .origin import Mount

PROGRAMS = ("glusterd", "gluster", "mount.glusterfs", "nsenter")
VOLUME = "foresee-bench"
#: Where the client would keep files, and ask once more whether they have changed.
OFF = ("quick-read", "io-cache", "read-ahead", "readdir-ahead")
#: The frame of what crosses the link: 1448 bytes of 1514 are the client's.
GOODPUT = 1448 / 1514
PATIENCE_S = 60.0


class Gluster(Mount):
    """The mounted volume; all of it is taken apart at the end of the ``with`` block."""

    def __init__(self, home: Path, size: Size) -> None:
        missing = [
            name for name in PROGRAMS if shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin") is None
        ]
        if missing:
            raise Unavailable(
                f"{', '.join(missing)} missing: `apt-get install glusterfs-server glusterfs-client util-linux`, as root"
            )
        self._at = home / "gluster.mount"
        self._brick = home / "gluster.brick"
        self._rate = f"{8 * size.bytes_per_s / GOODPUT / 1e3:.0f}kbit"
        self._stack = ExitStack()
        super().__init__(self._at, "glusterfs", size)

    def __enter__(self) -> Gluster:
        with ExitStack() as stack:
            hosts = stack.enter_context(
                subprocess.Popen(
                    [
                        str(program("foresee-testbed", "make setup")),
                        "hosts",
                        "gs",
                        "gc",
                        "--queue",
                        "1s",
                        "--congestion",
                        "cubic",
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            told = self._ask(hosts, "")["hosts"]
            server, client = (told[name]["namespace"] for name in ("gs", "gc"))
            address = told["gs"]["address"]
            stack.callback(self._end, hosts)
            daemon = subprocess.Popen(["ip", "netns", "exec", server, "glusterd", "-N"])
            stack.callback(_stop, daemon)
            self._brick.mkdir(parents=True, exist_ok=True)
            self._at.mkdir(parents=True, exist_ok=True)
            volume = ["ip", "netns", "exec", server, "gluster", "--mode=script", "volume"]
            _until([*volume, "info"])
            subprocess.run([*volume, "stop", VOLUME, "force"], check=False, capture_output=True)
            subprocess.run([*volume, "delete", VOLUME], check=False, capture_output=True)
            shutil.rmtree(self._brick)
            self._brick.mkdir()
            _run([*volume, "create", VOLUME, f"{address}:{self._brick}", "force"])
            stack.callback(_run, [*volume, "delete", VOLUME])
            for name in OFF:
                _run([*volume, "set", VOLUME, f"performance.{name}", "off"])
            _run([*volume, "start", VOLUME])
            stack.callback(_run, [*volume, "stop", VOLUME, "force"])
            enter = ["nsenter", f"--net=/run/netns/{client}"]
            _run(
                [
                    *enter,
                    "mount",
                    "-t",
                    "glusterfs",
                    "-o",
                    "fopen-keep-cache,attribute-timeout=3600,entry-timeout=3600",
                    f"{address}:/{VOLUME}",
                    str(self._at),
                ]
            )
            stack.callback(_run, ["umount", "--lazy", str(self._at)])
            super().__enter__()
            self._ask(hosts, f"rate gc {self._rate}")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _ask(self, hosts: subprocess.Popen[str], line: str) -> dict[str, Any]:
        assert hosts.stdin is not None
        assert hosts.stdout is not None
        if line:
            hosts.stdin.write(line + "\n")
            hosts.stdin.flush()
        answer = hosts.stdout.readline()
        if not answer:
            raise Unavailable("hosts of their own need root and iproute2")
        told: dict[str, Any] = json.loads(answer)
        if told.get("ok") is False:
            raise Unavailable(f"`{line}` failed: {told.get('error')}")
        return told

    def _end(self, hosts: subprocess.Popen[str]) -> None:
        assert hosts.stdin is not None
        hosts.stdin.close()
        hosts.wait()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


def _run(command: list[str]) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise Unavailable(f"`{' '.join(command)}` failed: {(ended.stderr or ended.stdout).strip()}")


def _until(command: list[str]) -> None:
    """Until it succeeds."""
    deadline = time.monotonic() + PATIENCE_S
    while subprocess.run(command, capture_output=True, check=False).returncode != 0:
        if time.monotonic() > deadline:
            raise Unavailable(f"`{' '.join(command)}` does not succeed")
        time.sleep(0.2)
