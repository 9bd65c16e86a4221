# SPDX-License-Identifier: Apache-2.0
"""Programs forked from a process that has imported torch, which takes seconds of a core; tests start a hundred of them.

Each is a process of its own, in a session of its own, with its own pipes, arguments and environment, and it ends as
programs end. Only its interpreter and its modules were there before it. Apart from `processes`, whose `Child` is what
tests hold, whichever way it began. Refuses to fork where a thread runs, and is no use to tests of how a program starts.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO

#: Of a request; environments are some kilobytes.
_MOST_BYTES = 1 << 17
_NUMBER = struct.Struct("i")


class Forked:
    """A program under way: what of ``subprocess.Popen`` with text pipes tests ask for."""

    def __init__(self, source: str, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        pipes = [os.pipe() for _ in range(3)]
        theirs = [write for _, write in pipes]
        asked = json.dumps([source, list(arguments), dict(env)]).encode()
        socket.send_fds(_warm(env), [asked], theirs)
        for each in theirs:
            os.close(each)
        self.stdout: IO[str] = os.fdopen(pipes[0][0], encoding="utf-8")
        self.stderr: IO[str] = os.fdopen(pipes[1][0], encoding="utf-8")
        self._status: IO[bytes] = os.fdopen(pipes[2][0], "rb", buffering=0)
        self.pid = self._number()
        self.returncode: int | None = None
        self._said = ["", ""]
        self._readers: list[threading.Thread] = []

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, within ``timeout`` seconds."""
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        # It may end between the question and the signal, and is gone before its status is here.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it has written and nobody has read, once it has ended. ``timeout``: of each of the waits for it."""
        if not self._readers:
            self._readers = [threading.Thread(target=self._read, args=(at,), daemon=True) for at in (0, 1)]
            for reader in self._readers:
                reader.start()
        for reader in self._readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        self.wait(timeout)
        self._status.close()
        return self._said[0], self._said[1]

    def _read(self, at: int) -> None:
        stream = (self.stdout, self.stderr)[at]
        if not stream.closed:
            with stream:
                self._said[at] = stream.read()

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = os.waitstatus_to_exitcode(self._number())
        return self.returncode

    def _number(self) -> int:
        told = self._status.read(_NUMBER.size)
        assert len(told) == _NUMBER.size, "the process that programs are forked from has ended"
        number: int = _NUMBER.unpack(told)[0]
        return number


@functools.cache
def _started(settings: tuple[tuple[str, str], ...]) -> socket.socket:
    """The process that programs are forked from; it ends with this one, whatever ends this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    source = "from support.warm import main; exec(main(), globals())"
    process = subprocess.Popen(
        [sys.executable, "-c", source, str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        env=dict(settings),
        start_new_session=True,
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _warm(env: Mapping[str, str]) -> socket.socket:
    # What is read when modules are imported, and by the interpreter itself.
    settings = ("OMP_NUM_THREADS", "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
    return _started(tuple(item for item in sorted(env.items()) if item[0] in settings or "PYTHON" in item[0]))


def main() -> str:
    """Of that process: forks what is asked for. Returns in each program, what it has to run."""
    import foresee.torch  # noqa: F401

    assert len(os.listdir("/proc/self/task")) == 1, "a thread would be missing in whatever is forked"
    requests = socket.socket(fileno=int(sys.argv[1]))
    # Nobody asks how those ended that wait for programs.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        asked, theirs, _, _ = socket.recv_fds(requests, _MOST_BYTES, 3)
        if not asked:
            os._exit(0)
        if os.fork() == 0:
            break
        for each in theirs:
            os.close(each)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    source, arguments, env = json.loads(asked)
    output, errors, status = theirs
    program = os.fork()
    if program:
        # Theirs alone: whoever reads them waits for the last that has them open.
        os.close(output)
        os.close(errors)
        os.write(status, _NUMBER.pack(program))
        os.write(status, _NUMBER.pack(os.waitpid(program, 0)[1]))
        os._exit(0)
    os.setsid()
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for each in theirs:
        os.close(each)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[1:] = arguments
    text: str = source
    return text
