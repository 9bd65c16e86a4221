# SPDX-License-Identifier: Apache-2.0
"""A real control group with a limit of memory, of version 1 or 2. Only root can create it."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager

#: A program's first lines: it joins the group of its last argument.
JOIN = """
    import os, sys
    with open(f"{sys.argv.pop()}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
"""


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[pathlib.Path]:
    """Create a group below the root; it is removed after the block, when its processes have ended."""
    version_one = pathlib.Path("/sys/fs/cgroup/memory")
    root = version_one if version_one.is_dir() else version_one.parent
    group = root / f"foresee-test-{os.getpid()}"
    group.mkdir()
    try:
        limit = "memory.limit_in_bytes" if (group / "memory.limit_in_bytes").exists() else "memory.max"
        (group / limit).write_text(str(limit_bytes))
        yield group
    finally:
        group.rmdir()
