# SPDX-License-Identifier: Apache-2.0
"""Hosts of their own on this machine: network namespaces behind one switch, with shaped links that can be cut.

`foresee-testbed hosts` makes them, and removes them with everything in them, however the tests end.
"""

from __future__ import annotations

import json
import subprocess
from types import TracebackType

from support.processes import tool


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
        self._process.communicate(timeout=30)

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

    def _follow(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert answer["ok"], answer
