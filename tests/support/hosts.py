# SPDX-License-Identifier: Apache-2.0
"""Hosts of their own on this machine: network namespaces behind one switch, with shaped links that can be cut.

`foresee-testbed hosts` makes them, and removes them with everything in them, however the tests end.
"""

from __future__ import annotations

import json
import re
import subprocess
from types import TracebackType

from support.processes import tool
from support.waiting import WATCHDOG


class Hosts:
    """Hosts by name, each on a link of ``rate``, as `tc` spells it. They need root and iproute2."""

    def __init__(self, *names: str, rate: str) -> None:
        self._names = names
        self._process = subprocess.Popen(
            [tool("foresee-testbed"), "hosts", *names, "--rate", rate],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        assert told, "there are no hosts"
        self._hosts: dict[str, dict[str, str]] = json.loads(told)["hosts"]

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=WATCHDOG)

    def address(self, name: str) -> str:
        """Where the others reach a host."""
        return self._hosts[name]["address"]

    def within(self, name: str) -> list[str]:
        """The command that runs a program on a host."""
        return ["ip", "netns", "exec", self._hosts[name]["namespace"]]

    def cut(self, name: str) -> None:
        """Let nothing pass to a host or from it."""
        self._follow(f"cut {name}")

    def mend(self, *names: str) -> None:
        """Let everything pass again; without names, to all hosts."""
        for name in names or self._names:
            self._follow(f"mend {name}")

    def connections(self, name: str, port: int) -> list[tuple[str, int, int]]:
        """Of those to ``port`` of a host: the other end's address and port, and how many bytes came from there."""
        told = subprocess.run(
            [*self.within(name), "ss", "-tinHO", "state", "established", f"( sport = :{port} )"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        found = re.findall(r"^\S+ +\S+ +\S+ +(\S+):(\d+)\s(.*)$", told, re.MULTILINE)
        received = (re.search(r"bytes_received:(\d+)", facts) for _, _, facts in found)
        return [
            (address.strip("[]"), int(port), int(count[1]) if count else 0)
            for (address, port, _), count in zip(found, received, strict=True)
        ]

    def reset(self, name: str, port: int) -> None:
        """End all connections of a host from or to ``port``, as a firewall that has forgotten them does: both ends are
        told by their systems.
        """
        of_port = f"( sport = :{port} or dport = :{port} )"
        command = [*self.within(name), "ss", "-KtnHO", "state", "established", of_port]
        ended = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert ended.strip(), "there was none, or the kernel ends none (CONFIG_INET_DIAG_DESTROY)"

    def drop(self, name: str, which: str, port: int) -> None:
        """Lose what a host sends of one connection: ``which`` of its ports, ``sport`` or ``dport``, is ``port``."""
        self._rule(name, "add", "ipproto", "tcp", which, str(port), "blackhole")

    def drop_no_more(self, name: str) -> None:
        """Take that back."""
        self._rule(name, "del")

    def _rule(self, name: str, *words: str) -> None:
        command = [*self.within(name), "ip", "rule", words[0], "pref", "100", *words[1:]]
        subprocess.run(command, check=True, capture_output=True)

    def _follow(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert answer["ok"], answer
