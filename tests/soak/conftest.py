# SPDX-License-Identifier: Apache-2.0
"""Tests that run for minutes: kills at many random moments, hosts in network namespaces, orders of a gigabyte.

`make soak` runs them with `FORESEE_SOAK` set, with which property tests draw new examples.
"""

from __future__ import annotations

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
# Set before torch is imported: ranks are threads, and each would start a busy-waiting pool with a thread per core.
os.environ["OMP_NUM_THREADS"] = "1"

from support.fixtures import own_environment, started  # noqa: F401 - found here by tests
from support.host_jobs import host_job, hosts  # noqa: F401 - likewise
