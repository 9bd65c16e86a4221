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
    """Path of a program that `make setup` installs."""
    for place in (ROOT / ".tools" / "bin" / name, ROOT / "target" / "debug" / name):
        if place.is_file():
            return str(place)
    found = shutil.which(name)
    assert found is not None, f"{name} is not installed; run `make setup`"
    return found


class Child:
    """A Python program under way; its standard output is a line of JSON per `say`.

    ``within``: a command that becomes the program, such as `ip netns exec NAMESPACE`.
    ``warm``: forked from a process that has imported torch (``support.warm``), so not within anything.
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
            assert not within, "what is forked is where the process is that it is forked from"
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
        """Of the program; also the number of its process group."""
        return self.process.pid

    def line(self) -> Any:
        """Its next line, parsed."""
        text = self.text()
        if not text:
            _, errors = self.process.communicate(timeout=WATCHDOG)
            raise AssertionError(f"the program ended with {self.process.returncode}:\n{errors}")
        return json.loads(text)

    def text(self) -> str:
        """Its next line as it is, empty once it has ended; a program without a line for too long is killed."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(WATCHDOG, self._kill_all)
        watchdog.start()
        try:
            return self.process.stdout.readline()
        finally:
            watchdog.cancel()

    def send(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Wait for its end: exit status, output and errors."""
        try:
            output, errors = self.process.communicate(timeout=WATCHDOG)
        except subprocess.TimeoutExpired:
            self._kill_all()
            output, errors = self.process.communicate()
            raise AssertionError(f"no end within {WATCHDOG:.0f} s:\n{output}\n{errors}") from None
        return self.process.returncode, output, errors

    def wait(self) -> int:
        """Wait for its end, and read nothing."""
        return self.process.wait(timeout=WATCHDOG)

    def close(self) -> None:
        """Kill it, if it is still there."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def _kill_all(self) -> None:
        """Kill it with all of its group, whose members hold its pipes open."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


@contextmanager
def child(
    source: str, *arguments: str, env: Mapping[str, str] | None = None, warm: bool = False
) -> Iterator[Child]:
    """A program that is dead when the block ends."""
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
    """Run a program to its end, which must be a good one; its lines, parsed."""
    with child(source, *arguments, env=env, warm=warm) as program:
        status, output, errors = program.end()
    assert status == 0, f"the program ended with {status}:\n{output}\n{errors}"
    return [json.loads(line) for line in output.splitlines()]


def say(**facts: Any) -> None:
    """Write one line for the test that started this process, whole in one call.

    The ranks that `torchrun` starts share one pipe and are unbuffered: `print` would write the text and the end of the
    line apart, and two ranks' lines could run into one.
    """
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def thread_names(process: int | str = "self") -> list[str]:
    """Names of a process's threads; one that ends meanwhile is left out."""
    names = []
    for task in pathlib.Path(f"/proc/{process}/task").iterdir():
        # One that ends has no file any more, or one that cannot be read.
        with suppress(FileNotFoundError, ProcessLookupError):
            names.append((task / "comm").read_text().strip())
    return names


def engine_threads(process: int | str = "self") -> list[str]:
    """Return the names of Foresee's threads in a process."""
    return [name for name in thread_names(process) if name.startswith("foresee")]


def descriptors(process: int) -> int:
    """How many files and sockets a process has open."""
    return len(list(pathlib.Path(f"/proc/{process}/fd").iterdir()))


def resident_bytes(process: int | str = "self") -> int:
    """Memory that a process has."""
    pages = pathlib.Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def group_members(group: int) -> list[int]:
    """Living processes of a group, zombies apart."""
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
    """Files of a folder that were not there ``before`` and that no process of this machine has open or mapped.

    Other tests may have theirs there.
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
    """Numbers of the processes of this machine that have ``path`` on their command line: one of this test's own."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = pathlib.Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(path).encode() in words:
            found.append(name)
    return found
