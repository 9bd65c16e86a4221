# SPDX-License-Identifier: Apache-2.0
"""Several loaders and several runs on one cache: one budget in a process, one directory between processes."""

from __future__ import annotations

import pathlib
import signal

from support.data import assert_exact, epoch, make_folder
from support.processes import child, run
from support.waiting import wait_until

import foresee
import foresee.torch as ft

RUN = """
    import sys
    import foresee
    from support.data import digest, epoch
    from support.processes import print_json
    folder, cache, seed, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    cache = foresee.Cache(ram=0, disk=cache, disk_size="700MB")
    with foresee.Loader(folder, batch_size=8, shuffle=True, seed=seed, cache=cache, timeout=60) as loader:
        for _ in range(epochs):
            print_json(digest=digest(epoch(loader)), ok=loader.audit()["ok"])
"""


def expected(folder: pathlib.Path, seed: int, epochs: int) -> list[str]:
    """Return the batches of a run without a cache."""
    from support.data import digest

    with foresee.Loader(folder, batch_size=8, shuffle=True, seed=seed, cache=foresee.Cache(ram=0)) as loader:
        return [digest(epoch(loader)) for _ in range(epochs)]


def test_two_runs_on_one_directory_at_once_both_get_their_own_bytes(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for _ in range(2):
        cache = str(tmp_path / "cache")
        with (
            child(RUN, str(folder), cache, "1", "5") as first,
            child(RUN, str(folder), cache, "2", "5") as second,
        ):
            lines = [[program.line() for _ in range(5)] for program in (first, second)]
            assert [program.end()[0] for program in (first, second)] == [0, 0]
        for seed, of_run in zip((1, 2), lines, strict=True):
            assert [line["digest"] for line in of_run] == expected(folder, seed, 5)
            assert all(line["ok"] for line in of_run)


def test_two_data_sets_in_one_directory_stay_separate(
    folder: pathlib.Path, tmp_path: pathlib.Path, sizes: list[int]
) -> None:
    other_sizes = [size + 3 for size in sizes]
    other = make_folder(tmp_path / "other", other_sizes)
    for _ in range(2):
        cache = foresee.Cache(ram=0, disk=tmp_path / "cache", disk_size="3GB")
        with (
            foresee.Loader(folder, batch_size=8, shuffle=True, seed=0, cache=cache) as one,
            foresee.Loader(other, batch_size=8, shuffle=True, seed=0, cache=cache) as two,
        ):
            for _ in range(2):
                assert_exact(epoch(one), sizes)
                assert_exact(epoch(two), other_sizes)


def test_a_run_after_a_killed_one_uses_its_directory(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    cache = str(tmp_path / "cache")
    for _ in range(3):
        with child(RUN, str(folder), cache, "1", "1000") as program:
            program.line()
            program.line()
            program.send(signal.SIGKILL)
            program.wait()
    lines = run(RUN, str(folder), cache, "1", "3")
    assert [line["digest"] for line in lines] == expected(folder, 1, 3)


def test_training_and_validation_share_one_budget(
    folder: pathlib.Path, tmp_path: pathlib.Path, sizes: list[int]
) -> None:
    other_sizes = sizes[:24]
    other = make_folder(tmp_path / "validation", other_sizes)
    cache = ft.Cache(ram="300KB")
    with (
        ft.DataLoader(ft.FolderDataset(folder), batch_size=8, shuffle=True, seed=0, cache=cache) as training,
        ft.DataLoader(ft.FolderDataset(other), batch_size=8, cache=cache) as validation,
    ):
        for _ in range(4):
            images = [image for images, _ in training for image in images]
            held_out = [image for images, _ in validation for image in images]
            assert sorted(len(image) for image in images) == sorted(sizes)
            assert [len(image) for image in held_out] == other_sizes
            used = [
                tier["used_bytes"]
                for loader in (training, validation)
                for tier in loader.stats()["tiers"]
                if tier["place"] == "ram"
            ]
            # The memory is shared, and each loader reports all of it.
            assert max(used) <= 300_000


def test_a_break_in_training_does_not_disturb_validation(
    folder: pathlib.Path, tmp_path: pathlib.Path, sizes: list[int]
) -> None:
    other = make_folder(tmp_path / "validation", sizes[:24])
    cache = foresee.Cache(ram="64MB", disk=tmp_path / "cache", disk_size="3GB")
    with (
        foresee.Loader(folder, batch_size=8, shuffle=True, seed=0, cache=cache) as training,
        foresee.Loader(other, batch_size=8, cache=cache) as validation,
    ):
        for stop in (1, 5, 0, 12):
            for step, batch in enumerate(training):
                assert_exact([(int(i), bytes(batch.sample(p))) for p, i in enumerate(batch.ids)], sizes)
                if step == stop:
                    break
            assert_exact(epoch(validation), sizes)


def test_a_closed_loader_frees_its_share_for_the_others(
    folder: pathlib.Path, tmp_path: pathlib.Path, sizes: list[int]
) -> None:
    cache = foresee.Cache(ram="1MB")
    training = foresee.Loader(folder, batch_size=8, shuffle=True, seed=0, cache=cache)
    with training:
        for _ in range(3):
            other = foresee.Loader(
                make_folder(tmp_path / "other", sizes), batch_size=8, shuffle=True, seed=1, cache=cache
            )
            with other:
                assert_exact(epoch(training), sizes)
                assert_exact(epoch(other), sizes)
        assert_exact(epoch(training), sizes)
        wait_until(
            lambda: training.stats()["tiers"][0]["used_bytes"] <= 1_000_000,
            what="the slab's release",
        )
