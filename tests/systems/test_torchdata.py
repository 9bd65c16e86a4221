# SPDX-License-Identifier: Apache-2.0
"""Resume with torchdata: a checkpoint has its loader beside ours, and its loader may have a ``CachedDataset``."""

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


# States at the end of an epoch, in its middle, and of a loader that was resumed there.
CACHED = """
    from itertools import islice
    from torch.utils.data import DistributedSampler
    from torchdata.stateful_dataloader import StatefulDataLoader
    import foresee.torch as ft

    ROWS = [(i, f"row {i}") for i in range(51)]

    class Run:
        def __init__(self, cached, workers, state=None):
            dataset = ft.CachedDataset(ROWS) if cached else ROWS
            order = DistributedSampler(range(51), 1, 0, seed=0)
            if cached:
                order = ft.PrefetchSampler(order, dataset, fetch_size=10, threshold=10)
            self.order = order
            self.loader = StatefulDataLoader(
                dataset, batch_size=8, sampler=order, collate_fn=list, num_workers=workers,
                persistent_workers=workers > 0,
            )
            if state is not None:
                self.loader.load_state_dict(state)

        def epoch(self, number, most=None):
            self.order.set_epoch(number)
            return list(islice(self.loader, most)), self.loader.state_dict()

    def run(cached, workers):
        first = Run(cached, workers)
        whole, at_end = first.epoch(0)
        half, in_epoch = first.epoch(1, 3)
        yield whole
        yield half
        for _ in range(2):
            yield Run(cached, workers, at_end).epoch(1)[0]
            rest, again = Run(cached, workers, in_epoch).epoch(1, 2)
            yield rest
            yield Run(cached, workers, again).epoch(1)[0]

    for workers in (0, 2):
        ours, theirs = (list(run(cached, workers)) for cached in (True, False))
        assert ours == theirs, (ours, theirs)
        assert len(theirs[0]) == 7, theirs
"""


def test_a_stateful_loader_resumes_a_cached_dataset_as_any_other(tmp_path: pathlib.Path) -> None:
    runs.run_text(CACHED, tmp_path)
