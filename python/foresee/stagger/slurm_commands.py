# SPDX-License-Identifier: Apache-2.0
"""Slurm's commands: their arguments, their execution, and the parsing of their output.

``slurm`` follows jobs by the results and starts no process itself. A controller may take a minute to answer while gates
have to open, so a command can run in a thread.

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
from concurrent.futures import Future
from typing import Protocol

from foresee.errors import ConfigError, SlurmUnreachable
from foresee.jobspec import Job

__all__ = [
    "PATIENCE",
    "SOONER",
    "Commands",
    "Controller",
    "dependency",
    "state",
    "submission",
    "whole_minutes",
]

SOONER = 3.0
"""Seconds before its start at which Slurm should run a follower: Slurm rounds, and schedules at intervals."""
PATIENCE = 60.0
"""Seconds for a command, and for a job to end."""


class Controller(Protocol):
    """Slurm's controller, reached by its commands."""

    def run(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        """Run a command and return its output.

        Raises:
            ConfigError: the controller refuses; with its reason.
            SlurmUnreachable: it does not answer, or there is none.
        """

    def start(self, *words: str) -> Future[str]:
        """Start a command; the future has the output or the error of :meth:`run`."""


class Commands:
    """Slurm's commands on this host."""

    def run(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        """As of :class:`Controller`."""
        if shutil.which(words[0]) is None:
            raise SlurmUnreachable(f"{words[0]}: no such program on this host; run where Slurm is installed")
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

    def start(self, *words: str) -> Future[str]:
        """As of :class:`Controller`."""
        future = Future[str]()

        def run() -> None:
            try:
                future.set_result(self.run(*words))
            except OSError as error:
                future.set_exception(SlurmUnreachable(f"{words[0]}: {error}"))
            except BaseException as error:  # noqa: BLE001 - raised by `result`
                future.set_exception(error)

        # An executor would join its threads at exit; a daemon thread does not delay the end of the program.
        threading.Thread(target=run, name="foresee-slurm", daemon=True).start()
        return future


def refusal(command: str, printed: str) -> ConfigError | SlurmUnreachable:
    """Return the error of a failed command, by its output."""
    message = printed.removeprefix(f"{command}: ")
    if re.search(
        r"contact slurm controller|Connection (refused|reset|timed out)|Socket timed out|Zero Bytes|is DOWN|SLURM_CONF"
        r"|slurm\.conf",
        message,
    ):
        return SlurmUnreachable(
            f"{command}: {message}; is slurmctld running, and does SLURM_CONF name its configuration?"
        )
    return ConfigError(f"{command}: {message}")


def submission(
    words: Sequence[str],
    job: Job,
    name: str,
    cwd: str,
    log: str,
    *,
    begin: float | None = None,
    depends: str | None = None,
    options: Sequence[str] = (),
) -> list[str]:
    """Return the command that submits a job along with its environment.

    Args:
        words: the job's command.
        job: gives the cores and GPUs.
        name: Slurm's name of the job.
        cwd: its working directory.
        log: the file of its output.
        begin: seconds from now before which it may not run; rounded down, as an early job waits at the gate.
        depends: its dependency.
        options: more options for ``sbatch``.
    """
    command = ["sbatch", "--parsable", f"--job-name={name}", f"--chdir={cwd}", f"--output={log}"]
    command += ["--open-mode=append", "--export=ALL"]
    if job.run.cores is not None:
        command.append(f"--cpus-per-task={job.run.cores}")
    if job.run.gpus:
        command.append(f"--gpus={job.run.gpus}")
    if begin is not None:
        command.append(f"--begin=now+{math.floor(begin)}")
    if depends is not None:
        command.append(f"--dependency={depends}")
    # `exec`: signals to the script reach the job.
    return [*command, *options, f"--wrap=exec {shlex.join(words)}"]


def dependency(leader: str, minutes: int) -> str:
    """Return the dependency on the start of another job, plus minutes.

    >>> dependency("7", 0), dependency("7", 3)
    ('after:7', 'after:7+3')
    """
    return f"after:{leader}+{minutes}" if minutes else f"after:{leader}"


def whole_minutes(seconds: float) -> int:
    """Return the whole minutes up to ``SOONER`` seconds before a time.

    >>> whole_minutes(62), whole_minutes(64), whole_minutes(-5)
    (0, 1, 0)
    """
    return max(math.floor((seconds - SOONER) / 60), 0)


def state(output: str) -> dict[str, str]:
    """Parse the output of ``scontrol --oneliner show job`` by name.

    >>> state("JobId=7 JobName=a JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0")["ExitCode"]
    '3:0'
    """
    facts = dict(re.findall(r"(?:^|\s)([A-Za-z/]+)=(\S*)", output))
    if "JobState" not in facts:
        raise ConfigError(f"scontrol printed no JobState: {output.strip()[:200]!r}")
    return facts
