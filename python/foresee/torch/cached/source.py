# SPDX-License-Identifier: Apache-2.0
"""``SampleSource``: reads the bytes to cache, of one sample or of several at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import Subset

from foresee._runtime import ranks
from foresee.errors import ConfigError
from foresee.torch.cached.encode import encode
from foresee.torch.cached.process_cache import Grouping, InvalidBatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from foresee import _native
    from foresee.torch.data.dataset import OriginDataset


class SampleSource:
    """Reads samples of ``dataset`` as bytes.

    Args:
        dataset: the dataset of the user.
        ours: ``dataset`` if it is one of Foresee's, whose bytes are cached before they are decoded; else None.
        transform: called with each sample before it is encoded.
        allow_pickle: encode values of any type.
    """

    def __init__(
        self,
        dataset: Any,
        ours: OriginDataset | None,
        transform: Callable[[Any], Any] | None,
        *,
        allow_pickle: bool,
    ) -> None:
        self._dataset, self._ours, self._transform = dataset, ours, transform
        self._allow_pickle = allow_pickle

    def __call__(self, sample: int) -> bytes:
        """Read one sample."""
        if self._ours is not None:
            return bytes(self._ours.read_bytes(sample))
        return self._encoded(self._dataset[sample])

    def read_all(self, samples: list[int]) -> list[bytes]:
        """Read several samples at once, of a dataset for which ``reads_batches`` is true.

        Raises:
            InvalidBatchError: the dataset does not return a list with one sample for each index.
        """
        if self._ours is not None:
            return self._ours.read_bytes_of(samples)
        return [self._encoded(value) for value in read_batch(self._dataset, samples)]

    def grouping(self) -> Grouping:
        """Return which samples are read together."""
        if self._ours is not None:
            return Grouping(reads_batches=True, index=self._ours.index, has_peers=_is_one_of_several())
        return Grouping(reads_batches=reads_batches(self._dataset), index=None, has_peers=False)

    def plain_loader(self) -> _native.Loader | None:
        """Return what reads the samples without Python, if anything does."""
        return None if self._ours is None else self._ours.plain_loader()

    def _encoded(self, value: Any) -> bytes:
        if self._transform is not None:
            value = self._transform(value)
        return encode(value, allow_pickle=self._allow_pickle)


def reads_batches(dataset: Any) -> bool:
    """Whether ``dataset`` has a ``__getitems__`` of its own, not only that of a ``Subset``, which reads one by one."""
    while getattr(type(dataset), "__getitems__", None) is Subset.__getitems__:
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))


def read_batch(dataset: Any, samples: Sequence[int]) -> list[Any]:
    """Return ``dataset.__getitems__(samples)``, checked.

    Raises:
        InvalidBatchError: it is no list with one sample for each index.
    """
    values = dataset.__getitems__(list(samples))
    name = type(dataset).__name__
    if not isinstance(values, list | tuple):
        raise InvalidBatchError(
            f"__getitems__ of {name} returned a {type(values).__name__}; return a list with one sample for each index"
        )
    if len(values) != len(samples):
        raise InvalidBatchError(
            f"__getitems__ of {name} returned {len(values)} samples for {len(samples)} indices; return one for each, "
            "in their order"
        )
    return list(values)


def _is_one_of_several() -> bool:
    """Whether other ranks read other samples."""
    try:
        return ranks.detect(provisional=True).size > 1
    except ConfigError:
        return True
