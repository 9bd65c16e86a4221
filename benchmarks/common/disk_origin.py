# SPDX-License-Identifier: Apache-2.0
"""A slow disk: an ext4 image on a loop device that the kernel throttles and whose reads the device counts.

The kernel delays every read of every process in one control group, so all loaders are slowed alike. A memory limit
keeps the page cache smaller than the data. Needs root, loop devices, and cgroup v1 with ``blkio`` and ``memory``.
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
    """This host cannot provide a throttled disk; the message names what is missing."""


@dataclass(frozen=True)
class Throttle:
    """Limits of the disk and of the memory that its readers use."""

    bytes_per_s: int
    reads_per_s: int
    #: Limit of the page cache and the memory of all processes in the group together.
    memory_bytes: int


def check() -> None:
    """Check the requirements before anything is created.

    Raises:
        Unavailable: a requirement is missing; the message has the remedy.
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
    """A mounted, throttled disk; it is unmounted and detached at the end of the ``with`` block."""

    def __init__(self, image: Path, size_bytes: int, name: str) -> None:
        """Create or reuse ``image``; ``name`` names the control groups and must be unique per run."""
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
        """Leave the control groups, unmount and detach; the image is kept for the next run."""
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
        """Return a command that runs ``command`` and its children inside the control groups."""
        joins = "; ".join(f"echo $$ > {group}/cgroup.procs" for group in self._groups)
        return ["sh", "-c", f'{joins}; exec "$@"', "sh", *command]

    def join(self) -> None:
        """Move this process into the control groups; children that it starts later are in them too."""
        self._move(os.getpid(), self._groups)

    def _move(self, process: int, groups: list[Path]) -> None:
        for group in groups:
            (group / "cgroup.procs").write_text(str(process))

    def drop_caches(self) -> None:
        """Drop cached pages by mounting again. Pages of the image may remain: the throttle applies above them."""
        os.sync()
        _run("umount", str(self.folder))
        _run("mount", "-o", "noatime", self._device, str(self.folder))

    def bytes_read(self) -> int:
        """Return the bytes that the device has delivered so far; a sector of ``stat`` always has 512 bytes."""
        fields = (Path("/sys/block") / Path(self._device).name / "stat").read_text().split()
        return int(fields[2]) * 512


def _run(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise Unavailable(f"`{' '.join(command)}` failed: {ended.stderr.strip()}")
    return ended.stdout.strip()
