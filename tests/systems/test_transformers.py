# SPDX-License-Identifier: Apache-2.0
"""A real Trainer of Transformers trains with the Foresee loader, and resumes mid-epoch."""

from __future__ import annotations

import pathlib

import pytest
from support import framework_runs as runs
from support.framework_runs import RANKS, SAMPLES

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]


def test_one_process_reads_the_exact_order_and_resumes_at_any_step(tmp_path: pathlib.Path, rows: str) -> None:
    whole = runs.expected(SAMPLES)
    saved = tmp_path / "checkpoints"
    cuts = [3, 7, 8, 17]
    resumed = {
        tmp_path / f"from-{cut}": [
            *(rows, "--resume", str(saved / f"checkpoint-{cut}")),
            *("--checkpoints", str(tmp_path / f"c{cut}")),
        ]
        for cut in cuts
    }
    first = [rows, "--every", "1", "--checkpoints", str(saved)]
    printed = runs.run_several("transformers", {tmp_path / "whole": first, **resumed})
    assert runs.batches(tmp_path / "whole") == whole
    for cut in cuts:
        assert runs.batches(tmp_path / f"from-{cut}") == whole[cut:], cut
    # No step is counted twice or left out.
    assert printed.count(f"{len(whole)} steps") == 1 + len(cuts)


def test_ranks_read_their_shares_and_resume_mid_epoch(tmp_path: pathlib.Path, rows: str) -> None:
    whole = [rows, "--checkpoints", str(tmp_path / "checkpoints"), "--every", "3"]
    resumed = [*whole, "--resume", str(tmp_path / "checkpoints" / "checkpoint-6")]
    both = {tmp_path / "whole": whole, tmp_path / "rest": resumed}
    runs.run_several("transformers", both, launcher=runs.torchrun(RANKS))
    for rank in range(RANKS):
        expected = runs.expected(SAMPLES, rank=rank, ranks=RANKS)
        assert runs.batches(tmp_path / "whole", rank) == expected
        assert runs.batches(tmp_path / "rest", rank) == expected[6:]


def test_skipping_batches_by_reading_them_resumes_correctly_with_a_warning(
    tmp_path: pathlib.Path, rows: str
) -> None:
    saved = tmp_path / "checkpoints"
    program = f"""
        import sys, torch
        from transformers import Trainer, TrainingArguments
        sys.path.insert(0, {str(runs.ROOT / "examples" / "transformers")!r})
        import train
        import foresee.torch as ft
        seen = []
        class Observed(train.Linear):
            def forward(self, rows):
                seen.append([round(float(row[0]) * 64) for row in rows])
                return super().forward(rows)
        class ReadingTrainer(Trainer):
            def get_train_dataloader(self):
                collate = lambda rows: {{"rows": torch.stack(rows)}}
                return ft.DataLoader(self.train_dataset, 8, shuffle=True, seed=0, collate_fn=collate)
        data = ft.ArrayDataset({rows!r})
        arguments = TrainingArguments({str(saved)!r}, num_train_epochs=3, per_device_train_batch_size=8, save_steps=10, report_to="none")
        ReadingTrainer(Observed(4), arguments, train_dataset=data).train()
        whole, seen[:] = list(seen), []
        ReadingTrainer(Observed(4), arguments, train_dataset=data).train(resume_from_checkpoint={str(saved / "checkpoint-10")!r})
        assert seen == whole[10:]
    """
    printed = runs.run_text(program, tmp_path)
    assert (
        "accelerate.skip_first_batches() reads the rest of this epoch with a DataLoader of torch" in printed
    )
    assert "set TrainingArguments.ignore_data_skip" in printed
