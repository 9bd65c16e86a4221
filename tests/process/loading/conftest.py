# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of loaders with real processes."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from support.node_ranks import job_folder


@pytest.fixture
def job() -> Iterator[pathlib.Path]:
    """The folder of a job."""
    with job_folder() as folder:
        yield folder
