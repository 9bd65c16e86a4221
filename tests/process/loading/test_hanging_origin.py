# SPDX-License-Identifier: Apache-2.0
"""Every way to end a loader while the origin hangs: the end does not hang, and no process, thread or file is left.

Only the watchdog limits its duration.
"""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.data import assert_exact, epoch, make_folder
from support.gradients import under_torchrun
from support.processes import Child, child, engine_threads, group_members, left_in, run
from support.resuming_ranks import STEPS
from support.servers import Testbed
from support.waiting import WATCHDOG, pause, wait_until

import foresee
import foresee.torch as ft
from foresee.errors import Closed, SampleFault

OPTIONS = {"skip_signature": "true", "region": "us-east-1"}


@pytest.fixture
def stuck(
    serve: Callable[[pathlib.Path], Testbed], tmp_path: pathlib.Path, sizes: list[int]
) -> tuple[str, str, dict[str, str]]:
    """Index file, URI and options of a bucket that answers no read."""
    make_folder(tmp_path / "origin" / "bucket" / "train", sizes)
    testbed = serve(tmp_path / "origin")
    options = {**OPTIONS, "endpoint": testbed.url}
    index = tmp_path / "index.fidx"
    foresee.Loader("s3://bucket/train", batch_size=1, storage_options=options).index.save(index)
    testbed.faults({"kind": "stall", "path": "/train/"})
    return str(index), "s3://bucket/train", options


def numpy_stuck(stuck: tuple[str, str, dict[str, str]], **arguments: Any) -> foresee.Loader:
    """The numpy loader on the stuck origin."""
    index, _, options = stuck
    return foresee.Loader(index, batch_size=8, storage_options=options, **arguments)


def torch_stuck(stuck: tuple[str, str, dict[str, str]], **arguments: Any) -> ft.DataLoader:
    """The PyTorch loader on the stuck origin, with a transform on threads."""
    index, uri, options = stuck
    dataset = ft.FolderDataset(uri, index=index, storage_options=options, transform=len, decode=None)
    return ft.DataLoader(dataset, batch_size=8, **arguments)


FACES = pytest.mark.parametrize("make", [numpy_stuck, torch_stuck], ids=["numpy", "torch"])


def ends(work: Callable[[], object]) -> None:
    """Run `work` in a thread, and fail if it hangs."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(WATCHDOG)
    assert not thread.is_alive(), f"no end within {WATCHDOG:.0f} s"


@FACES
def test_close_returns_at_once_while_the_origin_hangs(make: Any, stuck: Any) -> None:
    loader = make(stuck)
    loader.start()
    ends(loader.close)
    ends(loader.close)
    with pytest.raises(Closed):
        next(iter(loader))


@FACES
def test_close_from_another_thread_ends_the_wait(make: Any, stuck: Any) -> None:
    loader = make(stuck)
    waiting = threading.Event()
    ended: list[BaseException] = []

    def wait() -> None:
        iterator = iter(loader)
        waiting.set()
        try:
            next(iterator)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    waiting.wait(WATCHDOG)
    pause(0.2)
    ends(loader.close)
    thread.join(WATCHDOG)
    assert not thread.is_alive()
    assert [type(error) for error in ended] == [Closed]


@FACES
def test_a_loader_collected_while_it_reads_ends_its_threads(make: Any, stuck: Any) -> None:
    before = len(engine_threads())
    loader = make(stuck)
    iterator = iter(loader)
    loader.start()
    # A thread sets its name itself, after its start.
    wait_until(lambda: len(engine_threads()) > before, what="the start of its threads")
    del iterator, loader
    ends(gc.collect)
    wait_until(lambda: len(engine_threads()) <= before, what="the end of its threads")


def test_repeated_early_breaks_neither_hang_nor_mix_epochs(folder: pathlib.Path, sizes: list[int]) -> None:
    with foresee.Loader(folder, batch_size=4, shuffle=True, seed=0, timeout=30) as loader:
        for number in range(60):
            loader.set_epoch(number)
            for step, batch in enumerate(loader):
                assert batch.epoch == number
                assert_exact([(int(i), bytes(batch.sample(p))) for p, i in enumerate(batch.ids)], sizes)
                if step == number % 7:
                    break
        loader.set_epoch(0)
        assert len(epoch(loader)) == len(sizes)
        assert loader.audit()["ok"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_raising_transform_names_its_sample_and_the_loader_stays_usable(
    folder: pathlib.Path, workers: int
) -> None:
    def refuses(data: torch.Tensor) -> torch.Tensor:
        if len(data) == 900:
            raise ArithmeticError("900 bytes are too many")
        return data[:8]

    dataset = ft.FolderDataset(folder, transform=refuses, decode=None)
    with ft.DataLoader(dataset, batch_size=4, num_workers=workers, timeout=60) as loader:
        for _ in range(2):
            with pytest.raises(SampleFault, match="900 bytes are too many") as caught:
                list(loader)
            assert caught.value.sample == 0
            assert caught.value.kind == "transform"
        dataset.transform = None


PROGRAM = """
    import json, sys
    import foresee
    import foresee.torch as ft
    from support.processes import print_json
    index, uri, options, workers = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
    dataset = ft.FolderDataset(uri, index=index, storage_options=options, transform=len, decode=None)
    loader = ft.DataLoader(dataset, batch_size=8, num_workers=workers)
    iterator = iter(loader)
    loader.start()
    print_json(ready=True)
    next(iterator)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_ends_a_program_that_waits_for_a_stuck_origin(stuck: Any, workers: int) -> None:
    import json

    index, uri, options = stuck
    with child(PROGRAM, index, uri, json.dumps(options), str(workers), warm=True) as program:
        program.line()
        pause(0.3)
        program.send(signal.SIGINT)
        status, _, errors = program.end()
        assert status in (1, -signal.SIGINT, 130), errors
        assert "KeyboardInterrupt" in errors
        wait_until(lambda: not group_members(program.pid), what="the end of its workers")


