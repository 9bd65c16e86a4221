# SPDX-License-Identifier: Apache-2.0
"""An origin that the kernel makes slow: a file system on a loop device, and a control group whose reads of it wait.

Not a model: every read of the group's processes waits in the block layer, read-ahead and metadata too. What it limits
are bytes and read requests, not opens, and it counts them in slices of about 0.1 s. Needs root, loop devices, and
cgroups with ``blkio`` (version 1) or ``io`` (version 2). Everything is taken apart at the end of its block.
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
from foresee.storage.bench.files import uninterrupted
from foresee.storage.bench.throttle import Throttle

__all__ = ["Device", "Group", "attached", "missing"]

_CGROUPS = "/sys/fs/cgroup"
_TOOLS = ("mkfs.ext4", "losetup", "mount", "umount")
#: Beside the files: ext4's own tables and its journal.
_SHARE, _MORE_BYTES, _MORE_INODES = 1.1, 96 << 20, 64


def missing(cgroups: str = _CGROUPS) -> str | None:
    """Return the requirement that this machine or user lacks, or None."""
    if os.geteuid() != 0:
        return "only root may attach a loop device; run as root, or leave it out and let the reader throttle itself"
    if not os.path.exists("/dev/loop-control"):
        return "there are no loop devices; load the kernel's module loop"
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            return f"{tool} is not installed; e2fsprogs and mount have it"
    if _version(cgroups) is None:
        return f"no cgroup controller blkio or io below {cgroups}; boot with one of them"
    return None


def _version(cgroups: str) -> int | None:
    """Which cgroups there are that throttle."""
    if os.path.exists(os.path.join(cgroups, "blkio", "cgroup.procs")):
        return 1
    with (
        contextlib.suppress(OSError),
        open(os.path.join(cgroups, "cgroup.controllers"), encoding="ascii") as file,
    ):
        if "io" in file.read().split():
            return 2
    return None


class Group:
    """A control group, for a ``with`` block that its processes do not outlive."""

    def __init__(self, cgroups: str = _CGROUPS) -> None:
        version = _version(cgroups)
        if version is None:
            raise ConfigError(f"no cgroup controller blkio or io below {cgroups}")
        self._new = version == 2
        top = cgroups if self._new else os.path.join(cgroups, "blkio")
        if self._new:
            _put(os.path.join(top, "cgroup.subtree_control"), "+io")
        self._folder = os.path.join(top, f"foresee-bench-{os.getpid()}")
        os.makedirs(self._folder, exist_ok=True)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        os.rmdir(self._folder)

    def enter(self, pids: Sequence[int]) -> None:
        """Put processes into it, with all their threads."""
        for pid in pids:
            _put(os.path.join(self._folder, "cgroup.procs"), str(pid))

    def limit(self, device: str, throttle: Throttle) -> None:
        """Throttle its reads of a device, ``MAJOR:MINOR``, from now on."""
        bytes_, reads = (
            None if rate is None else max(1, round(rate))
            for rate in (throttle.bytes_per_s, throttle.opens_per_s)
        )
        if self._new:
            words = f"{device} rbps={bytes_ or 'max'} riops={reads or 'max'}"
            _put(os.path.join(self._folder, "io.max"), words)
            return
        # 0 lifts a limit.
        _put(os.path.join(self._folder, "blkio.throttle.read_bps_device"), f"{device} {bytes_ or 0}")
        _put(os.path.join(self._folder, "blkio.throttle.read_iops_device"), f"{device} {reads or 0}")


def _put(path: str, words: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(words)


@dataclass(frozen=True)
class Device:
    """A file system on a loop device."""

    image: str
    folder: str
    """Its mount point."""
    numbers: str
    """``MAJOR:MINOR``."""


@contextlib.contextmanager
def attached(folder: str, bytes_: int, count: int) -> Iterator[Device]:
    """A new file system in an image within ``folder``, with room for so many files of so many bytes in sum.

    Raises:
        ForeseeError: a tool fails; the message has what it says.
        OSError: the image cannot be written.
    """
    with contextlib.ExitStack() as made:
        with uninterrupted():
            home = tempfile.mkdtemp(prefix="foresee-bench-", dir=folder)
            made.callback(shutil.rmtree, home, ignore_errors=True)
            image, mount = os.path.join(home, "image"), os.path.join(home, "mount")
            os.mkdir(mount)
            with open(image, "xb") as file:
                file.truncate(round(_SHARE * bytes_) + _MORE_BYTES)
            # A journal would be written to while others read.
            words = ["-q", "-F", "-m", "0", "-O", "^has_journal", "-N", str(count + _MORE_INODES)]
            _run("mkfs.ext4", *words, image)
            device = _run("losetup", "--find", "--show", image)
            made.callback(_run, "losetup", "--detach", device)
            _run("mount", "-o", "noatime", device, mount)
            made.callback(_run, "umount", mount)
            number = os.stat(device).st_rdev
        yield Device(image, mount, f"{os.major(number)}:{os.minor(number)}")


def _run(*command: str) -> str:
    with uninterrupted():
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise ForeseeError(f"`{' '.join(command)}` failed: {ended.stderr.strip()}")
    return ended.stdout.strip()
