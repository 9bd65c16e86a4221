# SPDX-License-Identifier: Apache-2.0
"""A real Accelerate trains with the Foresee loader: `prepare`, `save_state`, gradient accumulation and metrics over ranks."""

from __future__ import annotations

import pathlib

import pytest
from support import framework_runs as runs
from support.framework_runs import RANKS, SAMPLES

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]


def test_a_loaded_state_resumes_at_any_step(tmp_path: pathlib.Path, rows: str) -> None:
    whole = runs.expected(SAMPLES)
    saved = tmp_path / "checkpoints"
    first = [rows, "--every", "1", "--checkpoints", str(saved)]
    cuts = [2, 7, 9]
    resumed = {tmp_path / f"from-{cut}": [rows, "--resume", str(saved / f"step-{cut}")] for cut in cuts}
    runs.run_several("accelerate", {tmp_path / "whole": first, **resumed})
    assert runs.batches(tmp_path / "whole") == whole
    for cut in cuts:
        assert runs.batches(tmp_path / f"from-{cut}") == whole[cut:], cut


def test_ranks_read_their_shares_and_resume_mid_epoch(tmp_path: pathlib.Path, rows: str) -> None:
    launcher = runs.torchrun(RANKS)
    saved = tmp_path / "checkpoints"
    runs.run("accelerate", tmp_path / "whole", rows, "--every", 3, "--checkpoints", saved, launcher=launcher)
    runs.run("accelerate", tmp_path / "rest", rows, "--resume", saved / "step-6", launcher=launcher)
    for rank in range(RANKS):
        whole = runs.expected(SAMPLES, rank=rank, ranks=RANKS)
        assert runs.batches(tmp_path / "whole", rank) == whole
        assert runs.batches(tmp_path / "rest", rank) == whole[6:]


def test_calls_of_accelerate_accept_the_loader_unchanged(tmp_path: pathlib.Path, rows: str) -> None:
    program = """
        import json, sys, torch
        from accelerate import Accelerator, skip_first_batches
        from torch.utils.data import DistributedSampler
        import foresee.torch as ft

        def ids(batch): return [round(float(row[0]) * 64) for row in batch]

        accelerator = Accelerator(gradient_accumulation_steps=3)
        rank, ranks = accelerator.process_index, accelerator.num_processes
        dataset = ft.ArrayDataset(sys.argv[1])
        loader = ft.DataLoader(dataset, batch_size=8, shuffle=True, seed=0)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        # Neither call wraps the loader, which would shard the batches of this rank again.
        assert accelerator.prepare(loader) is loader
        assert accelerator.prepare_data_loader(loader) is loader
        model, optimizer = accelerator.prepare(model, optimizer)
        sampler = DistributedSampler(range(51), ranks, rank, seed=0)
        steps, read, gathered = [], [], []
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch[:, 1:]).mean())
                optimizer.step()
                steps.append(accelerator.sync_gradients)
                optimizer.zero_grad()
            read += ids(batch)
            gathered += ids(accelerator.gather_for_metrics(batch))
        assert read == list(sampler), read
        # 26 samples per rank are 4 batches: the third and the last one step.
        assert steps == [False, False, True, True], steps
        # 52 for 51 samples: the padding of the last batch is dropped.
        assert sorted(gathered) == list(range(51)), gathered
        # Its state is saved and loaded without being registered.
        iterator = iter(loader)
        next(iterator), next(iterator)
        accelerator.save_state(sys.argv[2])
        accelerator.wait_for_everyone()
        for _ in iterator: pass
        accelerator.load_state(sys.argv[2])
        sampler.set_epoch(1)
        assert sum(map(ids, loader), []) == list(sampler)[16:]
        # With drop_last the padding is dropped with the short batch.
        cut = ft.DataLoader(dataset, batch_size=8, shuffle=True, seed=0, drop_last=True)
        gathered = [i for batch in cut for i in ids(accelerator.gather_for_metrics(batch))]
        assert len(gathered) == len(set(gathered)) == 48
        # skip_first_batches reads the right samples with torch's loader, with a warning.
        loader.set_epoch(2)
        sampler.set_epoch(2)
        assert sum(map(ids, skip_first_batches(loader, 2)), []) == list(sampler)[16:]
        accelerator.print("end")
        accelerator.end_training()
    """
    launcher = runs.torchrun(RANKS)
    printed = runs.run_text(program, tmp_path, rows, tmp_path / "saved", launcher=launcher)
    assert printed.count("accelerate.skip_first_batches() reads the rest of this epoch") == RANKS
    assert "Accelerate cannot tell" not in printed
    assert "end" in printed


def test_a_prefetch_sampler_is_the_outermost_batch_sampler_inside_of_the_sharding(
    tmp_path: pathlib.Path,
) -> None:
    program = """
        from accelerate import Accelerator
        from accelerate.data_loader import BatchSamplerShard
        from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
        import foresee.torch as ft

        accelerator = Accelerator()
        rank, ranks = accelerator.process_index, accelerator.num_processes
        rows = [float(i) for i in range(800)]

        def shard():
            return BatchSamplerShard(BatchSampler(SequentialSampler(rows), 4, False), ranks, rank)

        expected = [rows[i] for batch in shard() for i in batch]
        dataset = ft.CachedDataset(rows)
        outermost = DataLoader(dataset, batch_sampler=ft.PrefetchSampler(shard(), dataset))
        assert [value for batch in outermost for value in batch.tolist()] == expected
        assert dataset.stats()["misses"] + dataset.stats()["fetches"] == 400

        # `prepare` shards outside of it: right, but each rank reads for all.
        dataset = ft.CachedDataset(rows)
        sampler = ft.PrefetchSampler(BatchSampler(SequentialSampler(rows), 4, False), dataset)
        prepared = accelerator.prepare(DataLoader(dataset, batch_sampler=sampler))
        assert [value for batch in prepared for value in batch.tolist()] == expected
        accelerator.end_training()
    """
    printed = runs.run_text(program, tmp_path, launcher=runs.torchrun(RANKS))
    assert printed.count("it has to be the outermost sampler") == RANKS


def test_the_orders_of_shuffled_shards_are_known_before_they_are_drawn(tmp_path: pathlib.Path) -> None:
    program = """
        import itertools
        from accelerate import Accelerator
        from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
        from torch.utils.data import BatchSampler
        from foresee.torch.cached.expected import ExpectedEpochs

        accelerator = Accelerator()
        rank, ranks = accelerator.process_index, accelerator.num_processes
        for drops_last, splits in itertools.product((False, True), repeat=2):
            sampler = SeedableRandomSampler(range(79), data_seed=5)
            shard = BatchSamplerShard(BatchSampler(sampler, 4, drops_last), ranks, rank, split_batches=splits)
            expected = ExpectedEpochs(shard)
            later = None
            for _ in range(2):
                this, following = (order.tolist() for order in expected.epochs())
                assert this == list(itertools.chain(*shard)) and later in (None, this)
                later = following
        accelerator.end_training()
    """
    runs.run_text(program, tmp_path, launcher=runs.torchrun(RANKS))
