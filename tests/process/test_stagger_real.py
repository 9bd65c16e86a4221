# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger run`` with loaders as people have them: a stock DataLoader in ``ft.measure``, and our own.

Nothing here is about time, but for a bound against hanging.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

BATCH, EPOCHS = 4, 2
#: argv: folder, loader, seconds of a step of the first epoch, and of one of the last.
TRAIN = """
import pathlib, sys, time
import foresee.torch as ft
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
        time.sleep(last if epoch else cold)
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


@pytest.mark.parametrize("leader", ["stock", "ours"])
def test_a_stock_loader_and_ours_start_when_predicted(
    tmp_path: pathlib.Path, folder: pathlib.Path, sizes: list[int], leader: str
) -> None:
    steps = len(sizes) // BATCH
    follower = "ours" if leader == "stock" else "stock"
    jobs = [write(tmp_path, folder, leader, 0.14, steps), write(tmp_path, folder, follower, 0.04, steps)]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "foresee",
            "stagger",
            "run",
            *jobs,
            "--folder",
            str(tmp_path / "run"),
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["leader"], told["followers"]) == (leader, [follower])
    assert [job["state"] for job in told["jobs"]] == ["done", "done"]
    assert [job["steps"] for job in told["jobs"]] == [EPOCHS * steps] * 2
    # However slow the machine is: its loader was held at the gate until the leader was so far.
    assert told["measured"]["starts"][1] >= steps * 0.1 * 0.95
