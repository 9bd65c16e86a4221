# SPDX-License-Identifier: Apache-2.0
"""Hosts in network namespaces, with processes that run one job per line of JSON.

Processes are reused across jobs, so that imports happen once. A failure raises ``ProcessFailed`` with the last output.
The hosts are removed when this program ends, even if it is killed. ``without_namespaces`` has the same processes on this
host, for a measurement that can do without separate networks.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTBED = ROOT / ".tools" / "bin" / "foresee-testbed"
#: Queue of a link before it drops packets: long enough that none is lost, as the model assumes.
QUEUE = "1s"
#: Congestion control of all sockets on the hosts.
CONGESTION = "cubic"
#: Kind of hosts in namespaces, in raw lines.
NAMESPACES = "namespaces"
#: One thread per numerical library: the benchmark compares networks.
PINNED = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class ProcessFailed(Exception):
    """A process ended, failed or timed out."""


class Unavailable(Exception):
    """This host cannot provide hosts in namespaces; the message has the reason."""


@dataclass
class Process:
    """A process that returns one line of JSON per line."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def send(self, job: Mapping[str, Any]) -> None:
        """Send a job."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(job).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ProcessFailed(f"{self.name} has ended: {self._last_output()}") from None

    def answer(self, deadline: float) -> dict[str, Any]:
        """Wait for the result until ``deadline`` on the monotonic clock."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise ProcessFailed(f"{self.name} gave no answer in time")
        line = self.process.stdout.readline()
        if not line:
            raise ProcessFailed(f"{self.name} has ended: {self._last_output()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ProcessFailed(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Stop the process."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _last_output(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"


@dataclass
class Cluster:
    """Hosts with shaped links."""

    addresses: dict[str, str]
    #: Empty if the hosts have none.
    namespaces: dict[str, str]
    #: Folder with the programs that hosts run.
    programs: Path
    logs: Path
    #: None without namespaces.
    _hosts: Process | None
    _processes: dict[tuple[str, str, int], Process] = field(default_factory=dict)

    def process(
        self,
        host: str,
        program: str,
        number: int = 0,
        *,
        python: str = sys.executable,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> Process:
        """Return process ``number`` of ``program`` on ``host``; start it if there is none.

        Args:
            host: one of the cluster.
            program: its file, below ``programs``.
            number: of the processes of this program on this host.
            python: interpreter of a process that starts.
            environment: variables of a process that starts, beside those of this one.
        """
        key = (host, program, number)
        if key not in self._processes:
            entry = ["ip", "netns", "exec", self.namespaces[host]] if self.namespaces else []
            self._processes[key] = _start(
                f"{program} on {host}",
                [*entry, python, str(self.programs / program)],
                self.logs / f"{host}-{number}-{program}.log",
                environment,
            )
        return self._processes[key]

    def kill(self, host: str, program: str) -> None:
        """Kill the first process of ``program`` on ``host`` without notice."""
        process = self._processes.pop((host, program, 0))
        process.process.kill()
        process.close()

    def drop(self, program: str = "") -> None:
        """Kill all processes, or those of one program: after a failure the others wait for the failed one."""
        for key in [key for key in self._processes if program in ("", key[1])]:
            process = self._processes.pop(key)
            process.process.kill()
            process.close()

    def shape(self, rates: Mapping[str, str]) -> None:
        """Set the rates of links, in the notation of ``tc``."""
        assert self._hosts is not None, "only links between namespaces are shaped"
        for host, rate in rates.items():
            _configure(self._hosts, f"rate {host} {rate}")


def _configure(hosts: Process, line: str) -> None:
    assert hosts.process.stdin is not None
    hosts.process.stdin.write(line.encode() + b"\n")
    hosts.process.stdin.flush()
    answer = hosts.answer(time.monotonic() + 10)
    if not answer["ok"]:
        raise ProcessFailed(f"hosts: {answer.get('error')}")


def _start(
    name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> Process:
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **PINNED, **environment},
            start_new_session=True,
        )
    return Process(name, process, log)


@contextlib.contextmanager
def cluster(hosts: Sequence[str], rate: str, logs: Path, programs: Path) -> Iterator[Cluster]:
    """Create hosts behind one switch.

    Args:
        hosts: their names.
        rate: of each link, in the notation of ``tc``; empty: not shaped.
        logs: folder for the output of the processes.
        programs: folder with the programs that hosts run.

    Raises:
        Unavailable: this program does not run as root, or the testbed or iproute2 is missing.
    """
    if os.geteuid() != 0:
        raise Unavailable("hosts in namespaces need root")
    if not TESTBED.exists():
        raise Unavailable(f"{TESTBED.relative_to(ROOT)} is missing: run `make setup`")
    if shutil.which("ip") is None:
        raise Unavailable("iproute2 is missing")
    logs.mkdir(parents=True, exist_ok=True)
    pinned = [*(["--rate", rate] if rate else []), "--queue", QUEUE, "--congestion", CONGESTION]
    command = [str(TESTBED), "hosts", *hosts, *pinned]
    testbed = _start("hosts", command, logs / "hosts.log")
    made: Cluster | None = None
    try:
        created = _created_hosts(testbed)
        made = Cluster(
            {name: about["address"] for name, about in created.items()},
            {name: about["namespace"] for name, about in created.items()},
            programs,
            logs,
            testbed,
        )
        yield made
    finally:
        if made is not None:
            made.drop()
        testbed.close()


@contextlib.contextmanager
def without_namespaces(hosts: Sequence[str], logs: Path, programs: Path) -> Iterator[Cluster]:
    """Create the same processes without networks: all hosts have the loopback address. Arguments as in ``cluster``."""
    logs.mkdir(parents=True, exist_ok=True)
    made = Cluster(dict.fromkeys(hosts, "127.0.0.1"), {}, programs, logs, None)
    try:
        yield made
    finally:
        made.drop()


@contextlib.contextmanager
def cluster_or_processes(hosts: Sequence[str], logs: Path, programs: Path) -> Iterator[tuple[Cluster, str]]:
    """Create hosts with unshaped links, or the same processes where namespaces are impossible.

    Yields them and their kind: `namespaces`, or why there are none.
    """
    with contextlib.ExitStack() as stack:
        try:
            made, kind = stack.enter_context(cluster(hosts, "", logs, programs)), NAMESPACES
        except Unavailable as reason:
            made = stack.enter_context(without_namespaces(hosts, logs, programs))
            kind = f"processes: {reason}"
        yield made, kind


def _created_hosts(testbed: Process) -> dict[str, dict[str, str]]:
    try:
        hosts: dict[str, dict[str, str]] = testbed.answer(time.monotonic() + 30)["hosts"]
    except ProcessFailed as why:
        raise Unavailable(str(why)) from None
    return hosts
