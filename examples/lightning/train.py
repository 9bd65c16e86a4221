# SPDX-License-Identifier: Apache-2.0
"""Lightning: fit a linear model to an array of rows, and resume within an epoch.

    python examples/lightning/train.py rows.npy                                   # one device
    python examples/lightning/train.py rows.npy --devices 2 --strategy ddp        # or ddp_spawn
    python examples/lightning/train.py rows.npy --resume checkpoints/step=40.ckpt

Lightning saves and loads the state of the loader in its checkpoints and calls `set_epoch` by itself.
"""

from __future__ import annotations

import argparse

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import foresee.torch as ft

EPOCHS = 3


class Linear(lightning.LightningModule):
    """A linear layer from all columns except the first to the first."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.dataset = ft.ArrayDataset(path)
        self.layer = nn.Linear(len(self.dataset[0]) - 1, 1)

    def train_dataloader(self) -> ft.DataLoader:
        """Make the loader in each process: it has threads, so `ddp_spawn` cannot send it to another process."""
        return ft.DataLoader(self.dataset, batch_size=8, shuffle=True, seed=0, epochs=EPOCHS)

    def training_step(self, rows: torch.Tensor) -> torch.Tensor:
        """Mean squared error of a batch."""
        return nn.functional.mse_loss(self.layer(rows[:, 1:]), rows[:, :1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    """Train, from a checkpoint if one is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--resume")
    parser.add_argument("--checkpoints", default="checkpoints")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    args = parser.parse_args()
    saved = ModelCheckpoint(args.checkpoints, "{step}", every_n_train_steps=args.every, save_top_k=-1)
    trainer = lightning.Trainer(
        devices=args.devices, strategy=args.strategy, max_epochs=EPOCHS, callbacks=[saved], logger=False
    )
    trainer.fit(Linear(args.path), ckpt_path=args.resume)
    print(f"{trainer.global_step} steps")


if __name__ == "__main__":
    main()
