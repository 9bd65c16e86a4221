# SPDX-License-Identifier: Apache-2.0
"""A training of Ray's own trainer, on workers of a Ray that this program starts; each writes down what happens to it."""

from __future__ import annotations

import contextlib
import pathlib
import sys

import ray
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchTrainer


def worker(told: dict[str, str]) -> None:
    """Of one rank: torch's process group is Ray's."""
    # torch belongs to the workers, and is slow to import.
    from support.gradients import main

    sys.argv[1:] = ["train", told["servers"], "recover"]
    said = pathlib.Path(told["folder"], f"rank-{get_context().get_world_rank()}")
    with said.open("w") as out, contextlib.redirect_stdout(out):
        main()


def train() -> None:
    """Of the driver: `folder ranks servers`."""
    folder, ranks, servers = sys.argv[1:]
    ray.init(num_cpus=int(ranks) + 1, include_dashboard=False)
    TorchTrainer(
        worker,
        train_loop_config={"folder": folder, "servers": servers},
        scaling_config=ScalingConfig(num_workers=int(ranks)),
        run_config=RunConfig(storage_path=str(pathlib.Path(folder, "ray"))),
    ).fit()
    ray.shutdown()


if __name__ == "__main__":
    train()
