# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts: network namespaces behind one switch, with shaped links that can be cut.

`foresee-testbed hosts` creates them, and removes them with their processes however the tests end.
"""

from __future__ import annotations

import json
import re
import subprocess
from types import TracebackType

from support.processes import tool
from support.waiting import WATCHDOG


class Hosts:
    """Hosts by name, each with a link of ``rate`` in the notation of `tc`. They need root and iproute2."""

    def __init__(self, *names: str, rate: str) -> None:
        self._names = names
        self._process = subprocess.Popen(
            [tool("foresee-testbed"), "hosts", *names, "--rate", rate],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "foresee-testbed created no hosts"
        self._hosts: dict[str, dict[str, str]] = json.loads(line)["hosts"]

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=WATCHDOG)

    def address(self, name: str) -> str:
        """Return the address of a host."""
        return self._hosts[name]["address"]

    def within(self, name: str) -> list[str]:
        """Return the command prefix that runs a program on a host."""
        return ["ip", "netns", "exec", self._hosts[name]["namespace"]]

    def cut(self, name: str) -> None:
        """Cut the link of a host."""
        self._command(f"cut {name}")

    def restore(self, *names: str) -> None:
        """Restore the links of hosts; without names, of all."""
        for name in names or self._names:
            self._command(f"restore {name}")

    def connections(self, name: str, port: int) -> list[tuple[str, int, int]]:
        """Return peer address, peer port and received bytes of each connection to ``port`` of a host."""
        listing = subprocess.run(
            [*self.within(name), "ss", "-tinHO", "state", "established", f"( sport = :{port} )"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        found = re.findall(r"^\S+ +\S+ +\S+ +(\S+):(\d+)\s(.*)$", listing, re.MULTILINE)
        received = (re.search(r"bytes_received:(\d+)", facts) for _, _, facts in found)
        return [
            (address.strip("[]"), int(port), int(count[1]) if count else 0)
            for (address, port, _), count in zip(found, received, strict=True)
        ]

    def reset(self, name: str, port: int) -> None:
        """Reset all connections of a host from or to ``port``, as a firewall without state does: both ends get an error."""
        of_port = f"( sport = :{port} or dport = :{port} )"
        command = [*self.within(name), "ss", "-KtnHO", "state", "established", of_port]
        ended = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert ended.strip(), "no connection, or a kernel without CONFIG_INET_DIAG_DESTROY"

    def drop(self, name: str, which: str, port: int) -> None:
        """Drop what a host sends on one connection, whose ``which`` (``sport`` or ``dport``) is ``port``."""
        self._rule(name, "add", "ipproto", "tcp", which, str(port), "blackhole")

    def stop_dropping(self, name: str) -> None:
        """Remove the rule of `drop`."""
        self._rule(name, "del")

    def _rule(self, name: str, *words: str) -> None:
        command = [*self.within(name), "ip", "rule", words[0], "pref", "100", *words[1:]]
        subprocess.run(command, check=True, capture_output=True)

    def _command(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert answer["ok"], answer
