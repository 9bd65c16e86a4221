# SPDX-License-Identifier: Apache-2.0
"""The reading processes of ``foresee bench storage``: unusable files, and a killed process."""

from __future__ import annotations

import os
import pathlib
import signal

import numpy as np
import pytest

from foresee.errors import CacheError, OriginError, WorkerDied
from foresee.storage.bench.rank import Task
from foresee.storage.bench.ranks import Ranks
from foresee.storage.bench.throttle import Throttle


def task(folder: pathlib.Path, run: pathlib.Path, *, size: int, count: int = 2) -> Task:
    return Task(
        run=str(run),
        clock_ns=0,
        epoch=0,
        order=np.arange(count),
        cached=np.zeros(count, np.bool_),
        origin=str(folder),
        cache=str(folder),
        size=size,
        throttle=Throttle(),
    )


def test_a_missing_short_or_wrong_file_is_named(tmp_path: pathlib.Path) -> None:
    for name, number, size in (("0", 0, 16), ("1", 0, 16)):
        (tmp_path / f"{int(name):08d}").write_bytes(number.to_bytes(8, "little") + bytes(size - 8))
    with Ranks(1) as ranks:
        with pytest.raises(OriginError, match="00000001: not the file that was written there"):
            ranks.epoch([task(tmp_path, tmp_path / "a", size=16)])
        with pytest.raises(OriginError, match="00000000: ends after 16 of 32 bytes"):
            ranks.epoch([task(tmp_path, tmp_path / "a", size=32)])
        (tmp_path / f"{1:08d}").unlink()
        with pytest.raises(OriginError, match=r"No such file or directory: .*00000001"):
            ranks.epoch([task(tmp_path, tmp_path / "a", size=16)])
        cached = task(tmp_path, tmp_path / "a", size=32)
        cached.cached[:] = True
        with pytest.raises(CacheError, match="ends after 16"):
            ranks.epoch([cached])


def test_a_killed_process_is_named_and_the_others_end(tmp_path: pathlib.Path) -> None:
    with Ranks(2) as ranks:
        pids = [process.pid for process in ranks._processes]
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"rank 1 .* has ended \(signal 9\)"):
            ranks.epoch([task(tmp_path, tmp_path / "run", size=16)] * 2)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
