# SPDX-License-Identifier: Apache-2.0
"""A ``torch.utils.data.Subset`` of one of Foresee's datasets, as a dataset whose bytes are read ahead.

Its index has the samples of the subset, so that order, plan, caches and states know them; decoding is left to the
dataset beneath.
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
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from foresee._loading.batch import Bytes, Ints
    from foresee.torch.data.dataset import Supply


class SelectedDataset(OriginDataset):
    """The samples of ``subset``, whose data set is one of Foresee's or again a ``Subset`` of one.

    Raises:
        ConfigError: an index that no sample has, or no samples.
    """

    def __init__(self, subset: Subset[Any]) -> None:
        self._subset = subset
        self._chain = _chain(subset)
        base = self._chain[-1].dataset
        assert isinstance(base, OriginDataset), "see is_selection"
        self._base = base
        self._indices = [_whole_numbers(each) for each in self._chain]
        # Those in the data set beneath, which the innermost subset has.
        self._samples = self._indices[-1]
        source = base.source.select(self._samples)
        for indices in reversed(self._indices[:-1]):
            # A subset's own indices may be counted from their end, as in every list.
            places = np.where(indices < 0, indices + len(self._samples), indices)
            source = source.select(places)
            self._samples = self._samples[places]
        super().__init__(source)

    @property
    def given(self) -> Subset[Any]:
        """The subset, as the user has it."""
        return self._subset

    def check(self) -> None:
        """Refuse a subset that is not as it was.

        Raises:
            ConfigError: its indices or its data set were replaced.
        """
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

    @property
    def transform(self) -> Callable[..., Any] | None:
        """That of the data set beneath."""
        return getattr(self._base, "transform", None)

    @property
    def per_sample(self) -> bool:
        """See ``OriginDataset``."""
        return self._base.per_sample

    @property
    def is_overridden(self) -> bool:
        """See ``OriginDataset``."""
        return self._base.is_overridden

    @property
    def makes_batches(self) -> bool:
        """See ``OriginDataset``."""
        return self._base.makes_batches

    def __getitem__(self, i: int) -> Any:
        """Sample ``i`` of the subset."""
        return self._subset[i]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples of the subset."""
        return self._subset.__getitems__(list(indices))

    @contextmanager
    def supplied(
        self, data: Mapping[int, bytes | Bytes], generator: torch.Generator | None = None
    ) -> Iterator[Supply]:
        """See ``OriginDataset``; ``data`` is by samples of the subset."""
        below = {int(self._samples[i]): part for i, part in data.items()}
        with self._base.supplied(below, generator) as supply:
            yield supply

    def decode_bytes(self, data: Bytes) -> Any:
        """See ``OriginDataset``."""
        return self._base.decode_bytes(data)

    def decode_sample(self, data: Bytes, label: int) -> Any:
        """See ``OriginDataset``; ``label`` is what the data set beneath has."""
        return self._base.decode_sample(data, label)

    def finish(self, decoded: Any, label: int, generator: torch.Generator | None) -> Any:
        """See ``OriginDataset``."""
        return self._base.finish(decoded, label, generator)

    def stack(self, data: Bytes, offsets: Ints, labels: Ints) -> Any:
        """See ``OriginDataset``."""
        return self._base.stack(data, offsets, labels)

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
    """``subset`` and the subsets beneath it."""
    chain = [subset]
    while _only_selects(chain[-1].dataset):
        chain.append(chain[-1].dataset)
    return chain


def _whole_numbers(subset: Subset[Any]) -> NDArray[np.int64]:
    """The indices of ``subset``, a copy."""
    indices: Any = subset.indices
    if isinstance(indices, torch.Tensor):
        indices = indices.numpy(force=True)
    try:
        if isinstance(indices, np.ndarray):
            return indices.astype(np.int64, casting="same_kind")
        return np.fromiter(map(operator.index, indices), np.int64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the indices of the Subset are no whole numbers: {error}") from error
