# SPDX-License-Identifier: Apache-2.0
"""A process on one host that trains on the CPU: over servers, with torch's own all-reduce, or alone.

Like `host.py` it runs one job per line of standard input, so that torch is imported only once.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.commands import answer_commands
from host import SECRET, cpu_s, result_of

import foresee.torch as ft
from foresee.network import trace

Build = Callable[[], tuple[nn.Module, torch.Tensor, torch.Tensor]]
VOCABULARY = 4352


class Cnn(nn.Module):
    """Three convolutions followed by linear layers with most of the parameters, as in VGG."""

    def __init__(self) -> None:
        """Build about 1.2 M parameters."""
        super().__init__()
        self.features = nn.Sequential(
            *(
                layer
                for wide in ((3, 32), (32, 64), (64, 64))
                for layer in (nn.Conv2d(*wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
            )
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        scores: torch.Tensor = self.classifier(self.features(x))
        return scores


class Transformer(nn.Module):
    """Two blocks after an embedding: the largest tensor is used first."""

    def __init__(self) -> None:
        """Build about 1.9 M parameters."""
        super().__init__()
        self.embedding = nn.Embedding(4096, 192)
        block = nn.TransformerEncoderLayer(192, 4, 768, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2)
        self.head = nn.Linear(192, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        scores: torch.Tensor = self.head(self.blocks(self.embedding(x)).mean(dim=1))
        return scores


class Blocks(nn.Module):
    """Twelve blocks between an embedding and the scores of each word: many layers of equal, small size."""

    def __init__(self, wide: int) -> None:
        """Build 11.7 M parameters with blocks of width 256, or 3.5 M with width 128."""
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, wide)
        block = nn.TransformerEncoderLayer(wide, 4, 4 * wide, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 12)
        self.head = nn.Linear(wide, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of all words."""
        scores: torch.Tensor = self.head(self.blocks(self.embedding(x))).flatten(0, 1)
        return scores


def cnn() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return the model, a batch of 32 small images, and their labels."""
    return Cnn(), torch.randn(32, 3, 32, 32), torch.randint(10, (32,))


def transformer() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return the model, a batch of 8 texts of 64 words, and their labels."""
    return Transformer(), torch.randint(4096, (8, 64)), torch.randint(10, (8,))


def blocks(wide: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return the model, a text of 16 words, and the words that follow."""
    return Blocks(wide), torch.randint(VOCABULARY, (1, 16)), torch.randint(VOCABULARY, (16,))


MODELS: dict[str, Build] = {
    "cnn": cnn,
    "transformer": transformer,
    "blocks": partial(blocks, 256),
    "blocks_small": partial(blocks, 128),
}


def made(job: dict[str, Any]) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Build the same model on every rank, with different data."""
    torch.manual_seed(job["seed"])
    model, _, _ = MODELS[job["model"]]()
    torch.manual_seed(job["seed"] + 1 + job["rank"])
    _, x, y = MODELS[job["model"]]()
    return model, x, y


def steps(
    job: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> dict[str, Any]:
    """Run steps, timed from one start of backward to the next."""
    began: list[float] = []
    before = cpu_s()
    for number in range(job["warmup"] + job["rounds"] + 1):
        if number == job["warmup"]:
            idle, since = idle_s(), time.monotonic()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        began.append(time.monotonic())
        loss.backward()
        optimizer.step()
    idle_share = (idle_s() - idle) / (time.monotonic() - since) / (os.cpu_count() or 1)
    wrong = 0 if bool(np.isfinite(loss.item())) else 1
    return {**result_of(job, began, cpu_s() - before, wrong), "idle": idle_share}


def idle_s() -> float:
    """Return the idle seconds of all cores of this host since it booted."""
    with open("/proc/stat", encoding="ascii") as file:
        return int(file.readline().split()[4]) / os.sysconf("SC_CLK_TCK")


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of all arms."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def traced(job: dict[str, Any]) -> dict[str, Any]:
    """Trace the times of each tensor while the other ranks are idle."""
    model, x, y = made(job)

    def loss(scores: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scores, y)

    return {"trace": trace.dumps(ft.trace_model(model, x, loss=loss, optimizer=adam(model)))}


def compiled(job: dict[str, Any], model: nn.Module) -> nn.Module:
    """Compile the whole model if the job requests it."""
    if job.get("compiled"):
        model.compile()
    return model


def alone(job: dict[str, Any]) -> dict[str, Any]:
    """Train without a network."""
    model, x, y = made(job)
    return steps(job, compiled(job, model), adam(model), x, y)


def over_servers(job: dict[str, Any]) -> dict[str, Any]:
    """Train over servers."""
    os.environ.update(
        RANK=str(job["rank"]), WORLD_SIZE=str(job["world"]), FORESEE_JOB=job["job"], FORESEE_TOKEN=SECRET
    )
    model, x, y = made(job)
    optimizer: Any
    model, optimizer = ft.synchronize(
        compiled(job, model), adam(model), servers=job["servers"], timeout=job["timeout_s"]
    )
    try:
        return steps(job, model, optimizer, x, y)
    finally:
        optimizer.close()


@contextmanager
def process_group(job: dict[str, Any]) -> Iterator[None]:
    """Open torch's process group over gloo."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group(
        "gloo", init_method=f"tcp://{job['meeting']}", rank=job["rank"], world_size=job["world"]
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def all_reduce(job: dict[str, Any]) -> dict[str, Any]:
    """Train with torch's own all-reduce."""
    with process_group(job):
        model, x, y = made(job)
        wrapped = DistributedDataParallel(model, bucket_cap_mb=job["bucket_mb"])
        return steps(job, compiled(job, wrapped), adam(wrapped), x, y)


def over_colocated_servers(job: dict[str, Any]) -> dict[str, Any]:
    """Train over colocated servers, which ranks find through torch's process group."""
    os.environ["FORESEE_ADDRESS"] = job["address"]
    with process_group(job):
        return over_servers({**job, "servers": "colocated"})


def main() -> int:
    """Run one job per line, and print one result line each."""
    torch.set_num_threads(1)
    actions = {
        "trace": traced,
        "oracle": alone,
        "foresee": over_servers,
        "colocated": over_colocated_servers,
        "ddp": all_reduce,
    }
    # Any error makes the run void, with the reason.
    answer_commands(lambda job: actions[job["do"]](job))
    return 0


if __name__ == "__main__":
    sys.exit(main())
