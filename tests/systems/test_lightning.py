# SPDX-License-Identifier: Apache-2.0
"""A real Lightning trains with our loader: its ranks, its epochs and its checkpoints in the middle of one."""

from __future__ import annotations

import pathlib

import pytest
from support import framework_runs as runs
from support.framework_runs import RANKS, SAMPLES

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]


def test_one_device_reads_the_exact_order_and_resumes_at_any_step(tmp_path: pathlib.Path, rows: str) -> None:
    whole = runs.expected(SAMPLES)
    saved = tmp_path / "checkpoints"
    every = ["--every", "1", "--checkpoints", str(saved)]
    # In the middle of the first epoch and of a later one, at an epoch's last batch, and after the first of the next.
    cuts = [3, 7, 8, 17]
    resumed = {
        tmp_path / f"from-{cut}": [
            rows,
            "--resume",
            str(saved / f"step={cut}.ckpt"),
            "--checkpoints",
            str(tmp_path / f"c{cut}"),
        ]
        for cut in cuts
    }
    again = [
        rows,
        "--resume",
        str(tmp_path / "c3" / "step=5.ckpt"),
        "--checkpoints",
        str(tmp_path / "again-saved"),
    ]
    resumed[tmp_path / "from-3"] += ["--every", "1"]
    runs.run_several("lightning", {tmp_path / "whole": [rows, *every], **resumed, tmp_path / "again": again})
    assert runs.batches(tmp_path / "whole") == whole
    for cut in cuts:
        assert runs.batches(tmp_path / f"from-{cut}") == whole[cut:], cut
    # A run that was resumed is resumed once more within the same epoch.
    assert runs.batches(tmp_path / "again") == whole[5:]


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_ranks_read_their_shares_and_resume_in_the_middle_of_an_epoch(
    tmp_path: pathlib.Path, rows: str, strategy: str
) -> None:
    saved = tmp_path / "checkpoints"
    ranks = [rows, "--devices", RANKS, "--strategy", strategy, "--checkpoints", saved, "--every", 3]
    runs.run("lightning", tmp_path / "whole", *ranks)
    runs.run("lightning", tmp_path / "rest", *ranks, "--resume", saved / "step=6.ckpt")
    for rank in range(RANKS):
        whole = runs.expected(SAMPLES, rank=rank, ranks=RANKS)
        assert runs.batches(tmp_path / "whole", rank) == whole
        assert runs.batches(tmp_path / "rest", rank) == whole[6:]
