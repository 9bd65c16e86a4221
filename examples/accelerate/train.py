# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate: fit a linear model to an array of rows, and resume within an epoch.

    accelerate launch --num_processes 2 examples/accelerate/train.py rows.npy
    accelerate launch --num_processes 2 examples/accelerate/train.py rows.npy --resume checkpoints/step-40

`prepare` returns the loader unchanged, because it detects its rank. Registered for checkpointing, its state is saved
and loaded with the model's. The script moves batches to the device, and skips none after `load_state`.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch import nn

import foresee.torch as ft

EPOCHS = 3


def main() -> None:
    """Train, from a checkpoint if one is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--resume")
    parser.add_argument("--checkpoints", default="checkpoints")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    args = parser.parse_args()
    accelerator = Accelerator()
    dataset = ft.ArrayDataset(args.path)
    loader = ft.DataLoader(dataset, batch_size=8, shuffle=True, seed=0, epochs=EPOCHS)
    model = nn.Linear(len(dataset[0]) - 1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(loader)
    if args.resume:
        accelerator.load_state(args.resume)
    step = 0
    for epoch in range(loader.state_dict()["epoch"], EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            rows = batch.to(accelerator.device)
            loss = nn.functional.mse_loss(model(rows[:, 1:]), rows[:, :1])
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step % args.every == 0:
                accelerator.save_state(f"{args.checkpoints}/step-{step}")
    accelerator.print(f"{step} steps")
    accelerator.end_training()


if __name__ == "__main__":
    main()
