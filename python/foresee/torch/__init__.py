# SPDX-License-Identifier: Apache-2.0
"""Foresee for PyTorch: the only folder that imports torch."""

from foresee.config import Cache
from foresee.torch.array import ArrayDataset
from foresee.torch.folder import FolderDataset
from foresee.torch.loader import DataLoader

__all__ = ["ArrayDataset", "Cache", "DataLoader", "FolderDataset"]
