# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger calibrate`` with real processes and a real page cache; unit tests check the rest in virtual time."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest
from support.calibrations import CHUNKS, FEW, figures, run_calibration, write
from support.processes import processes_of
from support.stagger_job import CHUNK
from support.uncached import uncached_file

from foresee.storage import page_cache


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with a file of 40 chunks."""
    folder = tmp_path / "data"
    folder.mkdir()
    uncached_file(folder / "chunks.bin", CHUNKS * CHUNK)
    return folder


def chunks_of(log: pathlib.Path) -> set[int]:
    """Return the chunks that a job reports to have waited for."""
    lines = log.read_text().splitlines()
    return {int(line.split()[-1]) for line in lines if line.startswith("waits for chunk")}


def test_cold_jobs_wait_for_each_chunk_warm_jobs_for_none_and_all_end(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    pair = [write(tmp_path, "a", data), write(tmp_path, "b", data, "--compute", "0.006")]
    arguments = [*pair, *FEW, "--data", str(data), "--folder", str(tmp_path / "logs")]
    result = json.loads(run_calibration(tmp_path, *arguments))
    assert [(run["kind"], run["job"], run["beside"]) for run in result["runs"]] == [
        ("cold", "a", None),
        ("warm", "a", None),
        ("cold", "b", None),
        ("warm", "b", None),
        ("pair", "a", "b"),
        ("pair", "b", "a"),
    ]
    measured = figures(result)
    for name, compute in (("a", 0.004), ("b", 0.006)):
        assert measured[name, "compute"]["seconds"] >= compute
        # The wait itself is a difference of two medians, which depends on other processes; unit tests check it in virtual time.
        assert measured[name, "wait"]["steps"] == 12
    waited = {log.parent.name: chunks_of(log) for log in (tmp_path / "logs").glob("*-[cw]*/*.log")}
    # A cold run waits in each requested step, and the warm run after it in none of these.
    requested = set(range(14))
    assert {folder: chunks & requested for folder, chunks in waited.items()} == {
        "1-cold": requested,
        "2-warm": set(),
        "3-cold": requested,
        "4-warm": set(),
    }
    assert not processes_of(data / "chunks.bin")
    # The next run starts with a cold page cache too.
    assert page_cache.resident_bytes([str(data / "chunks.bin")])[0] == 0
    assert json.loads(run_calibration(tmp_path, *arguments))["runs"] == []


def test_a_stock_loader_of_torch_is_calibrated(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os\nimport torch\nimport foresee.torch as ft\nfrom support.stagger_job import read\n"
        "from support.waiting import pause\nfrom torch.utils.data import DataLoader, DistributedSampler\n"
        f"file = os.open({str(data / 'chunks.bin')!r}, os.O_RDONLY)\n"
        "os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)\n"
        "class Data(torch.utils.data.Dataset):\n    def __len__(self): return 40\n"
        "    def __getitem__(self, i): read(file, i, 0.02); return i\n"
        "order = DistributedSampler(Data(), num_replicas=1, rank=0, seed=0)\n"
        "for batch in ft.measure(DataLoader(Data(), 1, sampler=order)):\n    pause(0.005)\n"
    )
    one = write(tmp_path, "a", data, command=json.dumps([sys.executable, "train.py"]))
    # The same job twice: one cold run and one warm run.
    arguments = [one, one, *FEW, "--data", str(data), "--short", "--coalesces"]
    result = json.loads(run_calibration(tmp_path, *arguments))
    # The cold run waits for the storage, so no pair has to run.
    assert [run["kind"] for run in result["runs"]] == ["cold", "warm"]
    assert all(run["compute_seconds"] >= 0.005 for run in result["runs"])
