# SPDX-License-Identifier: Apache-2.0
"""Ranks and servers killed at many random moments; `FORESEE_KILLS` is the number of each kind."""

from __future__ import annotations

import os

import pytest
from support import kills

NUMBERS = range(int(os.environ.get("FORESEE_KILLS", "20")))


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(("victim", "recover"), [("rank", False), ("rank", True), ("server", False)])
def test_a_process_killed_at_a_random_moment_is_named_by_all_ranks(
    started, victim: str, recover: bool, number: int
) -> None:
    kills.assert_killed_process_is_named(started, victim, number, recover=recover)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("recover", [False, True])
def test_ranks_continue_without_one_killed_at_a_random_moment(started, recover: bool, number: int) -> None:
    kills.assert_ranks_continue_without_a_killed_one(started, number, recover=recover)


@pytest.mark.parametrize("number", NUMBERS)
def test_servers_killed_at_random_moments_are_replaced_with_the_same_bits(started, number: int) -> None:
    kills.assert_killed_servers_are_replaced(started, number)
