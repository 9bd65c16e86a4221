# SPDX-License-Identifier: Apache-2.0
"""Calls of Slurm's commands, which are scripts with fixed answers."""

from __future__ import annotations

import os
import pathlib

import pytest
from support.waiting import wait_until

from foresee.errors import ConfigError, SlurmUnreachable
from foresee.stagger.slurm_commands import Commands


@pytest.fixture
def script(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An empty program ``scontrol``, which a test fills."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    path = tmp_path / "scontrol"
    path.touch(mode=0o755)
    return path


def test_a_command_gets_its_arguments_and_environment_and_returns_its_output(script: pathlib.Path) -> None:
    script.write_text('#!/bin/sh\necho "$FORESEE_STEPS: $*"\n')
    output = Commands().run("scontrol", "show", "job", environment={"FORESEE_STEPS": "/steps"})
    assert output == "/steps: show job\n"


def test_a_refusal_of_slurm_differs_from_an_unreachable_slurm(
    script: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text("#!/bin/sh\necho 'scontrol: error: invalid partition specified' >&2; exit 1\n")
    with pytest.raises(ConfigError, match=r"^scontrol: error: invalid partition specified$"):
        Commands().run("scontrol", "ping")
    script.write_text("#!/bin/sh\necho 'Slurmctld(primary) at here is DOWN'; exit 1\n")
    with pytest.raises(SlurmUnreachable, match="is slurmctld running"):
        Commands().run("scontrol", "ping")
    monkeypatch.setattr("foresee.stagger.slurm_commands.PATIENCE", 0.2)
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    with pytest.raises(SlurmUnreachable, match=r"no answer of Slurm's controller for 0\.2 s"):
        Commands().run("scontrol", "ping")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(SlurmUnreachable, match="scontrol: no such program on this host"):
        Commands().run("scontrol", "ping")


def test_a_started_command_does_not_block_its_caller(script: pathlib.Path, tmp_path: pathlib.Path) -> None:
    # The script answers once the test writes to this pipe.
    os.mkfifo(tmp_path / "go")
    script.write_text(f"#!/bin/sh\ncat {tmp_path / 'go'}\n")
    future = Commands().start("scontrol", "show")
    assert not future.done()
    (tmp_path / "go").write_text("JobState=RUNNING")
    wait_until(future.done, what="the answer")
    assert future.result() == "JobState=RUNNING"


def test_a_refused_command_raises_when_its_result_is_read(script: pathlib.Path) -> None:
    script.write_text("#!/bin/sh\necho 'Invalid job id specified' >&2; exit 1\n")
    future = Commands().start("scontrol", "show")
    wait_until(future.done, what="the answer")
    with pytest.raises(ConfigError, match="Invalid job id"):
        future.result()
