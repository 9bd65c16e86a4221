# SPDX-License-Identifier: Apache-2.0
"""Memory for the batches of a worker process, shared with the training process and reused.

Batches of torch's ``default_collate`` are stacked in it, so that their bytes are written once; results of a
``collate_fn`` are copied into it. The training process maps the same memory and reports when a segment is free again.
New pages are costly, because the kernel fills them with zeros.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data._utils import collate as torch_collate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from foresee._loading.batch import Bytes

# Of buffers: fits every dtype and a cache line.
_ALIGNMENT = 64


class Segment:
    """Memory behind a descriptor without a name (memfd); the writer extends it, and the reader then maps it again."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._array: Bytes = np.zeros(0, np.uint8)

    @staticmethod
    def create(name: str) -> Segment:
        """Create an empty segment; ``name`` is visible in ``/proc`` only."""
        return Segment(os.memfd_create(name, os.MFD_CLOEXEC))

    @property
    def capacity(self) -> int:
        """Mapped bytes."""
        return len(self._array)

    def view(self, count: int) -> Bytes:
        """Return the first ``count`` bytes, valid until the next ``view`` or ``write``."""
        self._map_at_least(count)
        return self._array[:count]

    def lease(self, count: int) -> Bytes:
        """Return a separate array of the first ``count`` bytes, which lives until all its views are gone."""
        self._map_at_least(count)
        return (
            np.frombuffer(self._map, np.uint8, count) if self._map is not None and count else self._array[:0]
        )

    def write(self, buffers: Sequence[Bytes], end: int = 0) -> list[tuple[int, int]]:
        """Copy ``buffers`` after the first ``end`` bytes, unless they are in this memory; return the span of each."""
        spans: list[tuple[int, int]] = []
        start, capacity = self._array.ctypes.data, self.capacity
        for buffer in buffers:
            at = buffer.ctypes.data - start
            if at >= 0 and at + len(buffer) <= capacity and len(buffer):
                spans.append((at, at + len(buffer)))
            else:
                begin = _aligned(end)
                end = begin + len(buffer)
                spans.append((begin, end))
        if end > capacity:
            # 25 % more than needed, so that batches of similar sizes do not remap each time.
            os.ftruncate(self.descriptor, max(end + end // 4, mmap.PAGESIZE))
        target = self.view(end)
        for (begin, stop), buffer in zip(spans, buffers, strict=True):
            if begin != buffer.ctypes.data - start or stop > capacity:
                target[begin:stop] = buffer
        return spans

    def close(self) -> None:
        """Close the descriptor; the last map frees the memory."""
        os.close(self.descriptor)

    def _map_at_least(self, count: int) -> None:
        if count <= len(self._array):
            return
        size = os.fstat(self.descriptor).st_size
        if count > size:
            raise ConnectionError(
                f"{count} bytes announced, {size} found: the other end is no Foresee worker"
            )
        self._map = mmap.mmap(self.descriptor, size)
        self._array = np.frombuffer(self._map, dtype=np.uint8)


class Arena:
    """Segments of one worker, one of them for the batch in progress."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._free: list[int] = []
        self._current = 0
        self._end = 0

    def release(self, numbers: Iterable[int]) -> None:
        """Free these segments, whose batches the training process no longer uses."""
        self._free.extend(numbers)

    def begin(self) -> None:
        """Begin a batch."""
        if not self._free:
            self._free.append(len(self._segments))
            self._segments.append(Segment.create("foresee-batch"))
        self._current, self._end = self._free[-1], 0

    def finish(self, buffers: Sequence[Bytes]) -> tuple[int, int, list[tuple[int, int]]]:
        """Store the ``buffers`` of the batch; return number and descriptor of its segment, and the place of each."""
        self._free.pop()
        segment = self._segments[self._current]
        return self._current, segment.descriptor, segment.write(buffers, self._end)

    def collate(self, samples: list[Any]) -> Any:
        """Collate as torch's ``default_collate``."""
        known = torch_collate.default_collate_fn_map
        if known.get(torch.Tensor) is not torch_collate.collate_tensor_fn:
            return torch_collate.default_collate(samples)
        return torch_collate.collate(samples, collate_fn_map={**known, torch.Tensor: self._stack})

    def _stack(self, tensors: Any, *, collate_fn_map: Any = None) -> Any:
        first = tensors[0]
        count = first.numel() * len(tensors)
        dense = first.layout is torch.strided and first.device.type == "cpu" and not first.is_nested
        if not dense or first.requires_grad or not count:
            return torch_collate.collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)
        begin = _aligned(self._end)
        end = begin + count * first.element_size()
        segment = self._segments[self._current]
        if end > segment.capacity:
            # Copied by ``finish``, which extends the segment for the next batch.
            return torch.stack(tensors, 0)
        self._end = end
        memory = torch.from_numpy(segment.view(end)[begin:]).view(first.dtype)
        return torch.stack(tensors, 0, out=memory.view(len(tensors), *first.shape))


def _aligned(end: int) -> int:
    return -(-end // _ALIGNMENT) * _ALIGNMENT
