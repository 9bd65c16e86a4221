# SPDX-License-Identifier: Apache-2.0
"""Bounds of memory, disk, descriptors and threads, sampled during a run."""

from __future__ import annotations

import pathlib
import threading

import pytest
from support.data import make_folder
from support.processes import run
from support.waiting import pause

MARGIN = 64 << 20
"""Bytes that a rank may grow beyond 1.1 times its budget."""

READERS_OF_A_DIRECTORY = 64
"""Maximal number of threads of an origin."""

GROWTH = """
    import pathlib, sys, threading
    import foresee
    from support.processes import print_json
    from support.waiting import pause

    def resident():
        "Return the resident bytes of this process."
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024

    folder, ram, disk, batch_size = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    index = foresee.Index.open(folder)
    # Load everything that is loaded on first use before the growth is measured.
    with foresee.Loader(index, batch_size=1, epochs=1, cache=foresee.Cache(ram="4MB")) as loader:
        next(iter(loader))
    before = peak = resident()
    ended = threading.Event()

    def sample():
        global peak
        while not ended.is_set():
            peak = max(peak, resident())
            pause(0.002)

    sampler = threading.Thread(target=sample)
    sampler.start()
    more = {"disk": disk, "disk_size": "200MB"} if disk else {}
    with foresee.Loader(
        index, batch_size=batch_size, shuffle=True, seed=0, cache=foresee.Cache(ram=int(ram), **more)
    ) as loader:
        for _ in range(3):
            total = 0
            for batch in loader:
                # Touch every page, as training would.
                total += int(batch.data[::512].sum())
    ended.set()
    sampler.join()
    print_json(growth=peak - before)
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    """600 files of 250 KB, 150 MB in all, and their index."""
    import foresee

    root = tmp_path_factory.mktemp("large")
    make_folder(root / "data", [250_000] * 600)
    foresee.Index.build(str(root / "data"), layout="folder", options={}).save(root / "data.fidx")
    return str(root / "data.fidx")


@pytest.mark.parametrize("disk", [False, True], ids=["ram", "ram_and_disk"])
@pytest.mark.parametrize("ram", [20_000_000, 60_000_000, 120_000_000, 400_000_000])
def test_a_rank_grows_by_no_more_than_its_budget_a_tenth_and_64_mb(
    index: str, tmp_path: pathlib.Path, ram: int, disk: bool
) -> None:
    cache = str(tmp_path / "cache") if disk else ""
    (facts,) = run(GROWTH, index, str(ram), cache, "8")
    assert facts["growth"] <= ram * 1.1 + MARGIN


@pytest.mark.parametrize("ram", [100_000_000, 130_000_000])
def test_large_batches_in_use_are_within_the_budget(index: str, ram: int) -> None:
    # Batches of 25 MB: one in use, one ready and one in flight are most of the budget.
    (facts,) = run(GROWTH, index, str(ram), "", "100")
    assert facts["growth"] <= ram * 1.1 + MARGIN


def test_without_a_cache_a_rank_grows_by_its_staging_buffer(index: str) -> None:
    (facts,) = run(GROWTH, index, "0", "", "8")
    # Eight batches, or 512 samples if that is more.
    assert facts["growth"] <= 512 * 250_000 * 1.1 + MARGIN


@pytest.mark.parametrize("disk_size", [40_000_000, 170_000_000, 1_000_000_000])
def test_the_disk_cache_never_exceeds_disk_size(index: str, tmp_path: pathlib.Path, disk_size: int) -> None:
    import foresee

    place = tmp_path / "cache"
    peak, ended = 0, threading.Event()

    def used() -> int:
        total = 0
        for path in place.rglob("*"):
            try:
                status = path.stat()
            except OSError:
                continue
            total += max(status.st_blocks * 512, status.st_size if path.is_file() else 0)
        return total

    def sample() -> None:
        nonlocal peak
        while not ended.is_set():
            peak = max(peak, used())
            pause(0.005)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        for seed in range(2):
            cache = foresee.Cache(ram="20MB", disk=place, disk_size=disk_size)
            with foresee.Loader(
                foresee.Index.open(index), batch_size=8, shuffle=True, seed=seed, cache=cache, timeout=60
            ) as loader:
                for _ in range(2):
                    for _ in loader:
                        pass
    finally:
        ended.set()
        sampler.join()
    assert max(peak, used()) <= disk_size


def test_descriptors_threads_and_memory_are_flat_over_50_short_epochs(folder: pathlib.Path) -> None:
    lines = run(
        """
        import os, pathlib, sys
        import foresee
        import foresee.torch as ft
        from support.processes import print_json, thread_names

        def facts():
            status = dict(
                line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines()
            )
            names = thread_names()
            readers = names.count("foresee-reader")
            return {
                "descriptors": len(os.listdir("/proc/self/fd")),
                "readers": readers,
                "threads": len(names) - readers,
                "bytes": int(status["VmRSS"].split()[0]) * 1024,
            }

        folder, cache = sys.argv[1:]
        cache = ft.Cache(ram="4MB", disk=cache, disk_size="400MB")
        dataset = ft.FolderDataset(folder, transform=len, decode=None)
        with (
            ft.DataLoader(dataset, batch_size=8, shuffle=True, seed=0, cache=cache) as training,
            ft.DataLoader(dataset, batch_size=32, cache=cache) as validation,
        ):
            for number in range(60):
                for step, _ in enumerate(training):
                    if number % 3 == 1 and step == 4:
                        break
                for _ in validation:
                    pass
                if number >= 9:
                    print_json(**facts())
        """,
        str(folder),
        str(folder.parent / "cache"),
        warm=True,
    )
    assert len(lines) == 51
    early, late = lines[:10], lines[-10:]
    for name in ("descriptors", "threads"):
        # One or two vary with the load of the host. A leak per epoch would be forty by now.
        assert max(line[name] for line in late) <= max(line[name] for line in early) + 2, name
    # Readers start when reads queue up, which may be in any epoch; two directories limit their number.
    assert max(line["readers"] for line in lines) <= 2 * READERS_OF_A_DIRECTORY
    assert max(line["bytes"] for line in late) - max(line["bytes"] for line in early) <= 8 << 20


def test_fifty_loaders_one_after_another_leave_no_thread_and_no_descriptor(folder: pathlib.Path) -> None:
    lines = run(
        """
        import os, sys
        import foresee
        from support.processes import engine_threads, print_json, thread_names
        from support.waiting import wait_until

        for number in range(50):
            cache = foresee.Cache(ram="4MB", disk=sys.argv[2], disk_size="400MB")
            loader = foresee.Loader(sys.argv[1], batch_size=8, shuffle=True, seed=number, cache=cache)
            for step, _ in enumerate(loader):
                if number % 2 and step == 3:
                    break
            loader.close()
            # A thread ends when it is scheduled next.
            wait_until(lambda: not engine_threads(), what="the threads of a closed loader to end")
            print_json(descriptors=len(os.listdir("/proc/self/fd")), threads=len(thread_names()))
        """,
        str(folder),
        str(folder.parent / "cache"),
    )
    assert len(lines) == 50
    assert lines[-1]["descriptors"] <= lines[4]["descriptors"]
    assert lines[-1]["threads"] <= lines[4]["threads"]
