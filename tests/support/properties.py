# SPDX-License-Identifier: Apache-2.0
"""Settings and texts of property tests: a fixed set of examples in ordinary runs, new ones in a soak.

An ordinary run uses the same examples every time, so that only a change can cause a failure.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

__all__ = ["TEXTS", "properties"]

#: Texts of letters, signs, line ends and controls in one to four bytes of UTF-8. Without an alphabet Hypothesis makes a
#: table of all of Unicode first, which takes seconds in a fresh checkout.
TEXTS = st.text("aZ 0-.%\n\r\t\x00\x85\u2028é☃\U0001f600")


def properties(*, soak: int = 100, ordinary: int = 256, **more: Any) -> settings:
    """Return the settings of a property test.

    Args:
        soak: number of examples with ``FORESEE_SOAK`` in the environment; each run draws new ones.
        ordinary: the most examples of an ordinary run, fewer where they are slow; never more than ``soak``.
        more: further arguments of ``hypothesis.settings``.
    """
    if "FORESEE_SOAK" in os.environ:
        return settings(max_examples=soak, deadline=None, print_blob=True, **more)
    fixed = {"derandomize": True, "database": None, "deadline": None}
    return settings(max_examples=min(soak, ordinary), **fixed, **more)