@pytest.mark.parametrize("workers", [0, 2])
def test_kill_9_leaves_no_process_no_shared_memory_and_no_file_and_the_next_start_works(
    folder: pathlib.Path, tmp_path: pathlib.Path, workers: int
) -> None:
    source = """
        import os, sys, tempfile
        import foresee.torch as ft
        from support.processes import print_json
        folder, cache, workers, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
        os.environ["TMPDIR"] = tempfile.tempdir = sys.argv[5]
        dataset = ft.FolderDataset(folder, transform=len, decode=None)
        cache = ft.Cache(ram="64MB", disk=cache, disk_size="400MB")
        with ft.DataLoader(
            dataset, batch_size=8, shuffle=True, seed=0, num_workers=workers, cache=cache, persistent_workers=workers > 0
        ) as loader:
            for _ in range(epochs):
                for sizes, labels in loader:
                    print_json(sizes=sizes.tolist())
    """
    shared = set(os.listdir("/dev/shm"))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    cache = str(tmp_path / "cache")
    arguments = (str(folder), cache, str(workers))
    with child(source, *arguments, "1000", str(temporary), warm=True) as program:
        for _ in range(20):
            program.line()
        assert len(group_members(program.pid)) == 1 + workers
        program.send(signal.SIGKILL)
        program.wait()
        wait_until(lambda: not group_members(program.pid), what="the end of its workers")
    wait_until(lambda: not left_in("/dev/shm", shared), what="the end of its shared memory")
    assert [name for name in os.listdir(temporary) if name.startswith("foresee")] == []
    lines = run(source, *arguments, "1", str(temporary), warm=True)
    assert len(lines) == 12


def test_a_rank_that_leaves_early_does_not_stop_the_others(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source = """
        import sys
        import foresee
        from support.data import epoch
        from support.processes import print_json
        folder, cache, rank, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
        cache = foresee.Cache(ram="8MB", disk=cache, disk_size="700MB")
        with foresee.Loader(
            folder, batch_size=4, shuffle=True, seed=0, rank=rank, world_size=2, cache=cache, timeout=30
        ) as loader:
            for _ in range(epochs):
                print_json(ids=sorted(sample for sample, _ in epoch(loader)))
    """
    cache = str(tmp_path / "cache")
    env = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    with (
        child(source, str(folder), cache, "0", "1", env=env) as leaves,
        child(source, str(folder), cache, "1", "6", env={**env, "LOCAL_RANK": "1"}) as stays,
    ):
        first = leaves.line()["ids"]
        assert leaves.end()[0] == 0
        epochs = [stays.line()["ids"] for _ in range(6)]
        assert stays.end()[0] == 0
    assert sorted(first + epochs[0]) == list(range(96))


def test_torchrun_restarts_from_the_state_after_a_rank_dies(
    folder: pathlib.Path, tmp_path: pathlib.Path, started: Callable[[Child], Child]
) -> None:
    program = started(under_torchrun(2, "support.resuming_ranks", str(folder), str(tmp_path), restarts=1))
    status, _, errors = program.end()
    assert status == 0, errors
    logs = [
        (tmp_path / f"log-{attempt}-{rank}").read_text().splitlines() for attempt in (0, 1) for rank in (0, 1)
    ]
    assert [len(log) for log in logs] == [STEPS, STEPS, 8, 8]
    labels = [int(label) for log in logs for line in log for label in line.split()]
    assert sorted(labels) == sorted(ft.FolderDataset(folder, decode=None).targets)
