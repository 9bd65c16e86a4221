# SPDX-License-Identifier: Apache-2.0
"""The loader is a ``Stateful`` of torchdata, and a distributed checkpoint stores it together with torchdata's own."""

from __future__ import annotations

import pathlib

import pytest
from support import framework_runs as runs
from support.recorded_example import write_rows

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]

PROGRAM = """
    import sys
    from itertools import islice
    import torch.distributed.checkpoint as dcp
    from torch.utils.data import DistributedSampler
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.stateful import Stateful
    import foresee.torch as ft

    def make():
        ours = ft.DataLoader(ft.ArrayDataset(sys.argv[1]), batch_size=8, shuffle=True, seed=0)
        assert isinstance(ours, Stateful)
        sampler = DistributedSampler(range(51), 1, 0, seed=0)
        return {"ours": ours, "theirs": StatefulDataLoader(range(51), batch_size=8, sampler=sampler, collate_fn=list)}

    def ids(batch):
        return batch if isinstance(batch, list) else [round(float(row[0]) * 64) for row in batch]

    loaders = make()
    batches = {name: iter(loader) for name, loader in loaders.items()}
    head = {name: [ids(batch) for batch in islice(iterator, 3)] for name, iterator in batches.items()}
    assert head["ours"] == head["theirs"]
    dcp.save(loaders, checkpoint_id=sys.argv[2])
    rest = {name: [ids(batch) for batch in iterator] for name, iterator in batches.items()}
    resumed = make()
    dcp.load(resumed, checkpoint_id=sys.argv[2])
    again = {name: [ids(batch) for batch in loader] for name, loader in resumed.items()}
    assert again["ours"] == rest["ours"] == rest["theirs"], again
"""


def test_a_distributed_checkpoint_resumes_both_loaders_at_the_same_batch(
    tmp_path: pathlib.Path,
) -> None:
    rows = write_rows(tmp_path / "rows.npy", 51)
    runs.run_text(PROGRAM, tmp_path, rows, tmp_path / "saved")
