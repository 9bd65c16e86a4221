# SPDX-License-Identifier: Apache-2.0
"""A data loader for DLIO (``dlio-benchmark``): its workloads, and MLPerf Storage's, read by Foresee.

DLIO finds it by its name, which goes into a workload, or onto the command line of ``dlio_benchmark``::

    ++workload.reader.data_loader_classname=foresee.dlio.ForeseeDataLoader ++workload.reader.data_loader_sampler=index

Memory and disk to use come from the environment, as everywhere: ``FORESEE_RAM``, ``FORESEE_CACHE_DIR``,
``FORESEE_DISK_SIZE``. DLIO passes over a class that it does not find and takes its own loader: its log says "Discovered
custom data loader" where it has taken this one.

What a batch costs beside reading is what DLIO's own loader for PyTorch does: a sample is decoded, which DLIO throws
away, and ``resized_image`` handed out in its place. Two things differ. The order is that of torch's
``DistributedSampler``, over all files, where DLIO gives each rank a part; and a rank reads a file once per run where
its cache has room, not once per epoch, which is what is compared.

Files with more than one sample, and data that are not in a file system, are refused. Needs torch and DLIO.
"""

from __future__ import annotations

import io
import logging
import os
import random
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import foresee.torch as ft
from foresee import _native
from foresee._loading.packages import pillow
from foresee.errors import ConfigError, IndexInvalid, PackageMissing

try:
    from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, Shuffle, StorageType
    from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
except ModuleNotFoundError as error:
    raise PackageMissing(
        f"foresee.dlio is a plug-in of DLIO, and {error.name} is not installed; install DLIO into an environment of "
        "its own: pip install --no-deps dlio-benchmark, and what scripts/requirements-dlio.txt pins"
    ) from error

__all__ = ["DECODERS", "ForeseeDataLoader"]

_log = logging.getLogger(__name__)
_FILE_SYSTEMS = (StorageType.LOCAL_FS, StorageType.PARALLEL_FS)
#: Of a TFRecord: length, its checksum, then the payload and its checksum.
_FRAME = struct.Struct("<QI")
_FRAME_END = 4


class ForeseeDataLoader(BaseDataLoader):  # type: ignore[misc] # DLIO has no types
    """What DLIO asks for batches; one object serves all epochs.

    Raises:
        ConfigError: a workload that cannot be read this way; all faults.
        IndexInvalid: files are missing.
    """

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)
        self._train = dataset_type is DatasetType.TRAIN
        self._left = self._args.epochs if self._train else None
        self._loader: ft.DataLoader | None = None
        self._begun = False

    def decode(self, data: memoryview) -> Any:
        """What DLIO's reader makes of a file's bytes."""
        return DECODERS[str(self.format_type)](data)

    def read(self) -> None:
        """List the files; called once, before the first epoch."""
        args = self._args
        files = args.file_list_train if self._train else args.file_list_eval
        faults = []
        if args.storage_type not in _FILE_SYSTEMS:
            faults.append(f"storage.storage_type = {args.storage_type}; local_fs or parallel_fs expected")
        if args.num_samples_per_file != 1:
            faults.append(
                f"dataset.num_samples_per_file = {args.num_samples_per_file}; 1 expected: Foresee fetches whole files"
            )
        if str(self.format_type) not in DECODERS:
            faults.append(f"dataset.format = {self.format_type}; {', '.join(DECODERS)} expected")
        if not files:
            faults.append(f"dataset: no files for {self.dataset_type}; generate them first")
        if faults:
            raise ConfigError(faults)
        shuffled = self._train and (args.sample_shuffle, args.file_shuffle) != (Shuffle.OFF, Shuffle.OFF)
        self._loader = ft.DataLoader(
            _dataset(files, self.sample),
            batch_size=self.batch_size,
            shuffle=shuffled,
            seed=args.seed if shuffled else None,
            epochs=self._left,
            drop_last=True,
            rank=args.my_rank,
            world_size=args.comm_size,
        )

    def next(self) -> Iterator[Any]:
        """The batches of an epoch; DLIO may stop before the last."""
        assert self._loader is not None, "DLIO reads before it asks for batches"
        # Not at the end: DLIO leaves after the last batch, and whoever left is told so late or never.
        self.epoch_number += self._begun
        self._begun = True
        yield from self._loader

    def finalize(self) -> None:
        """An epoch is over; after the last one of a training everything is closed."""
        if self._left is None:
            return
        self._left -= 1
        if self._left == 0 and self._loader is not None:
            # There is nothing to tell under FORESEE_OFF.
            operations = self._loader.stats().get("operations", {})
            reads = {name: done["read"]["ok"] for name, done in operations.items()}
            moved = ", ".join(f"{told['bytes']} from {name}" for name, told in reads.items() if told)
            _log.info("Foresee on rank %d: bytes %s", self._args.my_rank, moved)
            self._loader.close()

    def sample(self, data: memoryview) -> Any:
        """What is handed out for a file. Called on several threads, some batches ahead, past the end of an epoch."""
        self.decode(data)
        args = self._args
        if args.preprocess_time > 0 or args.preprocess_time_stdev > 0:
            time.sleep(max(random.gauss(args.preprocess_time, args.preprocess_time_stdev), 0.0))
        return args.resized_image


def _dataset(files: list[str], make: Callable[[memoryview], Any]) -> ft.FolderDataset:
    """DLIO's list of files: it may be fewer than the folder has, and lie in subfolders."""
    paths = [os.path.abspath(file) for file in files]
    top = os.path.commonpath([os.path.dirname(path) for path in paths])
    keys = [os.fsencode(os.path.relpath(path, top)) for path in paths]
    index = _native.Index.build(top, layout="flat", keys=keys)
    if len(index) != len(set(keys)):
        raise IndexInvalid(f"{top}: {len(index)} of the {len(set(keys))} files that DLIO lists")
    return ft.FolderDataset(top, index=index, decode=make)


def _npz(data: memoryview) -> Any:
    with np.load(io.BytesIO(data)) as arrays:
        return arrays["x"][..., 0]


def _npy(data: memoryview) -> Any:
    return np.load(io.BytesIO(data))[..., 0]


def _picture(data: memoryview) -> Any:
    return np.asarray(pillow().open(io.BytesIO(data)))


def _hdf5(data: memoryview) -> Any:
    import h5py

    with h5py.File(io.BytesIO(data), "r") as file:
        return file["records"][0]


def _tfrecord(data: memoryview) -> Any:
    """The payload; DLIO parses it no further than to its fields."""
    length, _ = _FRAME.unpack_from(data)
    payload = np.frombuffer(data, np.uint8)[_FRAME.size : -_FRAME_END]
    if len(payload) != length:
        raise ValueError(f"{len(payload)} bytes in a file that has one TFRecord of {length}")
    return payload


#: By DLIO's name of a format: from a file's bytes to its sample.
DECODERS: dict[str, Callable[[memoryview], Any]] = {
    "npz": _npz,
    "npy": _npy,
    "jpeg": _picture,
    "png": _picture,
    "hdf5": _hdf5,
    "tfrecord": _tfrecord,
}
