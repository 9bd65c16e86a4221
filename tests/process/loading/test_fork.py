# SPDX-License-Identifier: Apache-2.0
"""Fork of a process with a live engine: the parent continues, and the child can open its own loader."""

from __future__ import annotations

import pathlib

from support.processes import run

FORKS = """
    import os, signal, sys
    import foresee
    import foresee.torch as ft
    from support.data import assert_exact, content, digest, epoch
    from support.processes import print_json

    def child(work):
        "Fork, run `work` in the child, and return its exit status."
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            status = 1
            try:
                work()
                status = 0
            except BaseException as error:
                sys.stderr.write(f"{type(error).__name__}: {error}\\n")
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status)

    folder = sys.argv[1]
    whole = [digest(epoch(loader)) for loader in [foresee.Loader(folder, batch_size=8, shuffle=True, seed=0)]]
"""


def test_using_the_parents_loader_in_a_child_is_an_error(folder: pathlib.Path) -> None:
    (facts,) = run(
        FORKS
        + """
    loader = foresee.Loader(folder, batch_size=8, shuffle=True, seed=0, cache=foresee.Cache(ram="8MB"))
    iterator = iter(loader)
    first = next(iterator)

    def continue_epoch():
        try:
            next(iterator)
        except foresee.ForeseeError as error:
            assert "fork" in str(error), error
        else:
            raise AssertionError("a batch from threads that the child does not have")

    def begin_epoch():
        try:
            list(loader)
        except foresee.ForeseeError as error:
            assert "fork" in str(error), error
        else:
            raise AssertionError("a batch from threads that the child does not have")

    statuses = [child(continue_epoch), child(begin_epoch), child(loader.close), child(lambda: loader.stats())]
    rest = sum(len(batch) for batch in iterator)
    print_json(statuses=statuses, samples=len(first) + rest, ok=loader.audit()["ok"])
    """,
        str(folder),
        warm=True,
    )
    assert facts == {"statuses": [0, 0, 0, 0], "samples": 96, "ok": True}


def test_a_child_that_exits_normally_leaves_the_parents_loader_usable(folder: pathlib.Path) -> None:
    lines = run(
        FORKS
        + """
    loader = foresee.Loader(folder, batch_size=8, shuffle=True, seed=0, cache=foresee.Cache(ram="8MB"))
    iterator = iter(loader)
    first = next(iterator)
    pid = os.fork()
    if pid == 0:
        # Garbage collection, atexit and finalizers run here.
        signal.alarm(20)
        sys.stderr = open(sys.argv[2], "w", buffering=1)
        del iterator, loader, first
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    rest = sum(len(batch) for batch in iterator)
    print_json(status=os.waitstatus_to_exitcode(status), samples=len(first) + rest, errors=open(sys.argv[2]).read())
    """,
        str(folder),
        str(folder.parent / "errors"),
        warm=True,
    )
    assert lines == [{"status": 0, "samples": 96, "errors": ""}]


def test_memory_that_a_child_maps_at_the_address_of_the_parents_cache_is_unchanged(
    folder: pathlib.Path,
) -> None:
    lines = run(
        FORKS
        + """
    import mmap
    cache = foresee.Cache(ram="8MB")
    with foresee.Loader(folder, batch_size=8, shuffle=True, seed=0, cache=cache) as loader:
        epoch(loader)

    def write():
        global cache, loader
        # The kernel uses holes first, and the cache left one.
        mapped = [mmap.mmap(-1, 1 << 20) for _ in range(64)]
        del cache, loader
        for one in mapped:
            one[0] = 1

    print_json(status=child(write))
    """,
        str(folder),
        warm=True,
    )
    assert lines == [{"status": 0}]


def test_a_child_can_open_its_own_loader_with_the_same_settings(folder: pathlib.Path) -> None:
    (facts,) = run(
        FORKS
        + """
    cache = foresee.Cache(ram="8MB", disk=sys.argv[2], disk_size="700MB")
    loader = foresee.Loader(folder, batch_size=8, shuffle=True, seed=0, cache=cache)
    iterator = iter(loader)
    next(iterator)

    def own():
        with foresee.Loader(folder, batch_size=8, shuffle=True, seed=0, cache=cache, timeout=15) as mine:
            assert digest(epoch(mine)) == whole[0]

    statuses = [child(own) for _ in range(3)]
    print_json(statuses=statuses, rest=sum(1 for _ in iterator))
    """,
        str(folder),
        str(folder.parent / "cache"),
        warm=True,
    )
    assert facts == {"statuses": [0, 0, 0], "rest": 11}


def test_the_stock_loaders_forked_workers_can_read_our_datasets(folder: pathlib.Path) -> None:
    (facts,) = run(
        FORKS
        + """
    import torch
    from torch.utils.data import DataLoader
    dataset = ft.FolderDataset(folder, decode=None)
    assert len(dataset[0][0]) == 900
    ours = ft.DataLoader(dataset, batch_size=8, shuffle=True, seed=0)
    iterator = iter(ours)
    next(iterator)
    stock = DataLoader(
        dataset, batch_size=8, num_workers=2, multiprocessing_context="fork", collate_fn=list, timeout=20
    )
    samples = sum(len(batch) for batch in stock)
    print_json(samples=samples, rest=sum(1 for _ in iterator))
    """,
        str(folder),
        warm=True,
    )
    assert facts == {"samples": 96, "rest": 11}


def test_a_child_that_closes_drops_or_keeps_a_loader_leaves_its_parents_usable(
    folder: pathlib.Path,
) -> None:
    (facts,) = run(
        FORKS
        + """
    def seen(batches):
        return [len(batch[0]) for batch in batches]

    def make(**arguments):
        dataset = ft.FolderDataset(folder, decode=None, transform=lambda data: int(data[0]))
        return ft.DataLoader(dataset, batch_size=8, **arguments)

    cases = 0
    for arguments in ({}, {"transform_threads": 2}, {"num_workers": 1}):
        loader = make(**arguments)
        batches = iter(loader)
        for how in ("close", "drop", "exit"):
            next(batches)
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)
                if how == "close":
                    loader.close()
                elif how == "drop":
                    del batches, loader
                else:
                    # The normal end of a script, with all exit handlers.
                    sys.exit(0)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0, (arguments, how, status)
            cases += 1
        assert seen(batches) == [8] * 9, arguments
        loader.close()
    print_json(cases=cases)
    """,
        str(folder),
    )
    assert facts == {"cases": 9}
