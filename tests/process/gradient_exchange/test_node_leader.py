# SPDX-License-Identifier: Apache-2.0
"""How processes of a node find their leader; a file lock belongs to a process, so each runs in its own."""

from __future__ import annotations

import contextlib
import signal
import threading
from pathlib import Path

import pytest
from support.processes import child, run

from foresee.errors import ConfigError
from foresee.torch import _node
from foresee.torch._node import LeaderAddress, find_leader, wait_for_leader


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def find_in_other_process(job: str, first: int, folder: Path) -> str | None:
    """The result of another process, since locks belong to a process."""
    source = """
        import sys, tempfile
        from support.processes import print_json
        from foresee.torch._node import find_leader
        tempfile.tempdir = sys.argv[1]
        print_json(found=find_leader(sys.argv[2], int(sys.argv[3])))
    """
    (report,) = run(source, str(folder), job, str(first), warm=True)
    found: str | None = report["found"]
    return found


def test_the_address_of_a_leader_is_found_until_it_is_closed(tmp_path: Path) -> None:
    with contextlib.closing(LeaderAddress("job", 4, "127.0.0.1:29600", 1.0)) as address:
        assert find_in_other_process("job", 4, tmp_path) == "127.0.0.1:29600"
        # Not for another node or another job.
        assert find_in_other_process("job", 0, tmp_path) is None
        assert find_in_other_process("other", 4, tmp_path) is None
    address.close()
    assert find_in_other_process("job", 4, tmp_path) is None
    (folder,) = tmp_path.iterdir()
    assert list(folder.iterdir()) == []


def test_the_file_of_a_killed_process_is_no_address(tmp_path: Path) -> None:
    path = Path(_node._path("job", 0))
    path.write_text("127.0.0.1:1\n")
    assert find_leader("job", 0) is None
    # The next leader reuses the file.
    with contextlib.closing(LeaderAddress("job", 0, "127.0.0.1:2", 1.0)):
        assert find_in_other_process("job", 0, tmp_path) == "127.0.0.1:2"


def test_one_process_at_a_time_publishes_an_address(tmp_path: Path) -> None:
    source = """
        import signal, sys, tempfile
        from support.processes import print_json
        from foresee.torch._node import LeaderAddress
        tempfile.tempdir = sys.argv[1]
        address = LeaderAddress("job", 0, "127.0.0.1:3", 1.0)
        print_json(holds=True)
        signal.pause()
    """
    with child(source, str(tmp_path), warm=True) as other:
        assert other.line() == {"holds": True}
        with pytest.raises(ConfigError, match="FORESEE_JOB"):
            LeaderAddress("job", 0, "127.0.0.1:4", 0.1)
        assert wait_for_leader("job", 0, 60.0) == find_leader("job", 0) == "127.0.0.1:3"
        # A killed process loses its lock.
        timer = threading.Timer(0.1, other.send, [signal.SIGKILL])
        timer.start()
        with contextlib.closing(LeaderAddress("job", 0, "127.0.0.1:4", 60.0)):
            assert find_in_other_process("job", 0, tmp_path) == "127.0.0.1:4"
        timer.join()
