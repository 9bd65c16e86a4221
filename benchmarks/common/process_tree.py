# SPDX-License-Identifier: Apache-2.0
"""CPU time and memory of a process with all its descendants, from /proc."""

from __future__ import annotations

import os
import resource
from pathlib import Path


def cpu_s() -> float:
    """Return the CPU time of this process, of its reaped children, and of its live descendants."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ended = sum(one.ru_utime + one.ru_stime for one in used)
    return ended + sum(_lived_s(pid) for pid in family(os.getpid())[1:])


def _lived_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # utime, stime and those of waited-for children: fields 14 to 17 of proc(5), two before the bracket.
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def pss_bytes(root: int) -> int:
    """Return the proportional set size (PSS) of a process and all its descendants."""
    total = 0
    for pid in family(root):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        for line in rollup.splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def family(root: int) -> list[int]:
    """Return a process and its live descendants, the process first."""
    found, left = [], [root]
    while left:
        pid = left.pop()
        found.append(pid)
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                left.extend(int(child) for child in (task / "children").read_text().split())
        except OSError:
            continue
    return found
