# SPDX-License-Identifier: Apache-2.0
"""Foresee: training that never waits for data.

``foresee.Loader`` returns NumPy batches; ``foresee.torch`` has the loader and the gradients for PyTorch. Names are
imported on first use, so that the command line starts fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from foresee.errors import (
    CacheError,
    CatalogBusy,
    CatalogInvalid,
    Closed,
    ConfigError,
    ForeseeError,
    IndexInvalid,
    JobFailed,
    NoSamples,
    NotMeasured,
    OriginChanged,
    OriginDenied,
    OriginError,
    OriginMissing,
    PackageMissing,
    PageCacheKept,
    RankLost,
    SampleFault,
    ServerLost,
    SlurmUnreachable,
    StallTimeout,
    StateMismatch,
    Unsupported,
    WorkerDied,
)

if TYPE_CHECKING:
    from foresee._loading.batch import Batch
    from foresee._native import Index, __version__
    from foresee.config import Cache
    from foresee.loader import Loader

__all__ = [
    "Batch",
    "Cache",
    "CacheError",
    "CatalogBusy",
    "CatalogInvalid",
    "Closed",
    "ConfigError",
    "ForeseeError",
    "Index",
    "IndexInvalid",
    "JobFailed",
    "Loader",
    "NoSamples",
    "NotMeasured",
    "OriginChanged",
    "OriginDenied",
    "OriginError",
    "OriginMissing",
    "PackageMissing",
    "PageCacheKept",
    "RankLost",
    "SampleFault",
    "ServerLost",
    "SlurmUnreachable",
    "StallTimeout",
    "StateMismatch",
    "Unsupported",
    "WorkerDied",
    "__version__",
]

_LAZY = {
    "Batch": "foresee._loading.batch",
    "Cache": "foresee.config",
    "Index": "foresee._native",
    "Loader": "foresee.loader",
    "__version__": "foresee._native",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
