# SPDX-License-Identifier: Apache-2.0
"""With worker processes, the same arguments give the same batches, errors and generators as torch's own DataLoader."""

from __future__ import annotations

import pytest
from support.against_torch import DIFFERENCES, IN_WORKERS, Case, seen
from torch.utils.data import DataLoader

import foresee.torch as ft


@pytest.mark.parametrize("case", IN_WORKERS, ids=lambda case: case.name)
def test_both_loaders_return_the_same_with_workers(case: Case) -> None:
    assert (seen(ft.DataLoader, case) == seen(DataLoader, case)) == (case.differs is None), DIFFERENCES.get(
        case.differs or "", "an unintended difference"
    )
