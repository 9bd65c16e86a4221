# SPDX-License-Identifier: Apache-2.0
"""Start test programs by a fork of a process that has imported torch, which takes seconds of a core.

Each is a separate process and session, with its own pipes, arguments and environment. It has the modules of the forked
process and does not finalize its interpreter, so tests of the start or the end of a program need a new interpreter.
Tests use such a program as a `Child` of `processes`. A process with threads is never forked.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, NoReturn

#: Maximal bytes of a request; environments are some kilobytes.
_MOST_BYTES = 1 << 17
_NUMBER = struct.Struct("i")


class Forked:
    """A running program, with the methods of ``subprocess.Popen`` that its users need.

    ``requests``: socket of the process to fork from. ``output``, ``errors``: descriptors for its output.
    """

    def __init__(
        self,
        requests: socket.socket,
        source: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        output: int,
        errors: int,
    ) -> None:
        reader, status = os.pipe()
        request = json.dumps([source, list(arguments), dict(env)]).encode()
        socket.send_fds(requests, [request], [output, errors, status])
        os.close(status)
        self._status: IO[bytes] = os.fdopen(reader, "rb", buffering=0)
        self.pid = self._number()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, or None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait up to ``timeout`` seconds; returns its exit status."""
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        # It may end between the check and the signal.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = os.waitstatus_to_exitcode(self._number())
            self._status.close()
        return self.returncode

    def _number(self) -> int:
        data = self._status.read(_NUMBER.size)
        assert len(data) == _NUMBER.size, "the process that programs are forked from has ended"
        number: int = _NUMBER.unpack(data)[0]
        return number


class Piped(Forked):
    """A forked program whose output and errors a test reads."""

    def __init__(self, source: str, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        (output, their_output), (errors, their_errors) = os.pipe(), os.pipe()
        super().__init__(_warm(env), source, arguments, env, their_output, their_errors)
        for each in (their_output, their_errors):
            os.close(each)
        self.stdout: IO[str] = os.fdopen(output, encoding="utf-8")
        self.stderr: IO[str] = os.fdopen(errors, encoding="utf-8")
        self._texts = ["", ""]
        self._readers: list[threading.Thread] = []

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return the unread output once the program has ended. ``timeout``: of each wait."""
        if not self._readers:
            self._readers = [threading.Thread(target=self._read, args=(at,), daemon=True) for at in (0, 1)]
            for reader in self._readers:
                reader.start()
        for reader in self._readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        self.wait(timeout)
        return self._texts[0], self._texts[1]

    def _read(self, at: int) -> None:
        stream = (self.stdout, self.stderr)[at]
        if not stream.closed:
            with stream:
                self._texts[at] = stream.read()


def fork_ranks_of_torchrun() -> None:
    """Have torchrun, which is about to run in this process, fork its ranks from a copy of this process.

    Each rank must be a module with a ``main``. Its environment, arguments and session are those of torchrun.
    """
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    ours = _copy()
    source = "import importlib, sys; sys.exit(importlib.import_module(sys.argv.pop(1)).main())"

    def start(args: Sequence[str], env: Mapping[str, str], **_: object) -> Forked:
        return Forked(ours, source, args[args.index("-m") + 1 :], env, 1, 2)

    subprocess_handler.Popen = start  # type: ignore[assignment,misc]


def torchrun_from_a_copy() -> Callable[[Sequence[str], Mapping[str, str]], Forked]:
    """Copy this process, and return a function that starts torchrun there with arguments and an environment.

    Its ranks are forked, as by `fork_ranks_of_torchrun`. Its output goes to the errors of this process.
    """
    ours = _copy()
    source = (
        "import sys; from support.warm import fork_ranks_of_torchrun; from torch.distributed.run import main\n"
        "fork_ranks_of_torchrun(); main(sys.argv[1:])"
    )
    return lambda arguments, env: Forked(ours, source, arguments, env, 2, 2)


def _copy() -> socket.socket:
    """Start a copy of this process that forks programs, and return the socket for requests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _fork_programs(theirs)
    theirs.close()
    return ours


@functools.cache
def _started(settings: tuple[tuple[str, str], ...]) -> socket.socket:
    """Start the process to fork from. It ends with this process, even if this one is killed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    source = "from support.warm import main; main()"
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
    # Variables that the interpreter or an import reads.
    settings = ("OMP_NUM_THREADS", "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
    return _started(tuple(item for item in sorted(env.items()) if item[0] in settings or "PYTHON" in item[0]))


def main() -> None:
    """Run the process to fork from."""
    import torch

    import support.gradients  # noqa: F401

    # The first optimizer of a process imports torch's compiler, which takes as long as torch itself.
    torch.optim.SGD([torch.zeros(1)])
    # Frozen objects are not collected: a collection writes to objects, which copies shared pages.
    gc.collect()
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, "a forked program would lack a thread"
    _fork_programs(socket.socket(fileno=int(sys.argv[1])))


def _fork_programs(requests: socket.socket) -> NoReturn:
    """Fork the requested programs until the socket closes."""
    # No process reads the exit status of the intermediate children.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, theirs, _, _ = socket.recv_fds(requests, _MOST_BYTES, 3)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            break
        for each in theirs:
            os.close(each)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    source, arguments, env = json.loads(request)
    output, errors, status = theirs
    program = os.fork()
    if program:
        # Only the program may hold these: a reader waits until the last holder closes them.
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
    _run(source)


def _run(source: str) -> NoReturn:
    """Run a program and end like the interpreter, without the clean-up of modules, which would copy shared pages."""
    variables = vars(sys.modules["__main__"])
    exec(source, variables)  # noqa: S102 - the source of the test
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    variables.clear()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
