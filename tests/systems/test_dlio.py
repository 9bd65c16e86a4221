# SPDX-License-Identifier: Apache-2.0
"""Real DLIO on two ranks, with its own PyTorch loader and with Foresee's: the same samples, each once per epoch."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import zlib
from collections import Counter
from typing import Any

import pytest

from foresee.storage.analysis import ledger

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / ".dlio-venv" / "bin"
FILES, RANKS, BATCH, EPOCHS = 16, 2, 4, 3

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]


def environment(**more: str) -> dict[str, str]:
    """Return the environment for DLIO: Foresee and the counting classes, no tracer, any number of ranks."""
    mpi = {
        # Containers run as root, and this test may have more ranks than cores.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    paths = f"{ROOT / 'python'}:{ROOT / 'tests' / 'support'}"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FORESEE_")}
    return {**inherited, **mpi, "PYTHONPATH": paths, "DFTRACER_ENABLE": "0", **more}


class Dlio:
    """A small variant of DLIO's unet3d workload in a folder."""

    def __init__(self, folder: pathlib.Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        self.run("generate", 1, generate_data="True", train="False")
        files = sorted((folder / "data" / "train").iterdir())
        self.bytes = [file.read_bytes() for file in files]

    def run(self, name: str, ranks: int, *, reader: str = "", train: str = "True", **workflow: str) -> str:
        """Run DLIO; returns its output. Results go to ``<folder>/<name>``, counted samples to ``<name>-counted``."""
        counted = self.folder / f"{name}-counted"
        counted.mkdir()
        settings = {
            "workflow.train": train,
            "workflow.generate_data": workflow.get("generate_data", "False"),
            "workflow.checkpoint": "False",
            "dataset.format": self.kind,
            "dataset.data_folder": str(self.folder / "data"),
            "dataset.num_files_train": FILES,
            "dataset.record_length": 20_000,
            "dataset.record_length_stdev": 0,
            "dataset.record_length_resize": 4096,
            "reader.batch_size": BATCH,
            "reader.read_threads": 2,
            "train.epochs": EPOCHS,
            "train.computation_time": 0.001,
        }
        words = [f"++workload.{key}={value}" for key, value in settings.items()]
        launcher = [str(BIN / "mpirun"), "-n", str(ranks)] if ranks > 1 else []
        ended = subprocess.run(
            [
                *launcher,
                str(BIN / "dlio_benchmark"),
                "workload=unet3d_a100",
                *words,
                *(reader.split()),
                f"++hydra.run.dir={self.folder / name}",
            ],
            cwd=self.folder,
            env=environment(
                COUNTED=str(counted), FORESEE_RAM="64MB", FORESEE_TRACE=str(self.folder / f"{name}-run")
            ),
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        printed = ended.stdout + ended.stderr
        assert ended.returncode == 0, printed[-4000:]
        return printed

    def counted(self, name: str) -> list[list[str]]:
        """Return epoch, checksums and bytes of every read sample."""
        return [
            line.split()
            for file in sorted((self.folder / f"{name}-counted").iterdir())
            for line in file.read_text().splitlines()
        ]

    def steps(self, name: str) -> list[dict[str, int]]:
        """Return for each rank the number of steps that DLIO counted in each epoch."""
        steps = []
        for rank in range(RANKS):
            output: dict[str, Any] = json.loads((self.folder / name / f"{rank}_output.json").read_text())
            steps.append(
                {epoch: len(output[epoch]["load"]["block1"]) for epoch in map(str, range(1, EPOCHS + 1))}
            )
        return steps


@pytest.mark.parametrize("kind", ["npz", "hdf5", "jpeg"])
def test_dlio_reads_the_same_samples_with_the_foresee_loader_as_with_its_own(
    tmp_path: pathlib.Path, kind: str
) -> None:
    dlio = Dlio(tmp_path, kind)
    own = f"++workload.reader.reader_classname=dlio_counted.{kind.capitalize()}"
    dlio.run("own", RANKS, reader=own)
    ours = "++workload.reader.data_loader_classname=dlio_counted.Ours ++workload.reader.data_loader_sampler=index"
    printed = dlio.run("ours", RANKS, reader=ours)
    assert "Discovered custom data loader Ours" in printed

    files = Counter(f"{zlib.crc32(each):08x}" for each in dlio.bytes)
    assert files.total() == FILES
    read = {name: dlio.counted(name) for name in ("own", "ours")}
    for lines in read.values():
        assert Counter(line[1] for line in lines) == Counter({each: EPOCHS * n for each, n in files.items()})
    # Decoded samples and bytes are equal.
    assert Counter(tuple(line[1:]) for line in read["own"]) == Counter(
        tuple(line[1:]) for line in read["ours"]
    )
    for epoch in range(1, EPOCHS + 1):
        assert Counter(line[1] for line in read["ours"] if line[0] == str(epoch)) == files
    assert (
        dlio.steps("own") == dlio.steps("ours") == [dict.fromkeys(map(str, range(1, EPOCHS + 1)), 2)] * RANKS
    )

    # DLIO's own loader reads every file in every epoch. A rank with the Foresee loader reads no file twice.
    data = sum(map(len, dlio.bytes))
    assert sum(int(line[3]) for line in read["own"]) == EPOCHS * data
    assert data <= origin_bytes(tmp_path / "ours-run") <= RANKS * data


def origin_bytes(run: pathlib.Path) -> int:
    """Return the bytes read from the origin, by the ledgers."""
    total = 0
    for path, _ in ledger.files(run):
        for batch in ledger.batches(path):
            total += sum(
                row["bytes"] for row in batch.to_pylist() if (row["op"], row["source"]) == ("read", "origin")
            )
    return total


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run a few lines in DLIO's environment."""
    return subprocess.run(
        [BIN / "python", "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_other_formats_are_decoded_to_the_written_samples(tmp_path: pathlib.Path) -> None:
    ended = python(f"""
import io
import numpy as np
import tensorflow as tf
from PIL import Image
from foresee.dlio import DECODERS
sample = np.arange(12, dtype=np.uint8).reshape(3, 4, 1)
array, picture = io.BytesIO(), io.BytesIO()
np.save(array, sample)
Image.fromarray(sample[..., 0]).save(picture, "png")
for kind, file in (("npy", array), ("png", picture)):
    assert np.array_equal(DECODERS[kind](memoryview(file.getvalue())), sample[..., 0]), kind
with tf.io.TFRecordWriter({str(tmp_path / "one")!r}) as file:
    file.write(b"payload")
data = open({str(tmp_path / "one")!r}, "rb").read()
assert DECODERS["tfrecord"](memoryview(data)).tobytes() == b"payload"
try:
    DECODERS["tfrecord"](memoryview(2 * data))
except ValueError as error:
    print(error)
""")
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "30 bytes in a file that has one TFRecord of 7" in ended.stdout


def test_an_unsupported_workload_is_refused_with_all_reasons() -> None:
    ended = python("""
from dlio_benchmark.common.enumerations import DatasetType, FormatType, StorageType
from dlio_benchmark.utils.config import ConfigArguments
from dlio_benchmark.utils.utility import DLIOMPI
from foresee.dlio import ForeseeDataLoader
from foresee.errors import ConfigError
DLIOMPI.get_instance().initialize()
args = ConfigArguments.get_instance()
args.storage_type, args.num_samples_per_file = StorageType.S3, 1251
try:
    ForeseeDataLoader(FormatType.CSV, DatasetType.TRAIN, 1).read()
except ConfigError as error:
    print(*error.faults, sep="\\n")
""")
    assert ended.returncode == 0, ended.stderr[-2000:]
    output = ended.stdout
    assert "storage.storage_type = s3; local_fs or parallel_fs expected" in output
    assert "dataset.num_samples_per_file = 1251; 1 expected: Foresee fetches whole files" in output
    assert "dataset.format = csv; npz, npy, jpeg, png, hdf5, tfrecord expected" in output
    assert "dataset: no files for train; generate them first" in output


def test_ranks_with_uneven_shares_of_files_complete_each_epoch(tmp_path: pathlib.Path) -> None:
    dlio = Dlio(tmp_path, "npz")
    ours = "++workload.reader.data_loader_classname=foresee.dlio.ForeseeDataLoader"
    more = "++workload.reader.data_loader_sampler=iterative ++workload.reader.batch_size=3"
    printed = dlio.run("ours", RANKS, reader=f"{ours} {more}")
    assert "Discovered custom data loader ForeseeDataLoader" in printed
    # Each of 2 ranks has 8 of 16 files: 2 batches of 3; like DLIO, 2 files are left out.
    assert dlio.steps("ours") == [dict.fromkeys(map(str, range(1, EPOCHS + 1)), 2)] * RANKS
