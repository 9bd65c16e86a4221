# SPDX-License-Identifier: Apache-2.0
"""Tests against systems that `make setup` does not install; `make test-systems` does, and runs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.slurm import Slurm


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm of this machine, with one node."""
    with Slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running
