# SPDX-License-Identifier: Apache-2.0
"""Progress on a terminal, and Ctrl-C: a command prints its results so far."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support.environment import plain_environment
from support.pictures import texts
from support.small_job import SMALL
from support.traced_runs import THERE, folder, run
from support.waiting import WATCHDOG


class OnTerminal:
    """A command with progress on a terminal; it has drawn some progress when the block begins."""

    def __init__(self, *arguments: str) -> None:
        self._terminal, end = os.openpty()
        command = [sys.executable, "-m", "foresee", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=end, text=True, env=plain_environment()
        )
        os.close(end)
        self.progress = b""
        """Return the whole output after its end."""
        while b"%" not in self.progress:
            self.progress += os.read(self._terminal, 4096)

    def end(self) -> tuple[int, str]:
        """Return the exit status and the output."""
        output, _ = self.process.communicate(timeout=WATCHDOG)
        # Reading a terminal without writers ends with an error.
        with contextlib.suppress(OSError):
            while more := os.read(self._terminal, 4096):
                self.progress += more
        return self.process.returncode, output

    def close(self) -> None:
        """Kill the process if it still runs."""
        self.process.kill()
        self.process.communicate()
        os.close(self._terminal)


@contextlib.contextmanager
def on_terminal(*arguments: str) -> Iterator[OnTerminal]:
    command = OnTerminal(*arguments)
    try:
        yield command
    finally:
        command.close()


def predict(tmp_path: Path) -> list[str]:
    """Arguments of a prediction."""
    traced = str(folder(tmp_path, run()))
    (tmp_path / "there.toml").write_text(THERE.format(origin=5.0))
    return ["predict", traced, "--profile", str(tmp_path / "there.toml"), "--json", "--policies"]


def test_progress_is_drawn_on_a_terminal_and_its_line_is_removed(tmp_path: Path) -> None:
    with on_terminal(*predict(tmp_path), "perfect", "naive") as command:
        status, output = command.end()
    assert status == 0, command.progress
    assert [one["policy"] for one in json.loads(output)["policies"]] == ["perfect", "naive"]
    assert b"of 2" in command.progress
    assert command.progress.endswith(b"\r\x1b[K")


def test_ctrl_c_prints_the_predictions_so_far(tmp_path: Path) -> None:
    job = tmp_path / "long.toml"
    job.write_text("version = 1\n[train]\nepochs = 30000\n")
    with on_terminal(*predict(tmp_path), "nopfs", "foresee", "--job", str(job)) as command:
        command.process.send_signal(signal.SIGINT)
        status, output = command.end()
    assert status == 130, command.progress
    facts = json.loads(output)
    assert facts["interrupted"]
    assert [one["policy"] for one in facts["policies"]] == ["nopfs"]
    assert command.progress.endswith(b"interrupted\r\n")


def test_ctrl_c_prints_the_simulations_so_far(tmp_path: Path) -> None:
    path = tmp_path / "long.toml"
    path.write_text(SMALL.replace("samples = 3000", "samples = 300000").replace("epochs = 3", "epochs = 300"))
    picture = tmp_path / "bars.svg"
    policies = ("perfect", "foresee", "nopfs")
    with on_terminal("simulate", str(path), "--policies", *policies, "--plot", str(picture)) as command:
        command.process.send_signal(signal.SIGINT)
        status, output = command.end()
    assert status == 130, command.progress
    assert "interrupted" in output
    assert "~" in output
    drawn = texts(picture)
    assert any("interrupted" in text for text in drawn)
    assert "~foresee" in drawn


def test_ctrl_c_prints_the_sizes_so_far(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    large = SMALL.replace("samples = 3000", "samples = 3_000_000").replace("epochs = 3", "epochs = 90")
    path.write_text(large)
    of = "cluster.tiers.ram.capacity=1..300GB"
    with on_terminal("size", str(path), "--of", of, "--within", "1 d", "--json") as command:
        command.process.send_signal(signal.SIGINT)
        status, output = command.end()
    assert status == 130, command.progress
    facts = json.loads(output)
    assert facts["interrupted"]
    assert facts["points"] == []
