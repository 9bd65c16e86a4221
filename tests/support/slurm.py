# SPDX-License-Identifier: Apache-2.0
"""A real Slurm on this host: its daemons and one node, independent of the system's configuration.

It needs root, because slurmd runs as root, and Debian's `slurmctld slurmd slurm-client munge`.
"""

from __future__ import annotations

import os
import pathlib
import platform
import shutil
import socket
import subprocess
from collections.abc import Callable
from types import TracebackType

from support.waiting import WATCHDOG, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel")
PACKAGES = "slurmctld slurmd slurm-client munge"

CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=1
ReturnToService=2
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node} CPUs=4 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=n1 Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Return why Slurm cannot run on this host, or None."""
    if os.geteuid() != 0:
        return "not root"
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"no {' '.join(lacking)}: `apt-get install {PACKAGES}`" if lacking else None


class Slurm:
    """A controller and a node, which run until the end of the ``with`` block."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Slurm:
        reason = missing()
        assert reason is None, reason
        folder = self._folder
        for name in ("state", "spool"):
            (folder / name).mkdir(parents=True)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        ports = {"controller": _free_port(), "node": _free_port()}
        (folder / "slurm.conf").write_text(
            CONFIGURATION.format(folder=folder, host=platform.node().split(".")[0], **ports)
        )
        try:
            files = {
                name: f"{folder}/{name}" for name in ("munge.socket", "munge.log", "munge.pid", "munge.seed")
            }
            self._start(
                "munged",
                "--foreground",
                "--force",
                f"--key-file={key}",
                f"--socket={files['munge.socket']}",
                f"--log-file={files['munge.log']}",
                f"--pid-file={files['munge.pid']}",
                f"--seed-file={files['munge.seed']}",
            )
            self._await("munge", (folder / "munge.socket").exists)
            self._start("slurmctld", "-D")
            self._start("slurmd", "-D", "-N", "n1")
            self._await("an idle node", lambda: "idle" in self.run("sinfo", "-h", "-o", "%T"))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all daemons."""
        while self._daemons:
            daemon = self._daemons.pop()
            daemon.terminate()
            try:
                daemon.wait(WATCHDOG)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def stop_controller(self) -> None:
        """End only the controller."""
        daemon = self._daemons.pop(1)
        daemon.terminate()
        daemon.wait(WATCHDOG)

    def run(self, *words: str) -> str:
        """Run one of Slurm's commands; returns its output."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stdout

    def _start(self, *words: str) -> None:
        with (self._folder / f"{words[0]}.out").open("ab") as out:
            environment = {**os.environ, **self.environment}
            self._daemons.append(
                subprocess.Popen(words, env=environment, stdout=out, stderr=out, start_new_session=True)
            )

    def _await(self, what: str, there: Callable[[], object]) -> None:
        try:
            wait_until(there, what=what)
        except AssertionError as error:
            files = (*self._folder.glob("*.out"), *self._folder.glob("*.log"))
            logs = "\n".join(path.read_text()[-1500:] for path in files)
            raise AssertionError(f"{error}:\n{logs}") from None


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
