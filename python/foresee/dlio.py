# SPDX-License-Identifier: Apache-2.0
"""Data loader plug-in for DLIO (``dlio-benchmark``), for its workloads and those of MLPerf Storage.

Its class name goes into a workload, or onto the command line of ``dlio_benchmark``::

    ++workload.reader.data_loader_classname=foresee.dlio.ForeseeDataLoader ++workload.reader.data_loader_sampler=index

The environment gives memory and disk: ``FORESEE_RAM``, ``FORESEE_CACHE_DIR``, ``FORESEE_DISK_SIZE``. If DLIO does not
find the class, it uses its own loader; its log has "Discovered custom data loader" if it found this one.

As in DLIO's own loader for PyTorch, a sample is decoded and ``resized_image`` is returned in its place. Two things
differ: the order is that of torch's ``DistributedSampler`` over all files, and a rank reads a file once per run if its
cache has the capacity, not once per epoch. Files with several samples, and data outside of a file system, are refused.
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
    """Loader that DLIO creates; one object serves all epochs.

    Raises:
        ConfigError: the workload is not supported; all faults.
        IndexInvalid: files are missing.
    """

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)
        self._train = dataset_type is DatasetType.TRAIN
        self._epochs_left = self._args.epochs if self._train else None
        self._loader: ft.DataLoader | None = None
        self._is_begun = False

    def decode(self, data: memoryview) -> Any:
        """Decode the bytes of a file, as DLIO's reader does."""
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
            epochs=self._epochs_left,
            drop_last=True,
            rank=args.my_rank,
            world_size=args.comm_size,
        )

    def next(self) -> Iterator[Any]:
        """Iterate over the batches of an epoch; DLIO may stop before the last."""
        assert self._loader is not None, "DLIO calls read() first"
        # Not at the end: DLIO abandons the iterator after the last batch.
        self.epoch_number += self._is_begun
        self._is_begun = True
        yield from self._loader

    def finalize(self) -> None:
        """End an epoch; after the last one of a training, close the loader."""
        if self._epochs_left is None:
            return
        self._epochs_left -= 1
        if self._epochs_left == 0 and self._loader is not None:
            # FORESEE_OFF has no operations.
            operations = self._loader.stats().get("operations", {})
            reads = {name: done["read"]["ok"] for name, done in operations.items()}
            moved = ", ".join(f"{read['bytes']} from {name}" for name, read in reads.items() if read)
            _log.info("Foresee on rank %d: bytes %s", self._args.my_rank, moved)
            self._loader.close()

    def sample(self, data: memoryview) -> Any:
        """Make the sample of a file. Called on several threads, some batches ahead, past the end of an epoch."""
        self.decode(data)
        args = self._args
        if args.preprocess_time > 0 or args.preprocess_time_stdev > 0:
            time.sleep(max(random.gauss(args.preprocess_time, args.preprocess_time_stdev), 0.0))
        return args.resized_image


def _dataset(files: list[str], make: Callable[[memoryview], Any]) -> ft.FolderDataset:
    """Return a dataset of DLIO's list of files, which may be a part of the folder and in subfolders."""
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
    """Return the payload; DLIO does not decode its fields."""
    length, _ = _FRAME.unpack_from(data)
    payload = np.frombuffer(data, np.uint8)[_FRAME.size : -_FRAME_END]
    if len(payload) != length:
        raise ValueError(f"{len(payload)} bytes in a file that has one TFRecord of {length}")
    return payload


#: Decoder of a file by DLIO's name of its format.
DECODERS: dict[str, Callable[[memoryview], Any]] = {
    "npz": _npz,
    "npy": _npy,
    "jpeg": _picture,
    "png": _picture,
    "hdf5": _hdf5,
    "tfrecord": _tfrecord,
}
