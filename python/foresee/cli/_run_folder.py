# SPDX-License-Identifier: Apache-2.0
"""The folder that a command writes its results into."""

from __future__ import annotations

import os
import time

from foresee.errors import ConfigError


def make_run_folder(path: str | None, kind: str, now: time.struct_time) -> str:
    """Make the folder at ``path`` if it is missing and return it; None: ``runs/KIND-DATE``.

    Raises:
        ConfigError: the folder is not empty.
    """
    folder = path or os.path.join("runs", time.strftime(f"{kind}-%Y%m%d-%H%M%S", now))
    os.makedirs(folder, exist_ok=True)
    if os.listdir(folder):
        raise ConfigError(
            f"{folder}: not empty; a run folder of its own expected, so name another with --folder"
        )
    return folder
