# SPDX-License-Identifier: Apache-2.0
"""Fixtures of more than one folder of tests; each folder's `conftest.py` imports those that its tests ask for.

Not in the `conftest.py` above them all, which stands alone where tests of it copy it. Refuses what one folder asks for:
that stays there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from support.processes import Child


@pytest.fixture
def started() -> Iterator[Callable[[Child], Child]]:
    """Keeps children until the test is over, and kills them then."""
    with contextlib.ExitStack() as stack:

        def keep(child: Child) -> Child:
            stack.callback(child.close)
            return child

        yield keep
