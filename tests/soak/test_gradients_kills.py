# SPDX-License-Identifier: Apache-2.0
"""Ranks and servers that are killed at drawn moments, by the dozen; `FORESEE_KILLS` says how many of each kind."""

from __future__ import annotations

import os

import pytest
from support import kills

NUMBERS = range(int(os.environ.get("FORESEE_KILLS", "20")))


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(("victim", "recover"), [("rank", False), ("rank", True), ("server", False)])
def test_whoever_is_killed_at_whatever_moment_is_named_by_all_ranks(
    started, victim: str, recover: bool, number: int
) -> None:
    kills.name_the_killed(started, victim, number, recover=recover)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("recover", [False, True])
def test_ranks_go_on_without_the_one_that_is_killed_at_whatever_moment(
    started, recover: bool, number: int
) -> None:
    kills.go_on_without_a_rank(started, number, recover=recover)


@pytest.mark.parametrize("number", NUMBERS)
def test_servers_killed_at_whatever_moment_are_replaced_without_a_bit_lost(started, number: int) -> None:
    kills.replace_servers(started, number)
