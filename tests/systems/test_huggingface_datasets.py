# SPDX-License-Identifier: Apache-2.0
"""A real table of Hugging Face's ``datasets`` in the Foresee loader and in torch's, with the same order."""

from __future__ import annotations

import pathlib

import pytest
from support import framework_runs as runs

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]

_SETTING = """
    import sys, torch
    from datasets import Dataset
    from torch.utils.data import DataLoader, Subset, random_split
    import foresee.torch as ft
    from support.against_torch import plain

    BATCH = 4

    def table(rows=23):
        columns = {"x": [[i, i * i] for i in range(rows)], "text": [f"row {i}" for i in range(rows)]}
        return Dataset.from_dict({**columns, "label": [i % 3 for i in range(rows)]})

    def doubled(rows):
        return {"x": [2 * torch.tensor(x) for x in rows["x"]], "text": rows["text"]}

    def ours(dataset, **given):
        return ft.DataLoader(dataset, BATCH, shuffle=True, seed=5, **given)

    def theirs(dataset, epoch=0):
        order = ours(dataset)
        order.set_epoch(epoch)
        return list(DataLoader(dataset, BATCH, sampler=list(order.sampler)))
"""


def test_tables_of_every_format_give_the_batches_of_torch_with_and_without_workers(
    tmp_path: pathlib.Path,
) -> None:
    program = """
    if __name__ == "__main__":
        tables = {
            "plain": table(),
            "tensors": table().with_format("torch"),
            "arrays": table().with_format("numpy"),
            "transformed": table().with_transform(doubled),
            "sorted": table().sort("text", reverse=True),
            "a share": table().shard(2, 1),
            "columns": table().select_columns(["x", "label"]),
            "subset": Subset(table(), range(3, 19)),
            "split": random_split(table(), [16, 7], torch.Generator().manual_seed(1))[0],
        }
        for name, workers in ((name, workers) for name in tables for workers in (0, 2)):
            data = tables[name]
            loader = ours(data, num_workers=workers, persistent_workers=workers > 0)
            for epoch in range(2):
                assert plain(list(loader)) == plain(theirs(data, epoch)), (name, workers, epoch)
            loader.close()
    """
    runs.run_text(_SETTING + program, tmp_path)


def test_a_batch_is_made_in_one_call_and_a_run_resumes_at_its_state(tmp_path: pathlib.Path) -> None:
    program = """
    calls = []

    class Counted(Dataset):
        def __getitems__(self, keys):
            calls.append(len(keys))
            return super().__getitems__(keys)

    data = table()
    data.__class__ = Counted
    loader = ours(data)
    batches = iter(loader)
    first = [next(batches) for _ in range(3)]
    state = loader.state_dict()
    rest = list(batches)
    assert calls == [4, 4, 4, 4, 4, 3], calls
    assert plain(first + rest) == plain(theirs(table()))
    resumed = ours(table())
    resumed.load_state_dict(state)
    assert plain(list(resumed)) == plain(rest)
    """
    runs.run_text(_SETTING + program, tmp_path)


def test_a_stream_of_rows_is_refused_with_the_remedy(tmp_path: pathlib.Path) -> None:
    program = """
    try:
        ours(table().to_iterable_dataset())
    except foresee.ConfigError as error:
        print(error)
    """
    printed = runs.run_text(_SETTING + "    import foresee\n" + program, tmp_path)
    assert "no order that could be known ahead" in printed
    assert "__getitem__" in printed
