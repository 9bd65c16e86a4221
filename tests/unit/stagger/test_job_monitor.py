# SPDX-License-Identifier: Apache-2.0
"""The monitor of one job: its ranks, its processes, and the files that they leave."""

from __future__ import annotations

import pathlib

import pytest
from support.fake_clock import FakeClock
from support.stagger_runs import write

from foresee import jobspec
from foresee._runtime.ranks import World
from foresee._runtime.step_times import Meter
from foresee.errors import ConfigError
from foresee.stagger import local_job
from foresee.stagger.external_job import ExternalJob
from foresee.stagger.job_monitor import JobMonitor


class FilesOnly(JobMonitor):
    """A job of which only the files exist."""

    def __init__(self, of: jobspec.Job, folder: str, clock: FakeClock) -> None:
        super().__init__(of, "a", folder, clock=clock)
        self._make_folder(held=False)

    def poll(self) -> int | None:
        """Read new steps."""
        self._read()
        return None

    def stop(self) -> None:
        """Do nothing: no process runs."""


def test_a_job_of_two_ranks_has_the_progress_of_the_slower_rank_and_the_mean_of_their_times(
    tmp_path: pathlib.Path,
) -> None:
    clock = FakeClock()
    monitor = FilesOnly(jobspec.read(write(tmp_path, "a", tmp_path / "data")), str(tmp_path), clock)
    clock.sleep(3.0)
    second = 10**9
    for rank in (0, 1):
        meter = Meter(monitor.folder, World(rank, 2))
        meter.timer(steps=40)
        for step in range(3 - rank):
            meter._add(second, (1 + 2 * rank) * second, 5 * second, 0, step)
    assert monitor.poll() is None
    assert monitor.done == 2
    assert monitor.steps().tolist() == [[1.0, 2.0, 5.0], [1.0, 2.0, 5.0]]
    assert monitor.head is not None
    assert (monitor.head.rank, monitor.head.ranks) == (0, 2)
    assert (monitor.started, monitor.last_step) == (clock.now() - 3.0, clock.now())


def test_a_reused_process_id_is_not_counted_as_part_of_the_job() -> None:
    def process(pid: int, start_time: int, parent: int, session: int) -> local_job._ProcessInfo:
        return local_job._ProcessInfo(local_job._ProcessId(pid, start_time), parent, session)

    first = local_job._ProcessId(10, start_time=500)
    family = {10: process(10, 500, 1, 10), 11: process(11, 510, 10, 10), 12: process(12, 520, 11, 12)}
    # Its session and its descendants; not an unrelated session.
    table = {**family, 99: process(99, 400, 1, 99)}
    assert local_job._related_processes(table, first, None) == {each.member for each in family.values()}
    assert local_job._related_processes(table, first._replace(start_time=499), None) == set()
    # The first process has ended. Its session id is not reused while a member of the session lives.
    del table[10]
    assert local_job._related_processes(table, first, None) == {family[11].member, family[12].member}


def test_an_external_job_without_steps_is_lost_after_its_patience(tmp_path: pathlib.Path) -> None:
    clock = FakeClock()
    of = jobspec.read(write(tmp_path, "a", tmp_path / "data"))
    with pytest.raises(ConfigError, match="no loader has written steps there"):
        ExternalJob(of, "a", str(tmp_path / "steps"), 2.0, clock=clock)
    meter = Meter(str(tmp_path / "steps"), World(0, 1))
    meter.timer(steps=40)
    monitor = ExternalJob(of, "a", str(tmp_path / "steps"), 2.0, clock=clock)
    clock.sleep(1.9)
    meter._add(0, 1, 1, 0, 0)
    assert monitor.poll() is None
    clock.sleep(2.0)
    assert monitor.poll() is None
    clock.sleep(0.1)
    assert monitor.poll() == 1
    for step in range(1, 40):
        meter._add(step, 1, 1, 0, step)
    assert monitor.poll() == 0
