# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger calibrate`` with real processes and a real page cache; the rest is proved in virtual time."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest
from support.calibrations import CHUNKS, FEW, calibrate_really, figures, write
from support.cold import cold_file
from support.processes import processes_of
from support.stagger_job import CHUNK

from foresee.storage import page_cache


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with a file of 40 chunks."""
    folder = tmp_path / "data"
    folder.mkdir()
    cold_file(folder / "chunks.bin", CHUNKS * CHUNK)
    return folder


def chunks_of(log: pathlib.Path) -> set[int]:
    """The chunks that a job says it waited for."""
    lines = log.read_text().splitlines()
    return {int(line.split()[-1]) for line in lines if line.startswith("waits for chunk")}


def test_cold_jobs_wait_for_each_chunk_warm_ones_for_none_and_all_are_ended(
    tmp_path: pathlib.Path, data: pathlib.Path
) -> None:
    pair = [write(tmp_path, "a", data), write(tmp_path, "b", data, "--compute", "0.006")]
    arguments = [*pair, *FEW, "--data", str(data), "--folder", str(tmp_path / "logs")]
    told = json.loads(calibrate_really(tmp_path, *arguments))
    assert [(ran["kind"], ran["job"], ran["beside"]) for ran in told["runs"]] == [
        ("cold", "a", None),
        ("warm", "a", None),
        ("cold", "b", None),
        ("warm", "b", None),
        ("pair", "a", "b"),
        ("pair", "b", "a"),
    ]
    kept = figures(told)
    for name, compute in (("a", 0.004), ("b", 0.006)):
        assert kept[name, "compute"]["seconds"] >= compute
        # How long is a difference of two medians, which other processes move; virtual time proves it.
        assert kept[name, "wait"]["steps"] == 12
    waited = {log.parent.name: chunks_of(log) for log in (tmp_path / "logs").glob("*-[cw]*/*.log")}
    # Of the steps that a cold run was asked for each waits, and of the warm run behind it none of them does.
    asked = set(range(14))
    assert {folder: chunks & asked for folder, chunks in waited.items()} == {
        "1-cold": asked,
        "2-warm": set(),
        "3-cold": asked,
        "4-warm": set(),
    }
    assert not processes_of(data / "chunks.bin")
    # Whatever runs next begins as cold as these did.
    assert page_cache.resident_bytes([str(data / "chunks.bin")])[0] == 0
    assert json.loads(calibrate_really(tmp_path, *arguments))["runs"] == []


def test_a_stock_loader_of_torch_is_calibrated(tmp_path: pathlib.Path, data: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nimport foresee.torch as ft\nfrom support.waiting import pause\n"
        "from torch.utils.data import DataLoader, DistributedSampler\n"
        f"class Data(torch.utils.data.Dataset):\n    def __len__(self): return 40\n"
        f"    def __getitem__(self, i): open({str(data / 'chunks.bin')!r}, 'rb').read(9); return i\n"
        "order = DistributedSampler(Data(), num_replicas=1, rank=0, seed=0)\n"
        "for batch in ft.measure(DataLoader(Data(), 1, sampler=order)):\n    pause(0.005)\n"
    )
    one = write(tmp_path, "a", data, command=json.dumps([sys.executable, "train.py"]))
    # One model, twice: it is started cold, and warm.
    arguments = [one, one, *FEW, "--data", str(data), "--short", "--coalesces"]
    told = json.loads(calibrate_really(tmp_path, *arguments))
    assert [ran["kind"] for ran in told["runs"]][:2] == ["cold", "warm"]
    assert all(ran["compute_seconds"] >= 0.005 for ran in told["runs"])
