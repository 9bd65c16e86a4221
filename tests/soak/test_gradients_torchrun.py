# SPDX-License-Identifier: Apache-2.0
"""Ranks under torchrun with colocated servers, in the numbers that `tests/process` leaves out."""

from __future__ import annotations

import pytest
from support import gradients


@pytest.mark.parametrize(
    ("ranks", "others", "mode"), [(1, 0, "group"), (2, 2, "group"), (4, 1, "group"), (3, 0, "node")]
)
def test_ranks_under_torchrun_train_over_colocated_servers(
    started, ranks: int, others: int, mode: str
) -> None:
    # Without a configured secret, the group's store provides one; dedicated servers get it from the environment.
    env = {"FORESEE_TOKEN": gradients.TOKEN} if others else None
    servers = [started(gradients.serve("--bind", "127.0.0.1:0")).line()["address"] for _ in range(others)]
    group = started(gradients.torchrun(ranks, ["colocated", *servers], env, mode=mode))
    expected = started(gradients.reference(ranks)).line()["digest"]
    for _ in range(ranks):
        report = group.line()
        assert report.get("digest") == expected, report
    status, output, errors = group.end()
    assert status == 0, output + errors
