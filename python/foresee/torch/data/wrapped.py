# SPDX-License-Identifier: Apache-2.0
"""Wrapper of a loader, with its length, its attributes and its state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


def share_state_methods(wrapped: object, wrapper: object) -> None:
    """Give ``wrapper`` the methods ``state_dict`` and ``load_state_dict`` of ``wrapped``, if it has them.

    They are attributes of the instance, because a check against a runtime protocol, as in torch.distributed.checkpoint,
    does not call ``__getattr__`` (Python 3.12 and later).
    """
    for name in ("state_dict", "load_state_dict"):
        if hasattr(wrapped, name):
            setattr(wrapper, name, getattr(wrapped, name))


class WrappedLoader(Generic[T_co]):
    """Base of ``Measured`` and ``Audited``, with all other attributes of the loader."""

    def __init__(self, loader: Iterable[T_co]) -> None:
        self._loader = loader
        share_state_methods(loader, self)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._loader)  # type: ignore[arg-type] # raises TypeError, as the loader itself

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)


def length_of(loader: object) -> int | None:
    """Return ``len(loader)``, or None."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None
