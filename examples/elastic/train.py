# SPDX-License-Identifier: Apache-2.0
"""torchrun with a changing number of ranks: fit a linear model to an array of rows, without losing a sample.

    torchrun --nnodes 1:2 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint HOST:29400 examples/elastic/train.py rows.npy

Run it on two nodes. When one is lost, torchrun restarts the ranks of the other, and once more when it is back. They
resume from the last checkpoint at the new world size: no sample of the epoch is repeated or omitted.
"""

from __future__ import annotations

import argparse
import pathlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import foresee.torch as ft

EPOCHS = 3


def main() -> None:
    """Train, from the newest checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--checkpoints", type=pathlib.Path, default="checkpoints")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    args = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    dataset = ft.ArrayDataset(args.path)
    loader = ft.DataLoader(dataset, batch_size=8, shuffle=True, seed=0, epochs=EPOCHS)
    model = DistributedDataParallel(nn.Linear(len(dataset[0]) - 1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # The loader has state_dict and load_state_dict, so a checkpoint takes it as it is.
    saved = {"model": model, "optimizer": optimizer, "loader": loader}
    complete = sorted(args.checkpoints.glob("*/.metadata"), key=lambda file: int(file.parent.name))
    step = 0
    if complete:
        step = int(complete[-1].parent.name)
        dcp.load(saved, checkpoint_id=complete[-1].parent)
    for epoch in range(loader.state_dict()["epoch"], EPOCHS):
        loader.set_epoch(epoch)
        for rows in loader:
            loss = nn.functional.mse_loss(model(rows[:, 1:]), rows[:, :1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.every == 0:
                dcp.save(saved, checkpoint_id=args.checkpoints / str(step))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
