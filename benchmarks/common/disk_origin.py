# SPDX-License-Identifier: Apache-2.0
"""A disk that is really slow: an ext4 image on a loop device, throttled by the kernel, counted by the device.

A throttle inside a loader would slow only that loader. Here the kernel delays every read of every process in one
control group, and a memory limit keeps the page cache below the data. Needs root, loop devices and cgroup v1 with
``blkio`` and ``memory``; says so where one is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

CGROUPS = Path("/sys/fs/cgroup")


class Unavailable(Exception):
    """This machine cannot have such a disk; the message says what is missing."""


@dataclass(frozen=True)
class Throttle:
    """How slow the disk is and how much of it may stay in memory."""

    bytes_per_s: int
    reads_per_s: int
    #: Page cache and memory of all processes in the group.
    memory_bytes: int


def check() -> None:
    """Say what is missing, before anything is made.

    Raises:
        Unavailable: with the reason and the remedy.
    """
    if os.geteuid() != 0:
        raise Unavailable("a throttled disk needs root: run as root, or measure the S3 workloads only")
    for controller in ("blkio", "memory"):
        if not (CGROUPS / controller / "cgroup.procs").exists():
            remedy = "boot with `systemd.unified_cgroup_hierarchy=0`, or measure the S3 workloads only"
            raise Unavailable(f"a throttled disk needs cgroup v1 with {controller} under {CGROUPS}: {remedy}")
    if not Path("/dev/loop-control").exists():
        raise Unavailable("a throttled disk needs loop devices: `modprobe loop`")
    for tool in ("mkfs.ext4", "losetup", "mount", "umount"):
        if shutil.which(tool) is None:
            raise Unavailable(f"a throttled disk needs {tool}: `apt-get install e2fsprogs mount`")


class Disk:
    """A mounted, throttled disk; everything is taken apart at the end of the ``with`` block."""

    def __init__(self, image: Path, size_bytes: int, name: str) -> None:
        """Make or reuse ``image``; ``name`` is the control groups' and tells runs apart."""
        check()
        self._image = image
        self._groups = [CGROUPS / controller / name for controller in ("blkio", "memory")]
        self.folder = image.with_suffix(".mount")
        self._device = ""
        if not image.exists():
            image.parent.mkdir(parents=True, exist_ok=True)
            with image.open("wb") as file:
                file.truncate(size_bytes)
            _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))

    def __enter__(self) -> Disk:
        self.folder.mkdir(exist_ok=True)
        self._device = _run("losetup", "--find", "--show", str(self._image))
        try:
            _run("mount", "-o", "noatime", self._device, str(self.folder))
            for group in self._groups:
                group.mkdir(exist_ok=True)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmount and detach; the image stays for the next run. Whoever has joined leaves."""
        if all(group.is_dir() for group in self._groups):
            self._move(os.getpid(), [group.parent for group in self._groups])
        if self.folder.is_mount():
            _run("umount", str(self.folder))
        if self._device:
            _run("losetup", "--detach", self._device)
            self._device = ""
        for group in self._groups:
            if group.is_dir():
                group.rmdir()

    def throttle(self, throttle: Throttle) -> None:
        """Set limits for the processes of the group."""
        device = (Path("/sys/block") / Path(self._device).name / "dev").read_text().strip()
        blkio, memory = self._groups
        (blkio / "blkio.throttle.read_bps_device").write_text(f"{device} {throttle.bytes_per_s}")
        (blkio / "blkio.throttle.read_iops_device").write_text(f"{device} {throttle.reads_per_s}")
        (memory / "memory.limit_in_bytes").write_text(str(throttle.memory_bytes))

    def enter_command(self, command: list[str]) -> list[str]:
        """``command``, started inside of the control groups, with all its children."""
        joins = "; ".join(f"echo $$ > {group}/cgroup.procs" for group in self._groups)
        return ["sh", "-c", f'{joins}; exec "$@"', "sh", *command]

    def join(self) -> None:
        """Put this process into the control groups, with all children that it starts from now on."""
        self._move(os.getpid(), self._groups)

    def _move(self, process: int, groups: list[Path]) -> None:
        for group in groups:
            (group / "cgroup.procs").write_text(str(process))

    def drop_caches(self) -> None:
        """Begin cold: a fresh mount has no pages. Pages of the image itself may stay, the throttle is above them."""
        os.sync()
        _run("umount", str(self.folder))
        _run("mount", "-o", "noatime", self._device, str(self.folder))

    def bytes_read(self) -> int:
        """Bytes that the device has delivered since it exists; sectors of 512 bytes in any case."""
        fields = (Path("/sys/block") / Path(self._device).name / "stat").read_text().split()
        return int(fields[2]) * 512


def _run(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise Unavailable(f"`{' '.join(command)}` failed: {ended.stderr.strip()}")
    return ended.stdout.strip()
