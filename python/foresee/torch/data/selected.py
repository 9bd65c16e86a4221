# SPDX-License-Identifier: Apache-2.0
"""A ``torch.utils.data.Subset`` of one of Foresee's datasets, as a dataset whose bytes are read ahead.

Its index has the samples of the subset, for order, plan, caches and states. The base dataset decodes them.
"""

from __future__ import annotations

import operator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Subset

from foresee.errors import ConfigError
from foresee.torch.data.dataset import OriginDataset

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from foresee._loading.batch import Writable
    from foresee.torch.data.dataset import SuppliedBytes


class SelectedDataset(OriginDataset):
    """Samples of ``subset``, whose data set is one of Foresee's or again a ``Subset`` of one.

    Raises:
        ConfigError: an index is out of range, or there are no samples.
    """

    def __init__(self, subset: Subset[Any]) -> None:
        self._subset = subset
        self._chain = _chain(subset)
        base = self._chain[-1].dataset
        assert isinstance(base, OriginDataset), "see is_selection"
        self._base = base
        self._indices = [_whole_numbers(each) for each in self._chain]
        # Ids in the base dataset, which the innermost subset has.
        self._samples = self._indices[-1]
        source = base.source.select(self._samples)
        for indices in reversed(self._indices[:-1]):
            # Negative indices count from the end, as in a list.
            places = np.where(indices < 0, indices + len(self._samples), indices)
            source = source.select(places)
            self._samples = self._samples[places]
        super().__init__(source)

    @property
    def original(self) -> Subset[Any]:
        """Subset that the user passed to the loader."""
        return self._subset

    @property
    def base(self) -> OriginDataset:
        """Dataset that decodes the samples."""
        return self._base

    def check(self) -> None:
        """Raise ``ConfigError`` if the indices or the data set of the subset were replaced."""
        chain = _chain(self._subset)
        is_same = (
            len(chain) == len(self._chain)
            and all(now is then for now, then in zip(chain, self._chain, strict=True))
            and chain[-1].dataset is self._base
            and all(
                np.array_equal(_whole_numbers(each), indices)
                for each, indices in zip(chain, self._indices, strict=True)
            )
        )
        if not is_same:
            raise ConfigError(
                "the indices or the dataset of a Subset have changed since its DataLoader was made, which has planned "
                "its reads; make a new DataLoader"
            )

    def __getitem__(self, i: int) -> Any:
        """Return sample ``i`` of the subset."""
        return self._subset[i]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples of the subset."""
        return self._subset.__getitems__(list(indices))

    @contextmanager
    def supplied(
        self, data: Mapping[int, bytes | Writable], generator: torch.Generator | None = None
    ) -> Iterator[SuppliedBytes]:
        """As in ``OriginDataset``; ``data`` has samples of the subset as keys."""
        of_base = {int(self._samples[i]): part for i, part in data.items()}
        with self._base.supplied(of_base, generator) as supply:
            yield supply

    def __reduce__(self) -> tuple[Any, ...]:
        return SelectedDataset, (self._subset,)


def is_selection(dataset: object) -> bool:
    """Whether ``dataset`` is a ``Subset`` of one of Foresee's datasets that only selects."""
    return _only_selects(dataset) and isinstance(_chain(dataset)[-1].dataset, OriginDataset)


def _only_selects(dataset: object) -> bool:
    return isinstance(dataset, Subset) and all(
        getattr(type(dataset), name, None) is getattr(Subset, name, None)
        for name in ("__getitem__", "__getitems__", "__len__")
    )


def _chain(subset: Any) -> list[Subset[Any]]:
    """Return ``subset`` and the subsets that it selects from."""
    chain = [subset]
    while _only_selects(chain[-1].dataset):
        chain.append(chain[-1].dataset)
    return chain


def _whole_numbers(subset: Subset[Any]) -> NDArray[np.int64]:
    """Copy the indices of ``subset``."""
    indices: Any = subset.indices
    if isinstance(indices, torch.Tensor):
        indices = indices.numpy(force=True)
    try:
        if isinstance(indices, np.ndarray):
            return indices.astype(np.int64, casting="same_kind")
        return np.fromiter(map(operator.index, indices), np.int64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the indices of the Subset are no whole numbers: {error}") from error
