# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run`` with real processes: stock loaders and our own, one that dies, one that runs already, and Ctrl-C.

What the command decides is proved in virtual time (``tests/unit/test_cli_stagger_*.py``); here nothing is about time.
"""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys

from support.processes import plain_environment, processes_of
from support.stagger_runs import begun, cold_data, ended, run
from support.stagger_runs import write as write_sleeper
from support.waiting import wait_until

BATCH, EPOCHS = 4, 2
#: argv: folder, loader, seconds of a step of the first epoch, and of one of the last.
TRAIN = """
import pathlib, sys
import foresee.torch as ft
from support.waiting import pause
from torch.utils.data import DataLoader, Dataset, DistributedSampler

folder, kind, cold, last = *sys.argv[1:3], *map(float, sys.argv[3:])

class Files(Dataset):
    def __init__(self):
        self.paths = sorted(path for path in pathlib.Path(folder).rglob('*') if path.is_file())
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, at):
        return self.paths[at].read_bytes()

if kind == 'stock':
    sampler = DistributedSampler(Files(), num_replicas=1, rank=0, seed=5)
    loader = ft.measure(DataLoader(Files(), batch_size=4, sampler=sampler, num_workers=1, collate_fn=list))
else:
    sampler = None
    loader = ft.DataLoader(ft.FolderDataset(folder), batch_size=4, shuffle=True, seed=5, epochs=2, collate_fn=list)
for epoch in range(2):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for batch in loader:
        pause(last if epoch else cold)
"""
TOML = """
version = 1
[data]
name = "files"
[train]
batch = 4
epochs = 2
steps_per_epoch = {steps}
seed = 5
compute_step = 0.04
[stagger]
wait = 0.1
wait_cached = 0.0
wait_conc = 0.1
[run]
command = {command}
"""


def write(folder: pathlib.Path, data: pathlib.Path, kind: str, cold: float, steps: int) -> str:
    """The job file of a script that trains; ``cold``: a step of its first epoch, waiting included."""
    (folder / "train.py").write_text(TRAIN)
    command = [sys.executable, "train.py", str(data), kind, str(cold), "0.04"]
    path = folder / f"{kind}.toml"
    path.write_text(TOML.format(command=json.dumps(command), steps=steps))
    return str(path)


def test_ours_starts_behind_a_stock_loader(
    tmp_path: pathlib.Path, folder: pathlib.Path, sizes: list[int]
) -> None:
    steps = len(sizes) // BATCH
    jobs = [write(tmp_path, folder, "stock", 0.14, steps), write(tmp_path, folder, "ours", 0.04, steps)]
    told, said = run(tmp_path, *jobs)
    assert (told["leader"], told["followers"]) == ("stock", ["ours"])
    assert [job["state"] for job in told["jobs"]] == ["done", "done"]
    assert [job["steps"] for job in told["jobs"]] == [EPOCHS * steps] * 2
    # However slow the machine is: its loader was held at the gate until the leader was so far.
    assert told["measured"]["starts"][1] >= steps * 0.1 * 0.95
    assert "ours starts at" in said
    assert told == json.loads((tmp_path / "run" / "stagger.json").read_text())
    assert not processes_of(folder)


def test_a_stock_loader_starts_behind_ours_that_runs_already(
    tmp_path: pathlib.Path, folder: pathlib.Path, sizes: list[int]
) -> None:
    steps = len(sizes) // BATCH
    jobs = [write(tmp_path, folder, "ours", 0.14, steps), write(tmp_path, folder, "stock", 0.04, steps)]
    place = tmp_path / "elsewhere" / "ours"
    command = [sys.executable, str(tmp_path / "train.py"), str(folder), "ours", "0.14", "0.04"]
    with subprocess.Popen(command, env=plain_environment({"FORESEE_STEPS": str(place)})) as leader:
        wait_until((place / "rank-0.steps").exists, what="its loader")
        told, said = run(tmp_path, *jobs, "--steps", str(place))
        assert leader.wait() == 0
    assert (told["leader"], told["followers"]) == ("ours", ["stock"])
    assert told["running_seconds"] >= 0
    assert [job["state"] for job in told["jobs"]] == ["done", "done"]
    assert [job["steps"] for job in told["jobs"]] == [EPOCHS * steps] * 2
    assert told["jobs"][0]["launched"] is None
    assert told["measured"]["starts"][1] >= steps * 0.1 * 0.95
    assert "ours runs already, stock" in said


def test_a_job_that_dies_leaves_the_other_alone(tmp_path: pathlib.Path) -> None:
    data = cold_data(tmp_path)
    jobs = [write_sleeper(tmp_path, "a", data, "--dies-after", "5"), write_sleeper(tmp_path, "b", data)]
    told, said = run(tmp_path, *jobs, code=1)
    assert [job["state"] for job in told["jobs"]] == ["failed", "done"]
    assert [job["steps"] for job in told["jobs"]] == [5, 40]
    assert told["jobs"][0]["code"] == 3
    assert "a ended (exit code 3) after 5 steps" in said
    assert "no more memory" in said
    assert not processes_of(data)


def test_ctrl_c_ends_all_jobs_and_signals_that_follow_end_none_of_that(tmp_path: pathlib.Path) -> None:
    data = cold_data(tmp_path)
    # Both start at once, and neither ends when it is told to.
    together = "wait = 0.0\nwait_cached = 0.0\nwait_conc = 0.0"
    words = ("--deaf", "--hangs-after", "2")
    jobs = [write_sleeper(tmp_path, name, data, *words, stagger=together) for name in ("a", "b")]
    # So that the jobs are killed after a second, not after ten.
    program = "import sys; from foresee.cli import main; from foresee.stagger import local_job; local_job._GRACE = 1.0; "
    with begun(tmp_path, *jobs, program=f"{program}sys.exit(main(sys.argv[1:]))") as launcher:
        for name in ("a", "b"):
            steps = tmp_path / "run" / name / "rank-0.steps"
            wait_until(lambda steps=steps: steps.exists() and steps.stat().st_size >= 96, what="two steps")
        launcher.send_signal(signal.SIGINT)
        log = tmp_path / "run" / "a.log"
        wait_until(lambda: "does not listen" in log.read_text(), what="the end of the jobs")
        launcher.send_signal(signal.SIGINT)
        launcher.send_signal(signal.SIGTERM)
        out, _ = ended(launcher, 130)
    told = json.loads(out)
    assert told["interrupted"] is True
    assert [(job["state"], job["steps"]) for job in told["jobs"]] == [("stopped", 2), ("stopped", 2)]
    assert not processes_of(data)
