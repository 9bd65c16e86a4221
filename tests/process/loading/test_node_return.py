# SPDX-License-Identifier: Apache-2.0
"""Ranks whose service is killed read the origin alone, and return to the service when it runs again."""

from __future__ import annotations

import contextlib
import pathlib
import signal

from support.data import make_folder
from support.node_ranks import digests, expected, outcomes, ranks, read_until_hold
from support.node_service import consumers, service
from support.waiting import wait_until

#: About 4 MB, of which a loader of 1 MB stages less than a fifth.
SIZES = [9000 + 1700 * (sample % 13) for sample in range(203)]
EPOCHS = 4
#: Numbers of batches after which the rank waits, of 104.
HOLDS = [5, 25, 90]


def test_a_loader_reads_alone_while_its_service_is_killed_and_returns_to_the_next_one(
    job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root, socket = make_folder(tmp_path / "data", SIZES), job / "node.sock"
    plan = {"root": str(root), "epochs": EPOCHS, "cache": {"ram": "1MB"}, "hold_at": HOLDS}
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(service(socket))
        first.line()
        (program,) = stack.enter_context(ranks(job, [plan], env={"FORESEE_NODE": str(socket)}))
        lines = read_until_hold(program)
        assert len(consumers(socket)) == 1
        first.send(signal.SIGKILL)
        first.wait()
        (job / f"go-{HOLDS[0]}").touch()
        # More batches than were requested before the kill.
        lines += read_until_hold(program)
        second = stack.enter_context(service(socket))
        second.line()
        wait_until(lambda: len(consumers(socket)) == 1, what="the return of the rank")
        (job / f"go-{HOLDS[1]}").touch()
        lines += read_until_hold(program)
        (consumer,) = consumers(socket)
        assert consumer["samples"] > len(SIZES)
        (job / f"go-{HOLDS[2]}").touch()
        ((rest, errors),) = outcomes([program])
    lines += rest
    assert digests(lines) == expected(root, 0, 1, EPOCHS)
    assert lines[-1]["ok"]
    assert errors.count("this node's cache is gone") == 1, errors
    assert errors.count("through this node's cache again") == 1, errors
    assert len(errors.splitlines()) == 2, errors
