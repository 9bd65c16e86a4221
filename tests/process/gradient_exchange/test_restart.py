# SPDX-License-Identifier: Apache-2.0
"""A run that torchrun restarts: the ranks resume from their checkpoint and reach the bits of an undisturbed run."""

from __future__ import annotations

import json

import pytest
from support import gradients
from support.restarts import FAILING_STEP


@pytest.mark.parametrize(("how", "count"), [("is killed", 2), ("raises", 0)])
def test_a_run_with_a_killed_rank_resumes_from_its_checkpoint_to_the_same_bits(
    started, tmp_path, how: str, count: int
) -> None:
    serving = [started(gradients.serve("--bind", "127.0.0.1:0")) for _ in range(count)]
    # Colocated servers restart with the ranks, and the store carries a secret twice.
    addresses = ",".join(server.line()["address"] for server in serving) or "colocated"
    env = {"FORESEE_TOKEN": gradients.TOKEN} if serving else {}
    # Otherwise torchrun keeps one store for all attempts, in which gloo finds addresses of ended processes.
    env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    group = started(
        gradients.under_torchrun(2, "support.restarts", how, str(tmp_path), addresses, restarts=1, env=env)
    )
    status, output, errors = group.end()
    assert status == 0, output + errors
    reports = [json.loads(line) for line in output.splitlines()]
    assert [(one["attempt"], one["first"]) for one in reports] == [(1, FAILING_STEP - 1)] * 2
    for one in reports:
        assert one["digest"] == gradients.expected(2)
    for server in serving:
        assert server.process.poll() is None, "a server ended when the run restarted"
