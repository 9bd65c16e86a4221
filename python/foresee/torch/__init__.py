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

from foresee.torch.cached.dataset import CachedDataset
from foresee.torch.cached.sampler import PrefetchSampler
from foresee.torch.data.array import ArrayDataset
from foresee.torch.data.audit import audit
from foresee.torch.data.files import FileDataset
from foresee.torch.data.folder import FolderDataset
from foresee.torch.data.loader import DataLoader
from foresee.torch.data.measure import measure
from foresee.torch.data.tokens import TokenDataset
from foresee.torch.gradients import DdpState, GradientMisuse, ddp_hook, synchronize, trace_model

__all__ = [
    "ArrayDataset",
    "Cache",
    "CachedDataset",
    "DataLoader",
    "DdpState",
    "FileDataset",
    "FolderDataset",
    "GradientMisuse",
    "PrefetchSampler",
    "TokenDataset",
    "audit",
    "ddp_hook",
    "measure",
    "synchronize",
    "trace_model",
]
