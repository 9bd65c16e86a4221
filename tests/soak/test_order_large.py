# SPDX-License-Identifier: Apache-2.0
"""The access order of hundreds of millions of samples, which shuffles almost a gigabyte."""

from __future__ import annotations

import numpy as np
import pytest

from foresee import _native as native


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("n", "first", "second", "last"),
    [
        (214_748_363, 112_993_252, 117_420_445, 34_850_603),
        (214_748_364, 93_268_064, 63_068_233, 187_216_702),
    ],
)
def test_randperm_changes_its_algorithm_where_torch_does(n: int, first: int, second: int, last: int) -> None:
    ids = native.order_randperm(n, 7)
    assert ids.dtype == np.uint32
    assert (ids[0], ids[1], ids[-1]) == (first, second, last)
