# SPDX-License-Identifier: Apache-2.0
"""Training with Ray's own trainer, on workers of a Ray that this program starts. Each worker writes its report to a file."""

from __future__ import annotations

import contextlib
import pathlib
import sys

import ray
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchTrainer


def worker(config: dict[str, str]) -> None:
    """Run one rank, in the process group that Ray made."""
    # Only workers need torch, which is slow to import.
    from support.gradients import main

    sys.argv[1:] = ["train", config["servers"], "recover"]
    report = pathlib.Path(config["folder"], f"rank-{get_context().get_world_rank()}")
    with report.open("w") as out, contextlib.redirect_stdout(out):
        main()


def train() -> None:
    """Run the driver; arguments: folder, ranks, servers."""
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
