#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Install the missing systems of `make test-systems`: Slurm, from Debian's packages.

Needs root, unlike `scripts/setup.py`, which installs nothing outside of this folder.
Exit status: 0 ready, 3 something is missing that cannot be installed here (named).
"""

from __future__ import annotations

import os
import shutil
import sys

from steps import Failed, run

#: Programs, and their packages in Debian and Ubuntu.
SYSTEMS = {("slurmctld", "slurmd", "sbatch", "munged"): ["slurmctld", "slurmd", "slurm-client", "munge"]}


def main() -> int:
    """Install the missing packages."""
    for programs, packages in SYSTEMS.items():
        path = f"{os.environ.get('PATH', '')}:/usr/sbin"
        if all(shutil.which(name, path=path) for name in programs):
            continue
        line = f"apt-get install {' '.join(packages)}"
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            print(f"test-systems: {', '.join(programs)} are missing: as root, `{line}`", file=sys.stderr)
            return 3
        try:
            run(
                ["apt-get", "install", "--yes", "--no-install-recommends", "--quiet", *packages],
                env={"DEBIAN_FRONTEND": "noninteractive"},
                remedy="`apt-get update` first, where the lists of packages are old",
            )
        except Failed as failed:
            print(f"test-systems: {failed}", file=sys.stderr)
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
