# SPDX-License-Identifier: Apache-2.0
"""Ranks under torchrun that carry the servers themselves, in the numbers that `tests/process` leaves out."""

from __future__ import annotations

import pytest
from support import gradients


@pytest.mark.parametrize(
    ("ranks", "others", "mode"), [(1, 0, "group"), (2, 2, "group"), (4, 1, "group"), (3, 0, "node")]
)
def test_ranks_under_torchrun_carry_the_servers_themselves(
    started, ranks: int, others: int, mode: str
) -> None:
    # The group's store carries the secret where none is given; servers of their own have it from outside.
    env = {"FORESEE_TOKEN": gradients.TOKEN} if others else None
    servers = [started(gradients.serve("--bind", "127.0.0.1:0")).line()["address"] for _ in range(others)]
    group = started(gradients.torchrun(ranks, ["colocated", *servers], env, mode=mode))
    expected = started(gradients.reference(ranks)).line()["digest"]
    for _ in range(ranks):
        said = group.line()
        assert said.get("digest") == expected, said
    status, output, errors = group.end()
    assert status == 0, output + errors
