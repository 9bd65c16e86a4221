# SPDX-License-Identifier: Apache-2.0
"""Child processes under a watchdog: servers, and Python programs written in the test that needs them.

A child that neither prints nor ends within the watchdog bound is killed, and its test fails with its output.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from support.environment import plain_environment
from support.waiting import WATCHDOG
from support.warm import Piped

ROOT = pathlib.Path(__file__).resolve().parents[2]


def tool(name: str) -> str:
    """Return the path of a program that `make setup` installs."""
    for place in (ROOT / ".tools" / "bin" / name, ROOT / "target" / "debug" / name):
        if place.is_file():
            return str(place)
    found = shutil.which(name)
    assert found is not None, f"{name} is not installed; run `make setup`"
    return found


class Child:
    """A running Python program that writes lines of JSON with `print_json`.

    ``within``: a command prefix, such as `ip netns exec NAMESPACE`.
    ``warm``: fork it from a process that has imported torch (``support.warm``); excludes ``within``.
    """

    process: subprocess.Popen[str] | Piped

    def __init__(
        self,
        source: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
        warm: bool = False,
    ) -> None:
        source, variables = textwrap.dedent(source), plain_environment(env)
        if warm:
            assert not within, "a forked program cannot have a command prefix"
            self.process = Piped(source, arguments, variables)
            return
        self.process = subprocess.Popen(
            [*within, sys.executable, "-c", source, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
            # A separate process group, so that its children can be found and ended.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Process id, which is also its process group."""
        return self.process.pid

    def line(self) -> Any:
        """Read the next line and parse it."""
        text = self.text()
        if not text:
            _, errors = self.process.communicate(timeout=WATCHDOG)
            raise AssertionError(f"the program ended with {self.process.returncode}:\n{errors}")
        return json.loads(text)

    def text(self) -> str:
        """Read the next line, empty after its end. The watchdog kills a program that writes none."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(WATCHDOG, self._kill_all)
        watchdog.start()
        try:
            return self.process.stdout.readline()
        finally:
            watchdog.cancel()

    def send(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Wait for its end; returns exit status, output and errors."""
        try:
            output, errors = self.process.communicate(timeout=WATCHDOG)
        except subprocess.TimeoutExpired:
            self._kill_all()
            output, errors = self.process.communicate()
            raise AssertionError(f"no end within {WATCHDOG:.0f} s:\n{output}\n{errors}") from None
        return self.process.returncode, output, errors

    def wait(self) -> int:
        """Wait for its end without reading its output."""
        return self.process.wait(timeout=WATCHDOG)

    def close(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def _kill_all(self) -> None:
        """Kill its whole process group, whose members hold its pipes open."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


@contextmanager
def child(
    source: str, *arguments: str, env: Mapping[str, str] | None = None, warm: bool = False
) -> Iterator[Child]:
    """Start a program; the end of the block kills it."""
    program = Child(source, *arguments, env=env, warm=warm)
    try:
        yield program
    finally:
        program.close()


def run(
    source: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    warm: bool = False,
) -> list[Any]:
    """Run a program that must succeed; returns its parsed lines."""
    with child(source, *arguments, env=env, warm=warm) as program:
        status, output, errors = program.end()
    assert status == 0, f"the program ended with {status}:\n{output}\n{errors}"
    return [json.loads(line) for line in output.splitlines()]


def print_json(**facts: Any) -> None:
    """Write one line of JSON for the test that started this process, in a single call.

    Ranks under `torchrun` share one unbuffered pipe: `print` would write the text and the line end separately, and the
    lines of two ranks could mix.
    """
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def thread_names(process: int | str = "self") -> list[str]:
    """Return the names of a process's threads, without those that end meanwhile."""
    names = []
    for task in pathlib.Path(f"/proc/{process}/task").iterdir():
        # The file of an ended thread is missing or unreadable.
        with suppress(FileNotFoundError, ProcessLookupError):
            names.append((task / "comm").read_text().strip())
    return names


def engine_threads(process: int | str = "self") -> list[str]:
    """Return the names of Foresee's threads in a process."""
    return [name for name in thread_names(process) if name.startswith("foresee")]


def descriptors(process: int) -> int:
    """Return the number of open files and sockets of a process."""
    return len(list(pathlib.Path(f"/proc/{process}/fd").iterdir()))


def resident_bytes(process: int | str = "self") -> int:
    """Return the resident memory of a process."""
    pages = pathlib.Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def group_members(group: int) -> list[int]:
    """Return the processes of a group, without zombies."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def left_in(folder: str, before: set[str]) -> set[str]:
    """Return files of a folder that are not in ``before`` and that no process has open or mapped.

    Other tests may use the folder at the same time.
    """
    held = set()
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            held.update(re.findall(f"{folder}/([^ /\\n]+)", (entry / "maps").read_text()))
        with suppress(OSError):
            held.update(link.readlink().name for link in (entry / "fd").iterdir())
    return set(os.listdir(folder)) - before - held


def processes_of(path: pathlib.Path) -> list[str]:
    """Return the ids of all processes with ``path`` on their command line; the path must be unique to the test."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = pathlib.Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(path).encode() in words:
            found.append(name)
    return found
