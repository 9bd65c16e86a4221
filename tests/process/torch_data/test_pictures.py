# SPDX-License-Identifier: Apache-2.0
"""Pictures are decoded as torchvision's own folder does it."""

from __future__ import annotations

import pytest
import torch

import foresee.torch as ft


def test_pictures_are_exactly_those_of_image_folder(pictures):
    torchvision = pytest.importorskip("torchvision")
    to_tensor = torchvision.transforms.functional.pil_to_tensor
    theirs = torchvision.datasets.ImageFolder(str(pictures), transform=to_tensor)
    mine = ft.FolderDataset(pictures, transform=to_tensor)
    assert (mine.classes, mine.class_to_idx, mine.targets) == (
        theirs.classes,
        theirs.class_to_idx,
        theirs.targets,
    )
    assert [label for _, label in mine.samples] == theirs.targets
    for i in range(10):
        assert torch.equal(mine[i][0], theirs[i][0])
        assert mine[i][1] == theirs[i][1]
    loader = ft.DataLoader(mine, batch_size=4, collate_fn=list)
    got = [sample for batch in loader for sample in batch]
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(got, (theirs[i] for i in range(10)), strict=True))
