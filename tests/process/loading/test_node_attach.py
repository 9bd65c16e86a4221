# SPDX-License-Identifier: Apache-2.0
"""Loaders whose service does not answer at their start, or takes back memory that they have not copied."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
from typing import Any

from support.data import make_folder
from support.node_ranks import digests, expected, outcomes, ranks, read_until_hold
from support.node_service import consumers, service
from support.servers import Bucket
from support.waiting import wait_until

SIZES = [900 + 37 * (sample % 11) for sample in range(96)]
#: A user that owns nothing here.
OTHER_UID = 54321


def test_a_loader_reads_alone_while_its_service_is_stopped_and_attaches_to_it_later(
    job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root, socket = make_folder(tmp_path / "data", SIZES), job / "node.sock"
    plan = {"root": str(root), "epochs": 2, "hold_at": [3]}
    with contextlib.ExitStack() as stack:
        stopped = stack.enter_context(service(socket))
        stopped.line()
        stopped.send(signal.SIGSTOP)
        (program,) = stack.enter_context(ranks(job, [plan], env={"FORESEE_NODE": str(socket)}))
        lines = read_until_hold(program)
        stopped.send(signal.SIGCONT)
        wait_until(lambda: len(consumers(socket)) == 1, what="the attachment of the rank")
        (job / "go-3").touch()
        ((rest, errors),) = outcomes([program])
    assert digests(lines + rest) == expected(root, 0, 1, 2)
    assert rest[-1]["ok"]
    assert rest[-1]["stats"]["node"]["attached"]
    first, second = errors.splitlines()
    assert "does not answer" in first
    assert "reads the origin alone until it does" in first
    assert "reads through this node's cache" in second


def test_a_directory_of_another_user_is_no_place_for_a_host(
    job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root = make_folder(tmp_path / "data", SIZES)
    (job / "foresee").mkdir(mode=0o700)
    os.chown(job / "foresee", OTHER_UID, OTHER_UID)
    with ranks(job, [{"root": str(root)}] * 2) as programs:
        found = outcomes(programs)
    for rank, (lines, errors) in enumerate(found):
        assert digests(lines) == expected(root, rank, 2, 1)
        assert f"it belongs to uid {OTHER_UID} instead of 0" in errors
        # Once for the listing, and once for the cache.
        assert errors.count("alone") == len(errors.splitlines()) == 2, errors


def test_a_consumer_gets_its_own_bytes_although_its_memory_was_taken_back(
    bucket: Bucket, job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Answers fill the memory of the service while their consumer is stopped, and another consumer needs that memory."""
    sizes = [20_000 + 1700 * (sample % 13) for sample in range(300)]
    root, socket = make_folder(tmp_path / "data", sizes), job / "node.sock"
    bucket.put_folder(root)
    plan: dict[str, Any] = {"root": bucket.uri, "storage_options": bucket.options, "hold_at": [0]}
    env = {"FORESEE_NODE": str(socket)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(service(socket, ram="2MB")).line()
        (stopped,) = stack.enter_context(ranks(job, [plan], env=env))
        begun = read_until_hold(stopped)
        with bucket.testbed.stopped():
            (job / "go-0").touch()
            wait_until(
                lambda: consumers(socket)[0]["waiting"] >= 60, what="requests for more than the memory"
            )
            stopped.send(signal.SIGSTOP)
        (other,) = stack.enter_context(ranks(job, [plan], env=env))
        ((lines, errors),) = outcomes([other])
        stopped.send(signal.SIGCONT)
        ((later, warnings),) = outcomes([stopped])
    assert digests(lines) == digests(begun + later) == expected(root, 0, 1, 1)
    assert (errors, warnings) == ("", "")
    assert later[-1]["ok"]
