# SPDX-License-Identifier: Apache-2.0
"""Tests against systems that `make setup` does not install; `make test-systems` does, and runs them."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
