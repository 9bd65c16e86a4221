# SPDX-License-Identifier: Apache-2.0
"""The shortest training script: a folder of images, one folder per class, three epochs.

    python examples/first_script/train.py FOLDER        # or s3://BUCKET/PREFIX

Only the two lines with `ft` differ from a script with torchvision's ImageFolder and torch's DataLoader.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from PIL import Image
from torch import nn

import foresee.torch as ft

EPOCHS = 3


def main(folder: str) -> None:
    """Train on ``folder`` and print how many of its files were read."""
    torch.manual_seed(0)
    dataset = ft.FolderDataset(folder, transform=to_tensor)
    with ft.DataLoader(dataset, batch_size=32, shuffle=True, seed=0, epochs=EPOCHS) as loader:
        model = network(len(dataset.classes))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        for epoch in range(EPOCHS):
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
        read = loader.stats()["operations"]["origin"]["read"]["ok"]
    print(f"{EPOCHS} epochs of {len(dataset)} samples; the folder was read for {read['samples']} of them")


def to_tensor(picture: Image.Image) -> torch.Tensor:
    """Convert to shape (3, 64, 64), 0 to 1."""
    return torch.from_numpy(np.array(picture.resize((64, 64)))).permute(2, 0, 1) / 255


def network(classes: int) -> nn.Module:
    """Return two convolutions, an average and a linear layer."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes)),
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: train.py FOLDER, with one folder of images per class, or s3://BUCKET/PREFIX")
    main(sys.argv[1])
