# SPDX-License-Identifier: Apache-2.0
"""Slurm's own commands: what they are asked, how they are run, and how their answers are read.

Separate from ``slurm``, which follows jobs by the answers and starts no process itself. A controller may take a minute
to answer, in which gates have to open, so that a question can be left to a thread.

Source: sbatch(1), scontrol(1), of Slurm 22.05: ``--begin`` has seconds, ``after:ID+N`` minutes.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from foresee.errors import ConfigError, SlurmUnreachable
from foresee.jobspec import Job

__all__ = [
    "PATIENCE",
    "SOONER",
    "Commands",
    "Controller",
    "Question",
    "dependency",
    "state",
    "submission",
    "whole_minutes",
]

SOONER = 3.0
"""Seconds before its moment at which a follower is asked to run: Slurm rounds, and starts jobs in turns."""
PATIENCE = 60.0
"""Seconds for an answer, and for a job to end."""


class Question(Protocol):
    """A question to the controller that is in flight."""

    @property
    def over(self) -> bool:
        """Whether the answer is there."""

    def answer(self) -> str:
        """Run a command to its end and return its output.

        Raises:
            ConfigError: the controller refuses, and says why.
            SlurmUnreachable: it does not answer.
        """


class Controller(Protocol):
    """Slurm's controller, as its commands reach it."""

    def ask(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        """Run a command to its end; what it prints.

        Raises:
            ConfigError: the controller refuses, and says why.
            SlurmUnreachable: it does not answer, or there is none.
        """

    def begin(self, *words: str) -> Question:
        """Run a command while the caller goes on."""


class Commands:
    """Slurm's commands on this machine."""

    def ask(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        """As of :class:`Controller`."""
        if shutil.which(words[0]) is None:
            raise SlurmUnreachable(
                f"{words[0]}: there is no such program here; run where Slurm's commands are"
            )
        try:
            ended = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                env={**os.environ, **(environment or {})},
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SlurmUnreachable(
                f"{words[0]}: no answer of Slurm's controller for {PATIENCE:g} s"
            ) from None
        if ended.returncode == 0:
            return ended.stdout
        raise refusal(words[0], ended.stderr.strip() or ended.stdout.strip())

    def begin(self, *words: str) -> Question:
        """As of :class:`Controller`."""
        return _Asked(self, words)


def refusal(command: str, printed: str) -> ConfigError | SlurmUnreachable:
    """The error of a command that has failed, by what it printed."""
    said = printed.removeprefix(f"{command}: ")
    if re.search(
        r"contact slurm controller|Connection (refused|reset|timed out)|Socket timed out|Zero Bytes|is DOWN|SLURM_CONF"
        r"|slurm\.conf",
        said,
    ):
        return SlurmUnreachable(
            f"{command}: {said}; is slurmctld running, and does SLURM_CONF name its configuration?"
        )
    return ConfigError(f"{command}: {said}")


class _Asked:
    """A question that a thread waits for."""

    def __init__(self, commands: Commands, words: Sequence[str]) -> None:
        self._answer: str | ConfigError | SlurmUnreachable | None = None
        # A daemon: the end of the program does not wait for it.
        self._thread = threading.Thread(
            target=self._run, args=(commands, *words), name="foresee-slurm", daemon=True
        )
        self._thread.start()

    def _run(self, commands: Commands, *words: str) -> None:
        try:
            self._answer = commands.ask(*words)
        except (ConfigError, SlurmUnreachable) as error:
            self._answer = error
        except OSError as error:
            self._answer = SlurmUnreachable(f"{words[0]}: {error}")

    @property
    def over(self) -> bool:
        """Whether the answer is there."""
        return not self._thread.is_alive()

    def answer(self) -> str:
        """As of :class:`Question`."""
        self._thread.join()
        if isinstance(self._answer, str):
            return self._answer
        assert self._answer is not None, "a question that is over has an answer"
        raise self._answer


def submission(
    words: Sequence[str],
    job: Job,
    name: str,
    where: str,
    log: str,
    *,
    begin: float | None = None,
    depends: str | None = None,
    options: Sequence[str] = (),
) -> list[str]:
    """The command that submits a job; its environment goes with it.

    Args:
        words: the job's command.
        job: its cores and GPUs are asked for.
        name: what Slurm calls it.
        where: the folder that it runs in.
        log: gets what it prints.
        begin: seconds from now before which it may not run; rounded down, as a job that is too early waits at the gate.
        depends: what it waits for.
        options: more for ``sbatch``; they go before ours.
    """
    asked = ["sbatch", "--parsable", f"--job-name={name}", f"--chdir={where}", f"--output={log}"]
    asked += ["--open-mode=append", "--export=ALL"]
    if job.run.cores is not None:
        asked.append(f"--cpus-per-task={job.run.cores}")
    if job.run.gpus:
        asked.append(f"--gpus={job.run.gpus}")
    if begin is not None:
        asked.append(f"--begin=now+{math.floor(begin)}")
    if depends is not None:
        asked.append(f"--dependency={depends}")
    # The shell of the script becomes the job: signals reach it.
    return [*asked, *options, f"--wrap=exec {shlex.join(words)}"]


def dependency(leader: str, minutes: int) -> str:
    """A job that runs when another one has begun, so many minutes later.

    >>> dependency("7", 0), dependency("7", 3)
    ('after:7', 'after:7+3')
    """
    return f"after:{leader}+{minutes}" if minutes else f"after:{leader}"


def whole_minutes(seconds: float) -> int:
    """Minutes that have passed some seconds before a moment.

    >>> whole_minutes(62), whole_minutes(64), whole_minutes(-5)
    (0, 1, 0)
    """
    return max(math.floor((seconds - SOONER) / 60), 0)


def state(told: str) -> dict[str, str]:
    """Parse the output of ``scontrol --oneliner show job`` by name.

    >>> state("JobId=7 JobName=a JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0")["ExitCode"]
    '3:0'
    """
    facts = dict(re.findall(r"(?:^|\s)([A-Za-z/]+)=(\S*)", told))
    if "JobState" not in facts:
        raise ConfigError(f"scontrol says nothing of the job's state: {told.strip()[:200]!r}")
    return facts
