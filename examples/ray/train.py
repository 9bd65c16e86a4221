# SPDX-License-Identifier: Apache-2.0
"""Ray Train: fit a linear model to an array of rows on two workers, and resume from a checkpoint.

    python examples/ray/train.py rows.npy

The loader takes its rank from Ray's process group, so `ray.train.torch.prepare_data_loader` is not needed. The script
moves batches to the worker's device.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
from typing import Any

import ray.train
import ray.train.torch
import torch
from ray.train.torch import TorchTrainer
from torch import nn

import foresee.torch as ft

EPOCHS = 3


def work(config: dict[str, Any]) -> None:
    """Train on one worker."""
    dataset = ft.ArrayDataset(config["path"])
    model = ray.train.torch.prepare_model(nn.Linear(len(dataset[0]) - 1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = ft.DataLoader(dataset, batch_size=8, shuffle=True, seed=0, epochs=EPOCHS)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            saved = torch.load(pathlib.Path(folder, "model.pt"), weights_only=True)
            loader.load_state_dict(json.loads(pathlib.Path(folder, "loader.json").read_text()))
        model.load_state_dict(saved)
    step = 0
    for epoch in range(loader.state_dict()["epoch"], EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            rows = batch.to(ray.train.torch.get_device())
            loss = nn.functional.mse_loss(model(rows[:, 1:]), rows[:, :1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % config["every"] == 0:
                save({"loss": loss.item()}, model, loader)


def save(metrics: dict[str, float], model: nn.Module, loader: ft.DataLoader) -> None:
    """Report a checkpoint; the state of the loader is equal on all ranks, and rank 0 writes it."""
    if ray.train.get_context().get_world_rank() != 0:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), pathlib.Path(folder, "model.pt"))
        pathlib.Path(folder, "loader.json").write_text(json.dumps(loader.state_dict()))
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def main() -> None:
    """Start two workers; Ray restarts a failed one from the last checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--checkpoints", default="checkpoints")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    args = parser.parse_args()
    TorchTrainer(
        work,
        train_loop_config={"path": str(pathlib.Path(args.path).resolve()), "every": args.every},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            storage_path=str(pathlib.Path(args.checkpoints).resolve()),
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    ).fit()


if __name__ == "__main__":
    main()
