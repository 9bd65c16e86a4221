# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run`` and ``calibrate`` in this process: the real command with fake jobs and a virtual clock."""

from __future__ import annotations

import functools
import json
import pathlib
import tempfile
from typing import Any

import pytest

from foresee.cli import main
from foresee.cli.stagger import calibrate
from foresee.cli.stagger import run as command
from foresee.jobspec import Job
from foresee.stagger.runner import Launcher
from support.fake_clock import FakeClock
from support.fake_jobs import FakeJob, FakeLauncher, FakeStorage

__all__ = ["Virtual", "virtual"]


class Virtual:
    """A host on which time passes only in sleeps."""

    def __init__(
        self, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.clock = FakeClock()
        self.storage = FakeStorage(self.clock)
        self.launcher = FakeLauncher(self.clock, self.storage)
        self.calibrated: list[FakeJob] = []
        """Jobs started by calibrations, in order."""
        self._folder, self._capsys = folder, capsys
        # Calibrations put their run folders there.
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        self._monkeypatch, self._run = monkeypatch, command.run
        self.launch_by(self.launcher)
        monkeypatch.setattr(
            calibrate,
            "run",
            functools.partial(calibrate.run, clock=self.clock, start=self._start, storage=self.storage),
        )

    def launch_by(self, launcher: Launcher | None) -> None:
        """Set the launcher of runs; None: the one that the options name."""
        run = functools.partial(self._run, clock=self.clock, launcher=launcher)
        self._monkeypatch.setattr(command, "run", run)

    def run(self, *arguments: str, code: int = 0) -> tuple[dict[str, Any], str]:
        """Run ``foresee stagger run``; returns its result and its messages."""
        out, messages = self.command(
            "run", *arguments, "--folder", str(self._folder / "run"), "--json", code=code
        )
        return json.loads(out) if out else {}, messages

    def calibrate(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Run ``foresee stagger calibrate``; returns its result."""
        return json.loads(self.command("calibrate", *arguments, *self._fixed(), code=code)[0])

    def refuse(self, *arguments: str, code: int = 2) -> str:
        """Run ``foresee stagger calibrate``, which must fail; returns its messages."""
        return self.command("calibrate", *arguments, *self._fixed(), code=code)[1]

    def command(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """Run ``foresee stagger``, which must exit with ``code``; returns standard output and errors."""
        self._capsys.readouterr()
        ended = main(["stagger", *arguments])
        out, messages = self._capsys.readouterr()
        assert ended == code, messages
        return out, messages

    def _fixed(self) -> list[str]:
        return ["--catalog", str(self._folder / "jobs.db"), "--machine", "here", "--json"]

    def _start(self, job: Job, name: str, folder: str, **more: Any) -> FakeJob:
        self.calibrated.append(FakeJob(job, name, folder, self.storage, load=0.5, **more))
        return self.calibrated[-1]


@pytest.fixture
def virtual(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Virtual:
    """A host in virtual time."""
    return Virtual(tmp_path, monkeypatch, capsys)
