# SPDX-License-Identifier: Apache-2.0
"""Step files of real processes: a thread that waits at a gate, and a killed program."""

from __future__ import annotations

import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import threading

from support.waiting import WATCHDOG, pause

from foresee._runtime import step_times
from foresee._runtime.ranks import World
from foresee._runtime.step_times import Meter, StepsReader


def test_a_locked_gate_stops_the_loop_between_two_steps(tmp_path: pathlib.Path) -> None:
    gate = os.open(tmp_path / step_times.GATE, os.O_RDWR | os.O_CREAT)
    meter = Meter(str(tmp_path), World(0, 1))
    file = StepsReader(str(tmp_path / "rank-0.steps"))
    timer = meter.timer(steps=3)
    timer.begin_wait()
    timer.end_wait()
    fcntl.flock(gate, fcntl.LOCK_EX)
    thread = threading.Thread(target=timer.begin_wait)
    thread.start()
    pause(0.2)
    assert thread.is_alive()
    # The previous step has ended and is written while the gate is locked.
    (first,) = file.poll()
    fcntl.flock(gate, fcntl.LOCK_UN)
    thread.join(WATCHDOG)
    assert not thread.is_alive()
    timer.end_wait()
    timer.end_step()
    (second,) = file.poll()
    end = first["begin_ns"] + first["wait_ns"] + first["compute_ns"]
    assert second["begin_ns"] > end
    # The loop holds no lock: the launcher can lock the gate again immediately.
    fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(gate)


def test_a_kill_loses_no_finished_step(tmp_path: pathlib.Path) -> None:
    script = (
        "import os, signal\nfrom foresee._runtime.step_times import Meter\n"
        "timer = Meter(os.environ['FORESEE_STEPS']).timer()\n"
        "for _ in range(1000):\n    timer.begin_wait()\n    timer.end_wait()\n"
        "timer.begin_wait()\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    steps = tmp_path / "steps"
    environment = {**os.environ, "FORESEE_STEPS": str(steps)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(StepsReader(str(steps / "rank-0.steps")).poll()) == 1000
