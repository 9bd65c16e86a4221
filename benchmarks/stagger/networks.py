# SPDX-License-Identifier: Apache-2.0
"""Two small networks of different cost, for the jobs that train."""

from __future__ import annotations

import torch
from torch import nn


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(width, width, 3, padding=1)
        self.two = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.two(torch.relu(self.one(x))))


def made(name: str) -> nn.Module:
    """Build ``plain_cnn`` or ``residual_cnn`` for images of 3 channels."""
    if name == "plain_cnn":
        body: list[nn.Module] = []
        for inner, outer in ((3, 8), (8, 16), (16, 32)):
            body += [nn.Conv2d(inner, outer, 3, stride=2, padding=1), nn.ReLU()]
        width = 32
    else:
        width = 16
        body = [nn.Conv2d(3, width, 3, stride=4, padding=1), _Residual(width), _Residual(width)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
