# SPDX-License-Identifier: Apache-2.0
"""Which ranks exchange as one, and how they find each other on their machine."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from foresee._world import World, detect
from foresee.errors import ConfigError, RankLost
from foresee.torch import _machine
from foresee.torch._machine import Meeting, find, first_rank, meet


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.parametrize(
    ("world", "first"),
    [
        (World(5, 8, 1, 4, True), 4),
        (World(4, 8, 0, 4, True), 4),
        (World(0, 2, 0, 2, True), 0),
        (World(3, 4, 0, 1, True), None),
        # Unevenly spread, not in the order of the machines, or not known.
        (World(1, 5, 1, 2, True), None),
        (World(1, 4, 0, 2, True), None),
        (World(1, 2, 1, 2, False), None),
    ],
)
def test_ranks_of_even_machines_in_order_exchange_as_one(world: World, first: int | None) -> None:
    assert first_rank(world) == first


def test_only_a_launcher_that_says_how_many_ranks_a_machine_has_is_believed() -> None:
    both = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert detect(environ=both).local_size_known
    assert detect(1, 2, environ=both).local_size_known
    del both["LOCAL_WORLD_SIZE"]
    assert detect(environ=both) == World(1, 2, 1, 2, local_size_known=False)
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}
    assert not detect(environ=slurm).local_size_known
    assert detect(environ=slurm | {"SLURM_NTASKS_PER_NODE": "2"}).local_size_known


def elsewhere(job: str, first: int, folder: Path) -> str:
    """What another process finds: locks are a process's."""
    source = f"import tempfile; tempfile.tempdir = {str(folder)!r}\nfrom foresee.torch._machine import find\nprint(find({job!r}, {first}))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip()


def test_the_address_is_found_while_the_meeting_lasts(tmp_path: Path) -> None:
    with Meeting("job", 4, "127.0.0.1:29600", 1.0) as meeting:
        assert elsewhere("job", 4, tmp_path) == "127.0.0.1:29600"
        # Neither another machine's nor another job's.
        assert elsewhere("job", 0, tmp_path) == "None"
        assert elsewhere("other", 4, tmp_path) == "None"
    meeting.close()
    assert elsewhere("job", 4, tmp_path) == "None"
    (folder,) = tmp_path.iterdir()
    assert list(folder.iterdir()) == []


def test_what_a_killed_process_left_is_no_address(tmp_path: Path) -> None:
    path = Path(_machine._path("job", 0))
    path.write_text("127.0.0.1:1\n")
    assert find("job", 0) is None
    # The next one takes the file over.
    with Meeting("job", 0, "127.0.0.1:2", 1.0):
        assert elsewhere("job", 0, tmp_path) == "127.0.0.1:2"


def test_one_process_at_a_time_has_the_meeting(tmp_path: Path) -> None:
    source = (
        f"import sys, tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
        "from foresee.torch._machine import Meeting\n"
        "Meeting('job', 0, '127.0.0.1:3', 1.0)\nprint('has it', flush=True)\nsys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdin is not None
    try:
        assert other.stdout.readline() == "has it\n"
        with pytest.raises(ConfigError, match="FORESEE_JOB"):
            Meeting("job", 0, "127.0.0.1:4", 0.1)
        assert meet("job", 0, 60.0) == find("job", 0) == "127.0.0.1:3"
        # Killed, as it may be: the lock goes with it.
        timer = threading.Timer(0.1, other.kill)
        timer.start()
        with Meeting("job", 0, "127.0.0.1:4", 60.0):
            assert elsewhere("job", 0, tmp_path) == "127.0.0.1:4"
        timer.join()
    finally:
        other.kill()
        other.communicate()


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    folder = Path(_machine._path("job", 0)).parent
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match="not this user's alone"):
        Meeting("job", 0, "127.0.0.1:5", 0.1)


def test_whoever_waits_for_the_first_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_machine, "SAY_EVERY_S", 0.0)
    answers = iter([None, None, "127.0.0.1:6"])
    monkeypatch.setattr(_machine, "find", lambda job, first: next(answers))
    assert meet("job", 4, 60.0) == "127.0.0.1:6"
    assert "waiting for rank 4, which exchanges for this machine" in caplog.text


def test_a_first_rank_that_never_comes_is_named_and_not_waited_for_without_end() -> None:
    with pytest.raises(
        RankLost, match=r"rank 4, which exchanges for this machine, did not come .* within 0 s"
    ) as lost:
        meet("job", 4, 0.1)
    assert lost.value.rank == 4
