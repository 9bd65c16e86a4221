# SPDX-License-Identifier: Apache-2.0
"""A rank under torchrun that saves the state of its loader, is killed, and resumes after the restart.

Each attempt writes the labels of each batch to ``log-ATTEMPT-RANK`` in its folder.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys

import foresee.torch as ft
from support.waiting import wait_until

#: Batches of each rank before rank 0 is killed.
STEPS = 4


def main() -> None:
    """Run a rank. Its arguments are the folder of the data and that of its files."""
    folder, here = sys.argv[1], pathlib.Path(sys.argv[2])
    rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    dataset = ft.FolderDataset(folder, decode=None)
    with ft.DataLoader(dataset, batch_size=4, shuffle=True, seed=0, epochs=1, timeout=60) as loader:
        if attempt != "0":
            loader.load_state_dict(json.loads((here / "state.json").read_text()))
        with (here / f"log-{attempt}-{rank}").open("w") as log:
            for step, (_, labels) in enumerate(loader, 1):
                print(*labels.tolist(), file=log, flush=True)
                if (attempt, step) == ("0", STEPS):
                    _end(loader, rank, here)


def _end(loader: ft.DataLoader, rank: str, here: pathlib.Path) -> None:
    """Wait for the signal of torchrun, which follows when rank 0 has saved its state and is killed."""
    if rank == "0":
        (here / "new").write_text(json.dumps(loader.state_dict()))
        (here / "new").replace(here / "state.json")
        other = here / "log-0-1"
        wait_until(
            lambda: other.exists() and other.read_text().count("\n") == STEPS, what="the last step of rank 1"
        )
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
