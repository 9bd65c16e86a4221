# SPDX-License-Identifier: Apache-2.0
"""The Trainer of Transformers: fit a linear model to an array of rows, and resume within an epoch.

    python examples/transformers/train.py rows.npy
    torchrun --nproc-per-node 2 examples/transformers/train.py rows.npy --resume checkpoints/checkpoint-40

The Trainer saves no state of a loader and skips batches by reading them, so the script saves the loader's state in each
checkpoint and sets `ignore_data_skip=True`.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import foresee.torch as ft

EPOCHS = 3


class Linear(nn.Module):
    """A linear layer; the Trainer passes the entries of a batch by name and takes the loss from the result."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, 1)

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Mean squared error of the first column, given the others."""
        return {"loss": nn.functional.mse_loss(self.layer(rows[:, 1:]), rows[:, :1])}


class ForeseeTrainer(Trainer):
    """A Trainer with a loader of Foresee, which resumes from its saved state."""

    def get_train_dataloader(self) -> ft.DataLoader:
        """Make the loader, so that the Trainer neither replaces its sampler nor distributes its batches again."""
        size = self.args.per_device_train_batch_size
        loader = ft.DataLoader(
            self.train_dataset,
            size,
            shuffle=True,
            seed=0,
            collate_fn=lambda rows: {"rows": torch.stack(rows)},
        )
        if self.resume is not None:
            loader.load_state_dict(json.loads((self.resume / "loader.json").read_text()))
        return loader

    resume: pathlib.Path | None = None


class SaveLoader(TrainerCallback):
    """Saves the loader's state into each checkpoint."""

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002
        """Save the state on one rank: it is equal on all."""
        if state.is_world_process_zero:
            folder = pathlib.Path(str(args.output_dir), f"checkpoint-{state.global_step}")
            (folder / "loader.json").write_text(json.dumps(others["train_dataloader"].state_dict()))


def main() -> None:
    """Train, from a checkpoint if one is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--resume", type=pathlib.Path)
    parser.add_argument("--checkpoints", default="checkpoints")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    args = parser.parse_args()
    dataset = ft.ArrayDataset(args.path)
    arguments = TrainingArguments(
        args.checkpoints, num_train_epochs=EPOCHS, per_device_train_batch_size=8, save_steps=args.every,
        ignore_data_skip=True, report_to="none", disable_tqdm=True,
    )  # fmt: skip
    trainer = ForeseeTrainer(
        Linear(len(dataset[0]) - 1), arguments, train_dataset=dataset, callbacks=[SaveLoader()]
    )
    trainer.resume = args.resume
    trainer.train(resume_from_checkpoint=None if args.resume is None else str(args.resume))
    print(f"{trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
