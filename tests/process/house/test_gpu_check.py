# SPDX-License-Identifier: Apache-2.0
"""``scripts/gpu_check.py``: all parts on the CPU, and on a GPU if the host has one."""

from __future__ import annotations

import json
import os
import pathlib
import sys

import pytest
import torch
from support.environment import plain_environment
from support.processes import ROOT
from support.warm import Piped

sys.path.insert(0, str(ROOT / "scripts"))

import gpu_check

PARTS = [
    "copies in side streams",
    "two ranks on one device",
    "reference in one process",
    "gradients, ranks averaged first",
    "gradients, each rank by itself",
    "autocast with GradScaler",
    "loader next to compute",
]


@pytest.fixture
def _warm_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are forked from a process that has imported torch, which takes seconds of a core for each."""
    source = f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); import gpu_ranks; gpu_ranks.main()"

    def start(command: list[str], env: dict[str, str]) -> Piped:
        own = {name: value for name, value in env.items() if os.environ.get(name) != value}
        return Piped(source, command[2:], plain_environment(own))

    monkeypatch.setattr(gpu_check, "start", start)


@pytest.fixture(autouse=True)
def _own_settings():
    threads, tf32 = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    yield
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.use_deterministic_algorithms(False)


def passed(
    device: str, table: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> dict[str, dict[str, object]]:
    status = gpu_check.main(["--device", device, "--seconds", "0.2", "--json", "--output", str(table)])
    facts = json.loads(capsys.readouterr().out)
    assert status == 0, facts
    assert [part["name"] for part in facts["parts"]] == PARTS
    assert facts["date"] in table.read_text()
    return {part["name"]: part["figures"] for part in facts["parts"]}


@pytest.mark.usefixtures("_warm_ranks")
def test_all_parts_pass_on_the_cpu_and_the_table_lists_omitted_checks(tmp_path, capsys) -> None:
    figures = passed("cpu", tmp_path / "table.md", capsys)
    assert figures["copies in side streams"] == {"samples": 2 * 4096, "pinned": False, "streams": 0}
    # The scale was halved by the step that overflowed, and doubled after steps that did not.
    assert figures["autocast with GradScaler"]["scale"] == 2048.0
    text = (tmp_path / "table.md").read_text()
    assert "no GPU: page-locked memory and streams were not checked" in text
    assert text.count("| passed |") == len(PARTS)


@pytest.mark.gpu
def test_all_parts_pass_on_a_gpu(tmp_path, capsys) -> None:
    figures = passed("cuda", tmp_path / "table.md", capsys)
    assert figures["copies in side streams"]["pinned"] is True
    assert torch.cuda.get_device_name(0) in (tmp_path / "table.md").read_text()


def test_a_part_that_fails_is_a_line_of_the_table(capsys) -> None:
    def broken() -> dict[str, object]:
        raise AssertionError("samples 3, ... differ from the data")

    part = gpu_check.run("copies", broken)
    assert (part.passed, part.error) == (False, "AssertionError: samples 3, ... differ from the data")
    facts = {**gpu_check.machine("cpu"), "parts": [vars(part)]}
    assert "| copies | FAILED |" in gpu_check.table(facts)
    assert "broken" in capsys.readouterr().err
    rows = torch.zeros(4, 2)
    with pytest.raises(AssertionError, match="samples 1, "):
        gpu_check.compare(None, torch.ones(2, 2), [1, 2], rows)
