# SPDX-License-Identifier: Apache-2.0
"""Environment variables of tests and their child processes."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping

_TESTS = pathlib.Path(__file__).resolve().parents[1]
_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_PREFIXES = ("SLURM_", "OMPI_", "PMI_", "TORCHELASTIC_", "FORESEE_", "AWS_")


def foreign(name: str) -> bool:
    """Whether a variable is a launcher's, a credential, or a setting of Foresee."""
    return name in _LAUNCHERS or name.startswith(_PREFIXES)


def plain_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment without launcher variables and credentials, and with ``extra``."""
    own = {name: value for name, value in os.environ.items() if not foreign(name)}
    # One thread per child: the tests share few cores, and torch would start a thread per core.
    paths = [str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**own, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths), **(extra or {})}
