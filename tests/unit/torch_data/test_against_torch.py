# SPDX-License-Identifier: Apache-2.0
"""The same arguments give the same batches, errors and generators as torch's own DataLoader."""

from __future__ import annotations

import pytest
from support.against_torch import ALONE, DIFFERENCES, Case, seen
from torch.utils.data import DataLoader

import foresee.torch as ft


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.name)
def test_both_loaders_give_the_same(case: Case) -> None:
    assert (seen(ft.DataLoader, case) == seen(DataLoader, case)) == (case.differs is None), DIFFERENCES.get(
        case.differs or "", "an unintended difference"
    )


def test_the_intended_differences_are_these() -> None:
    assert set(DIFFERENCES) == {
        "arguments that are refused",
        "attributes that are refused",
        "copies of a loader",
        "iterable dataset",
        "no samples",
        "random numbers in workers",
        "sampler that fails midway",
        "sampler without a length",
        "second iterator",
        "text of a worker's error",
    }
