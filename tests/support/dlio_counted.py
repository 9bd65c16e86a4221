# SPDX-License-Identifier: Apache-2.0
"""DLIO's readers and Foresee's loader for DLIO, which write a line per sample; DLIO finds them by name.

The lines go to ``COUNTED/rank-K``: epoch, checksums of the file and of the decoded sample, bytes. Foresee's line is
written when the sample is returned. DLIO's is written when it is read, without the epoch, which its readers do not know.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from dlio_benchmark.reader.hdf5_reader import HDF5Reader
from dlio_benchmark.reader.image_reader import ImageReader
from dlio_benchmark.reader.npz_reader import NPZReader
from dlio_benchmark.utils.config import ConfigArguments

from foresee.dlio import ForeseeDataLoader


def facts(encoded: bytes | memoryview, decoded: Any) -> tuple[int, int, int]:
    """Return the checksums of file and sample, and the bytes of the file."""
    return zlib.crc32(encoded), zlib.crc32(np.ascontiguousarray(decoded)), len(encoded)


def note(epoch: object, file_sum: int, sample_sum: int, size: int) -> None:
    """Append a line, atomically between processes."""
    rank = ConfigArguments.get_instance().my_rank
    file = os.open(
        Path(os.environ["COUNTED"]) / f"rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
    )
    os.write(file, f"{epoch} {file_sum:08x} {sample_sum:08x} {size}\n".encode())
    os.close(file)


class Ours(ForeseeDataLoader):
    def sample(self, data: memoryview) -> Any:
        super().sample(data)
        return np.array(facts(data, self.decode(data)))

    def next(self) -> Iterator[Any]:
        for batch in super().next():
            for pair in batch.tolist():
                note(self.epoch_number, *pair)
            yield batch


class _Theirs:
    def get_sample(self, filename: str, sample_index: int) -> None:
        super().get_sample(filename, sample_index)  # type: ignore[misc]
        opened = self.open_file_map[filename]  # type: ignore[attr-defined]
        note("-", *facts(Path(filename).read_bytes(), self.sample(opened, sample_index)))

    def sample(self, opened: Any, index: int) -> Any:
        return opened[..., index]


class Npz(_Theirs, NPZReader): ...


class Hdf5(_Theirs, HDF5Reader):
    def sample(self, opened: Any, index: int) -> Any:
        return opened["records"][index]


class Jpeg(_Theirs, ImageReader):
    def sample(self, opened: Any, index: int) -> Any:
        return opened
