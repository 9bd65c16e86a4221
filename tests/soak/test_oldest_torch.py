# SPDX-License-Identifier: Apache-2.0
"""All tests of the loader on the torch of this environment, meant to be the oldest supported one.

`make test` runs only the tests of random orders on it. This adds batches, threads and worker processes.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.environment import plain_environment
from support.house import ROOT

FILES = (
    "tests/unit/torch_data/test_torch_batches.py",
    "tests/process/torch_data/test_batch_waits.py",
    "tests/process/torch_data/test_workers.py",
    "tests/process/torch_data/test_pictures.py",
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", FILES)
def test_every_test_of_the_loader_passes_on_this_torch(file: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=plain_environment()
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
