# SPDX-License-Identifier: Apache-2.0
"""An origin that the kernel throttles: a file system on a loop device, and a control group with limited reads.

Every read of the group's processes waits in the block layer, including read-ahead and metadata. The kernel limits bytes
and read requests, not opens, and counts them in slices of about 0.1 s. This needs root, loop devices, and cgroups with
``blkio`` (version 1) or ``io`` (version 2). Everything is removed at the end of its block.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from foresee.errors import ConfigError, ForeseeError
from foresee.storage.bench.files import block_signals
from foresee.storage.bench.throttle import Throttle

__all__ = ["ControlGroup", "LoopDevice", "attach_device", "missing_requirement"]

_CGROUPS = "/sys/fs/cgroup"
_TOOLS = ("mkfs.ext4", "losetup", "mount", "umount")
#: Space in addition to the files: ext4's tables.
_SHARE, _MORE_BYTES, _MORE_INODES = 1.1, 96 << 20, 64


def missing_requirement(cgroups: str = _CGROUPS) -> str | None:
    """Return the requirement that this machine or user lacks, or None."""
    if os.geteuid() != 0:
        return "only root may attach a loop device; run as root, or use --throttle-by reader"
    if not os.path.exists("/dev/loop-control"):
        return "there are no loop devices; load the kernel's module loop"
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            return f"{tool} is not installed; e2fsprogs and mount have it"
    if _version(cgroups) is None:
        return f"no cgroup controller blkio or io below {cgroups}; boot with one of them"
    return None


def _version(cgroups: str) -> int | None:
    """Return the version of the cgroups that can throttle, or None."""
    if os.path.exists(os.path.join(cgroups, "blkio", "cgroup.procs")):
        return 1
    with (
        contextlib.suppress(OSError),
        open(os.path.join(cgroups, "cgroup.controllers"), encoding="ascii") as file,
    ):
        if "io" in file.read().split():
            return 2
    return None


class ControlGroup:
    """A control group, for a ``with`` block in which its processes end."""

    def __init__(self, cgroups: str = _CGROUPS) -> None:
        version = _version(cgroups)
        if version is None:
            raise ConfigError(f"no cgroup controller blkio or io below {cgroups}")
        self._is_v2 = version == 2
        top = cgroups if self._is_v2 else os.path.join(cgroups, "blkio")
        if self._is_v2:
            _write(os.path.join(top, "cgroup.subtree_control"), "+io")
        self._folder = os.path.join(top, f"foresee-bench-{os.getpid()}")
        os.makedirs(self._folder, exist_ok=True)

    def __enter__(self) -> ControlGroup:
        return self

    def __exit__(self, *_: object) -> None:
        os.rmdir(self._folder)

    def add(self, pids: Sequence[int]) -> None:
        """Add processes with all their threads."""
        for pid in pids:
            _write(os.path.join(self._folder, "cgroup.procs"), str(pid))

    def limit(self, device: str, throttle: Throttle) -> None:
        """Throttle reads of a device, ``MAJOR:MINOR``."""
        bytes_, reads = (
            None if rate is None else max(1, round(rate))
            for rate in (throttle.bytes_per_s, throttle.opens_per_s)
        )
        if self._is_v2:
            words = f"{device} rbps={bytes_ or 'max'} riops={reads or 'max'}"
            _write(os.path.join(self._folder, "io.max"), words)
            return
        # 0 lifts a limit.
        _write(os.path.join(self._folder, "blkio.throttle.read_bps_device"), f"{device} {bytes_ or 0}")
        _write(os.path.join(self._folder, "blkio.throttle.read_iops_device"), f"{device} {reads or 0}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


@dataclass(frozen=True)
class LoopDevice:
    """A file system on a loop device."""

    image: str
    folder: str
    """Its mount point."""
    numbers: str
    """``MAJOR:MINOR``."""


@contextlib.contextmanager
def attach_device(folder: str, bytes_: int, count: int) -> Iterator[LoopDevice]:
    """Attach a new file system in an image within ``folder``, for ``count`` files of ``bytes_`` in total.

    Raises:
        ForeseeError: a tool fails; the message has its output.
        OSError: the image cannot be written.
    """
    with contextlib.ExitStack() as cleanup:
        with block_signals():
            home = tempfile.mkdtemp(prefix="foresee-bench-", dir=folder)
            cleanup.callback(shutil.rmtree, home, ignore_errors=True)
            image, mount = os.path.join(home, "image"), os.path.join(home, "mount")
            os.mkdir(mount)
            with open(image, "xb") as file:
                file.truncate(round(_SHARE * bytes_) + _MORE_BYTES)
            # A journal would be written during the measured reads.
            options = ["-q", "-F", "-m", "0", "-O", "^has_journal", "-N", str(count + _MORE_INODES)]
            _run("mkfs.ext4", *options, image)
            device = _run("losetup", "--find", "--show", image)
            cleanup.callback(_run, "losetup", "--detach", device)
            _run("mount", "-o", "noatime", device, mount)
            cleanup.callback(_run, "umount", mount)
            number = os.stat(device).st_rdev
        yield LoopDevice(image, mount, f"{os.major(number)}:{os.minor(number)}")


def _run(*command: str) -> str:
    with block_signals():
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise ForeseeError(f"`{' '.join(command)}` failed: {ended.stderr.strip()}")
    return ended.stdout.strip()
