# SPDX-License-Identifier: Apache-2.0
"""A real JAX trains with the Foresee loader, with the rank of its distributed runtime."""

from __future__ import annotations

import json
import pathlib
import socket

import pytest
from support import framework_runs as runs
from support.framework_runs import RANKS, SAMPLES
from support.recorded_example import write_rows

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]


def test_one_process_reads_the_exact_order_and_resumes_mid_epoch(
    tmp_path: pathlib.Path,
) -> None:
    rows = str(write_rows(tmp_path / "rows.npy", SAMPLES))
    whole = runs.expected(SAMPLES, drop_last=True)
    stopped = [rows, "--state", str(tmp_path / "state.json"), "--steps", "8"]
    rest = [rows, "--state", str(tmp_path / "state.json")]
    runs.run_several("jax", {tmp_path / "whole": [rows], tmp_path / "head": stopped, tmp_path / "rest": rest})
    assert runs.batches(tmp_path / "whole") == whole
    assert runs.batches(tmp_path / "head") == whole[:8]
    assert runs.batches(tmp_path / "rest") == whole[8:]


def test_jax_processes_read_their_shares_without_torch(tmp_path: pathlib.Path) -> None:
    rows = write_rows(tmp_path / "rows.npy", SAMPLES)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = f"""
        import json, subprocess, sys
        processes = [
            subprocess.Popen([sys.executable, sys.argv[1], str(rank), "{port}", sys.argv[2]], stdout=subprocess.PIPE)
            for rank in range({RANKS})
        ]
        print(json.dumps([json.loads(process.communicate()[0]) for process in processes]))
    """
    rank = tmp_path / "rank.py"
    rank.write_text(
        "import json, sys, jax, foresee\n"
        f"jax.distributed.initialize('127.0.0.1:' + sys.argv[2], {RANKS}, int(sys.argv[1]))\n"
        "with foresee.Loader(sys.argv[3], batch_size=8, shuffle=True, seed=0, epochs=3) as loader:\n"
        "    read = [[epoch, batch.ids.tolist()] for epoch in range(3) for batch in loader]\n"
        "    print(json.dumps([loader.rank, loader.world_size, read, 'torch' in sys.modules]))\n"
    )
    reports = json.loads(runs.run_text(program, tmp_path, rank, rows).splitlines()[0])
    for number, (its, size, read, has_torch) in enumerate(reports):
        assert (its, size, has_torch) == (number, RANKS, False)
        assert [tuple(batch) for batch in read] == runs.expected(SAMPLES, rank=number, ranks=RANKS)
