# SPDX-License-Identifier: Apache-2.0
"""Foresee for PyTorch: the only folder that imports torch."""

from foresee.config import Cache
from foresee.errors import PackageMissing

try:
    import torch as _torch  # noqa: F401 - only to say what is missing
except ModuleNotFoundError as error:
    raise PackageMissing(
        f"foresee.torch needs PyTorch, and {error.name} is not installed; install torch, or foresee[torch]; "
        "foresee.Loader works without it"
    ) from error

from foresee.torch.array import ArrayDataset
from foresee.torch.audit import audit
from foresee.torch.files import FileDataset
from foresee.torch.folder import FolderDataset
from foresee.torch.gradients import DdpState, GradientMisuse, ddp_hook, synchronize, trace_model
from foresee.torch.loader import DataLoader
from foresee.torch.measure import measure
from foresee.torch.tokens import TokenDataset

__all__ = [
    "ArrayDataset",
    "Cache",
    "DataLoader",
    "DdpState",
    "FileDataset",
    "FolderDataset",
    "GradientMisuse",
    "TokenDataset",
    "audit",
    "ddp_hook",
    "measure",
    "synchronize",
    "trace_model",
]
