# SPDX-License-Identifier: Apache-2.0
"""The host of a node's cache that does not come, and values of `FORESEE_NODE` that cannot be used: ranks read alone."""

from __future__ import annotations

import json
import pathlib
import signal
import socket
from collections.abc import Callable

import pytest
from support.data import make_folder
from support.node_ranks import digests, expected, launched, outcomes, ranks
from support.processes import child
from support.waiting import wait_until

import foresee

SIZES = [900 + 37 * (sample % 11) for sample in range(96)]


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """A data set."""
    return make_folder(tmp_path / "data", SIZES)


def stale(job: pathlib.Path) -> str:
    """Return the path of a socket without a process."""
    path = str(job / "stale.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound:
        bound.bind(path)
        bound.listen()
    return path


def plain_file(job: pathlib.Path) -> str:
    """Return the path of a file."""
    (job / "file").write_text("text")
    return str(job / "file")


@pytest.mark.parametrize(
    ("place", "remedy"),
    [
        pytest.param(stale, "foresee node", id="a socket without a process"),
        pytest.param(plain_file, "FORESEE_NODE", id="a plain file"),
        pytest.param(lambda job: str(job / "none.sock"), "foresee node", id="nothing"),
        pytest.param(lambda job: str(job / ("x" * 120)), "shorter", id="a path that is too long"),
        pytest.param(lambda job: "node.sock", "absolute", id="a relative path"),
    ],
)
def test_an_unusable_address_is_warned_about_once(
    job: pathlib.Path, root: pathlib.Path, place: Callable[[pathlib.Path], str], remedy: str
) -> None:
    with ranks(job, [{"root": str(root)}] * 2, env={"FORESEE_NODE": place(job)}) as programs:
        found = outcomes(programs)
    for rank, (lines, errors) in enumerate(found):
        assert digests(lines) == expected(root, rank, 2, 1)
        assert len(errors.splitlines()) == 1, errors
        assert "reads alone" in errors
        assert remedy in errors


def test_a_socket_of_another_program_is_warned_about_once(job: pathlib.Path, root: pathlib.Path) -> None:
    path = str(job / "other.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(path)
        other.listen()
        with ranks(job, [{"root": str(root)}] * 2, env={"FORESEE_NODE": path}) as programs:
            found = outcomes(programs)
    for rank, (lines, errors) in enumerate(found):
        assert digests(lines) == expected(root, rank, 2, 1)
        assert len(errors.splitlines()) == 1, errors
        assert "reads alone" in errors


WAITS = """
    import json, sys
    import foresee
    from support.processes import print_json
    plan = json.loads(sys.argv[1])
    loader = foresee.Loader(plan["root"], batch_size=8)
    print_json(ready=True)
    try:
        if plan["starts"]:
            loader.start()
        else:
            next(iter(loader))
    except KeyboardInterrupt:
        print_json(interrupted=True)
    loader.close()
    loader.close()
    print_json(closed=True)
"""


@pytest.mark.parametrize("starts", [True, False], ids=["start", "the first batch"])
def test_ctrl_c_ends_the_wait_for_a_host_that_does_not_come(
    job: pathlib.Path, root: pathlib.Path, starts: bool
) -> None:
    # An opened index: a listing would create the directory of the sockets before the wait.
    index = str(job / "data.fidx")
    foresee.Index.build(str(root), layout="folder").save(index)
    plan = json.dumps({"root": index, "starts": starts})
    with child(WAITS, plan, env=launched(1, 2, job)) as program:
        program.line()
        wait_until((job / "foresee").exists, what="the wait for the host")
        program.send(signal.SIGINT)
        status, output, errors = program.end()
    assert (status, errors) == (0, "")
    assert [json.loads(line) for line in output.splitlines()] == [{"interrupted": True}, {"closed": True}]
