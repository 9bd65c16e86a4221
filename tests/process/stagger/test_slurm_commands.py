# SPDX-License-Identifier: Apache-2.0
"""How Slurm's commands are run: scripts of their names, which answer what a test has written for them."""

from __future__ import annotations

import os
import pathlib

import pytest
from support.waiting import wait_until

from foresee.errors import ConfigError, SlurmUnreachable
from foresee.stagger.slurm_commands import Commands


@pytest.fixture
def script(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A program ``scontrol`` that is yet to be written."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    path = tmp_path / "scontrol"
    path.touch(mode=0o755)
    return path


def test_a_command_gets_its_words_and_environment_and_its_output_is_the_answer(script: pathlib.Path) -> None:
    script.write_text('#!/bin/sh\necho "$FORESEE_STEPS: $*"\n')
    told = Commands().run("scontrol", "show", "job", environment={"FORESEE_STEPS": "/steps"})
    assert told == "/steps: show job\n"


def test_what_slurm_refuses_and_a_slurm_that_is_not_there_are_told_apart(
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


def test_the_caller_goes_on_while_a_question_is_in_flight(
    script: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    # A pipe that a test opens when the answer is to come.
    os.mkfifo(tmp_path / "go")
    script.write_text(f"#!/bin/sh\ncat {tmp_path / 'go'}\n")
    future = Commands().start("scontrol", "show")
    assert not future.done()
    (tmp_path / "go").write_text("JobState=RUNNING")
    wait_until(future.done, what="the answer")
    assert future.result() == "JobState=RUNNING"


def test_a_question_that_is_refused_raises_when_it_is_answered(script: pathlib.Path) -> None:
    script.write_text("#!/bin/sh\necho 'Invalid job id specified' >&2; exit 1\n")
    future = Commands().start("scontrol", "show")
    wait_until(future.done, what="the answer")
    with pytest.raises(ConfigError, match="Invalid job id"):
        future.result()
