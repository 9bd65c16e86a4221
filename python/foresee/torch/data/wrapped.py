# SPDX-License-Identifier: Apache-2.0
"""A loader that another object stands for: its length, its attributes and its state are the loader's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


class WrappedLoader(Generic[T_co]):
    """Base of ``Measured`` and ``Audited``. Attributes that they do not have are the loader's."""

    def __init__(self, loader: Iterable[T_co]) -> None:
        self._loader = loader
        # In the instance itself: a check against a runtime protocol, as in torch.distributed.checkpoint, looks there
        # and does not ask __getattr__ (Python 3.12 and later).
        for name in ("state_dict", "load_state_dict"):
            if hasattr(loader, name):
                setattr(self, name, getattr(loader, name))

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._loader)  # type: ignore[arg-type] # what cannot say raises TypeError, as it would unwrapped

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)


def length_of(loader: object) -> int | None:
    """Return ``len(loader)``; None: it has none."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None
