# SPDX-License-Identifier: Apache-2.0
"""Ranks that share the cache of their node, when one of them is killed or stands still."""

from __future__ import annotations

import pathlib
import signal
from typing import Any

import pytest
from support.data import make_folder
from support.node_ranks import digests, expected, outcomes, ranks, read_until_hold

RANKS = 3
EPOCHS = 3
#: About 4 MB, with a host of 3 MB.
SIZES = [9000 + 1700 * (sample % 13) for sample in range(203)]
PLAN: dict[str, Any] = {"epochs": EPOCHS, "cache": {"ram": "3MB"}, "hold_at": [5]}


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """A data set."""
    return make_folder(tmp_path / "data", SIZES)


@pytest.mark.parametrize(("victim", "warnings"), [(2, 0), (0, 1)], ids=["a consumer", "the host"])
def test_the_other_ranks_return_the_same_batches_after_a_kill(
    job: pathlib.Path, root: pathlib.Path, victim: int, warnings: int
) -> None:
    with ranks(job, [{**PLAN, "root": str(root)}] * RANKS) as programs:
        begun = [read_until_hold(program) for program in programs]
        programs[victim].send(signal.SIGKILL)
        programs[victim].wait()
        (job / f"killed-{victim}").touch()
        (job / "go-5").touch()
        found = outcomes(programs, fails=[victim])
    for rank, (lines, errors) in enumerate(found):
        if rank == victim:
            continue
        assert digests(begun[rank] + lines) == expected(root, rank, RANKS, EPOCHS)
        (node,) = (line["stats"]["node"] for line in lines if "stats" in line)
        assert errors.count("this node's cache is gone") == warnings, (rank, errors, node)
        assert len(errors.splitlines()) == warnings, (rank, errors, node)


def test_ranks_go_on_while_another_one_is_stopped(job: pathlib.Path, root: pathlib.Path) -> None:
    stopped = 1
    with ranks(job, [{**PLAN, "root": str(root)}] * RANKS) as programs:
        begun = [read_until_hold(program) for program in programs]
        programs[stopped].send(signal.SIGSTOP)
        (job / "go-5").touch()
        for rank, program in enumerate(programs):
            if rank != stopped:
                count = len(expected(root, rank, RANKS, EPOCHS)) - len(begun[rank])
                begun[rank] += [program.line() for _ in range(count)]
        programs[stopped].send(signal.SIGCONT)
        found = outcomes(programs)
    for rank, (lines, errors) in enumerate(found):
        assert digests(begun[rank] + lines) == expected(root, rank, RANKS, EPOCHS)
        assert errors == ""
