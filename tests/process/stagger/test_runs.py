# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run`` with real processes: stock and Foresee loaders, a failed job, a running job, and Ctrl-C.

Unit tests check the decisions in virtual time (``tests/unit/cli/test_cli_stagger_*.py``).
"""

from __future__ import annotations

import json
import pathlib
import signal
import sys

from support.processes import child, processes_of
from support.stagger_runs import begun, ended, run, uncached_data
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
    """Write the job file of a training script; ``cold``: seconds of a step of its first epoch, with the wait."""
    (folder / "train.py").write_text(TRAIN)
    command = [sys.executable, "train.py", str(data), kind, str(cold), "0.04"]
    path = folder / f"{kind}.toml"
    path.write_text(TOML.format(command=json.dumps(command), steps=steps))
    return str(path)


def test_a_foresee_loader_starts_after_a_stock_loader(
    tmp_path: pathlib.Path, folder: pathlib.Path, sizes: list[int]
) -> None:
    steps = len(sizes) // BATCH
    jobs = [write(tmp_path, folder, "stock", 0.14, steps), write(tmp_path, folder, "ours", 0.04, steps)]
    result, messages = run(tmp_path, *jobs)
    assert (result["leader"], result["followers"]) == ("stock", ["ours"])
    assert [job["state"] for job in result["jobs"]] == ["done", "done"]
    assert [job["steps"] for job in result["jobs"]] == [EPOCHS * steps] * 2
    # On any machine: the loader was held at the gate until the leader had advanced far enough.
    assert result["measured"]["starts"][1] >= steps * 0.1 * 0.95
    assert "ours starts at" in messages
    assert result == json.loads((tmp_path / "run" / "stagger.json").read_text())
    assert not processes_of(folder)


def test_a_stock_loader_starts_after_a_foresee_loader_that_runs_already(
    tmp_path: pathlib.Path, folder: pathlib.Path, sizes: list[int]
) -> None:
    steps = len(sizes) // BATCH
    jobs = [write(tmp_path, folder, "ours", 0.14, steps), write(tmp_path, folder, "stock", 0.04, steps)]
    steps_folder = tmp_path / "other" / "ours"
    env = {"FORESEE_STEPS": str(steps_folder)}
    with child(TRAIN, str(folder), "ours", "0.14", "0.04", env=env, warm=True) as leader:
        wait_until((steps_folder / "rank-0.steps").exists, what="its loader")
        result, messages = run(tmp_path, *jobs, "--steps", str(steps_folder))
        assert leader.wait() == 0
    assert (result["leader"], result["followers"]) == ("ours", ["stock"])
    assert result["running_seconds"] >= 0
    assert [job["state"] for job in result["jobs"]] == ["done", "done"]
    assert [job["steps"] for job in result["jobs"]] == [EPOCHS * steps] * 2
    assert result["jobs"][0]["launched"] is None
    assert result["measured"]["starts"][1] >= steps * 0.1 * 0.95
    assert "ours runs already, stock" in messages


def test_a_failed_job_does_not_end_the_other(tmp_path: pathlib.Path) -> None:
    data = uncached_data(tmp_path)
    jobs = [write_sleeper(tmp_path, "a", data, "--dies-after", "5"), write_sleeper(tmp_path, "b", data)]
    result, messages = run(tmp_path, *jobs, code=1)
    assert [job["state"] for job in result["jobs"]] == ["failed", "done"]
    assert [job["steps"] for job in result["jobs"]] == [5, 40]
    assert result["jobs"][0]["code"] == 3
    assert "a ended (exit code 3) after 5 steps" in messages
    assert "no more memory" in messages
    assert not processes_of(data)


def test_ctrl_c_ends_all_jobs_and_later_signals_do_not_interrupt_the_cleanup(tmp_path: pathlib.Path) -> None:
    data = uncached_data(tmp_path)
    # Both start at once and ignore SIGTERM.
    together = "wait = 0.0\nwait_cached = 0.0\nwait_conc = 0.0"
    words = ("--ignore-sigterm", "--hangs-after", "2")
    jobs = [write_sleeper(tmp_path, name, data, *words, stagger=together) for name in ("a", "b")]
    # Kill the jobs after one second instead of ten.
    program = "import sys; from foresee.cli import main; from foresee.stagger import local_job; local_job._GRACE = 1.0; "
    with begun(tmp_path, *jobs, program=f"{program}sys.exit(main(sys.argv[1:]))") as launcher:
        for name in ("a", "b"):
            steps = tmp_path / "run" / name / "rank-0.steps"
            wait_until(lambda steps=steps: steps.exists() and steps.stat().st_size >= 96, what="two steps")
        launcher.send_signal(signal.SIGINT)
        log = tmp_path / "run" / "a.log"
        wait_until(lambda: "ignores SIGTERM" in log.read_text(), what="the end of the jobs")
        launcher.send_signal(signal.SIGINT)
        launcher.send_signal(signal.SIGTERM)
        out, _ = ended(launcher, 130)
    result = json.loads(out)
    assert result["interrupted"] is True
    assert [(job["state"], job["steps"]) for job in result["jobs"]] == [("stopped", 2), ("stopped", 2)]
    assert not processes_of(data)
