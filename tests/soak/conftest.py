# SPDX-License-Identifier: Apache-2.0
"""Tests that run for minutes: drawn moments by the dozen, hosts in network namespaces, orders of a gigabyte.

`make soak` runs them with `FORESEE_SOAK` set, with which property tests draw new examples.
"""

from __future__ import annotations

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
# Before torch is imported: ranks are threads here, and each would have a pool as large as the machine, which waits busily.
os.environ["OMP_NUM_THREADS"] = "1"

from support.fixtures import own_environment, started  # noqa: F401 - found here by tests
from support.scenes import hosts, scene  # noqa: F401 - likewise
