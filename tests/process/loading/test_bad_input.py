# SPDX-License-Identifier: Apache-2.0
"""Bad data, disks and settings: the batches are correct, or an error names the place and the remedy."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from support.data import assert_exact, content, epoch, make_folder
from support.memory_group import JOIN, memory_group
from support.processes import run
from support.waiting import WATCHDOG
from torchvision.datasets import ImageFolder

import foresee
import foresee.torch as ft
from foresee.errors import CacheError, ConfigError, IndexInvalid, SampleFault, StateMismatch


@pytest.fixture
def mount(tmp_path: pathlib.Path) -> Iterator[Callable[..., pathlib.Path]]:
    """Mount file systems below the test's folder, and unmount them at its end."""
    mounted: list[pathlib.Path] = []

    def mount(*arguments: str) -> pathlib.Path:
        place = tmp_path / f"mount-{len(mounted)}"
        place.mkdir()
        subprocess.run(["mount", *arguments, str(place)], check=True, timeout=WATCHDOG)
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=WATCHDOG)


# ---- data


@pytest.mark.parametrize("layout", ["auto", "folder", "flat"])
def test_an_empty_directory_is_an_error_that_names_it(tmp_path: pathlib.Path, layout: str) -> None:
    with pytest.raises(IndexInvalid, match=str(tmp_path)):
        foresee.Loader(tmp_path, batch_size=1, layout=layout)
    with pytest.raises(IndexInvalid, match=str(tmp_path)):
        ft.FolderDataset(tmp_path)


def test_class_folders_without_pictures_are_an_error_that_names_their_place(tmp_path: pathlib.Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    with pytest.raises(IndexInvalid, match=str(tmp_path)):
        ft.FolderDataset(tmp_path)


def test_an_array_without_rows_is_an_error_that_names_it(tmp_path: pathlib.Path) -> None:
    np.save(tmp_path / "none.npy", np.zeros((0, 3), np.float32))
    with pytest.raises(IndexInvalid, match=str(tmp_path)):
        ft.ArrayDataset(tmp_path)


@pytest.mark.parametrize("sizes", [[0], [0, 0, 0, 0, 0], [5, 0, 7, 0, 0, 3, 1]], ids=["one", "all", "some"])
@pytest.mark.parametrize("ram", [0, "64MB"])
def test_empty_samples_are_delivered(tmp_path: pathlib.Path, sizes: list[int], ram: int | str) -> None:
    data = make_folder(tmp_path / "data", sizes)
    cache = foresee.Cache(ram=ram, disk=tmp_path / "cache", disk_size="300MB")
    with foresee.Loader(data, batch_size=2, shuffle=True, seed=0, cache=cache, layout="folder") as loader:
        for _ in range(2):
            returned = epoch(loader)
            assert_exact(returned, sizes)
            assert sorted(sample for sample, _ in returned) == list(range(len(sizes)))
            assert loader.audit()["ok"]
    with ft.DataLoader(ft.FolderDataset(data), batch_size=2, cache=cache) as torch_loader:
        lengths = [len(sample) for samples, _ in torch_loader for sample in samples]
    assert lengths == sizes


def test_a_sample_larger_than_every_cache_is_not_cached(tmp_path: pathlib.Path) -> None:
    sizes = [3_000_000, 10, 5_000_000, 20]
    data = make_folder(tmp_path / "data", sizes)
    cache = foresee.Cache(ram=0, disk=tmp_path / "cache", disk_size="2MB")
    with foresee.Loader(data, batch_size=1, shuffle=True, seed=1, cache=cache) as loader:
        for _ in range(3):
            assert_exact(epoch(loader), sizes)
            assert loader.audit()["ok"]


def test_a_batch_larger_than_the_memory_is_refused_with_both_sizes_and_the_remedy(
    tmp_path: pathlib.Path,
) -> None:
    data = make_folder(tmp_path / "data", [3_000_000] * 4)
    with pytest.raises(ConfigError, match=r"ram=4\.0 MB.*smaller batches.*ram="):
        foresee.Loader(data, batch_size=2, cache=foresee.Cache(ram="4MB"))


def test_a_batch_larger_than_the_usual_staging_buffer_gets_a_larger_one(tmp_path: pathlib.Path) -> None:
    sizes = [1] * 60 + [2_000_000] * 8
    data = make_folder(tmp_path / "data", sizes)
    # A quarter of the memory would be the staging buffer; three of the largest batches need three quarters.
    with foresee.Loader(data, batch_size=4, cache=foresee.Cache(ram="33MB")) as loader:
        for _ in range(2):
            assert_exact(epoch(loader), sizes)


@pytest.mark.parametrize("harm", ["deleted", "truncated", "grown", "rewritten"])
def test_a_file_that_differs_from_its_index_entry_is_named_at_its_batch(
    folder: pathlib.Path, sizes: list[int], harm: str
) -> None:
    index = foresee.Loader(folder, batch_size=1).index
    path = pathlib.Path(index.sample_uri(33).removeprefix("file://"))
    stamp = path.stat()
    path.unlink()
    if harm == "truncated":
        path.write_bytes(content(33, sizes[33] - 1))
    elif harm == "grown":
        path.write_bytes(content(33, sizes[33] + 1))
    elif harm == "rewritten":
        path.write_bytes(b"z" * sizes[33])
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    with foresee.Loader(index, batch_size=8) as loader, pytest.raises(SampleFault) as caught:
        epoch(loader)
    error = caught.value
    assert (error.sample, error.rank, error.permanent) == (33, 0, True)
    assert error.kind == ("missing" if harm == "deleted" else "changed"), str(error)
    assert str(path) in str(error)
    assert "foresee index --update" in str(error)


def test_names_that_are_not_utf_8_or_very_long_are_accepted(tmp_path: pathlib.Path) -> None:
    root = os.fsencode(tmp_path / "data")
    deep = b"/".join([b"d" * 200] * 10)
    keys = [b"a/\xff\xfe\x80.jpg", b"a/" + b"n" * 251 + b".jpg", b"\xc3\x28/x.jpg", b"a/" + deep + b"/x.jpg"]
    keys += ["ß/ü\u2028.jpg".encode(), b"a/ %41\t'\".jpg"]
    for number, name in enumerate(keys):
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(bytes([number]) * (number + 1))
    theirs = ImageFolder(os.fsdecode(root), loader=lambda path: pathlib.Path(path).read_bytes())
    saved = tmp_path / "index.fidx"
    foresee.Loader(os.fsdecode(root), batch_size=1).index.save(saved)
    index = foresee.Index.open(saved)
    assert [os.path.join(root, index.key(i)) for i in range(len(index))] == [
        os.fsencode(path) for path, _ in theirs.samples
    ]
    assert index.labels().tolist() == theirs.targets
    cache = foresee.Cache(ram=0, disk=tmp_path / "cache", disk_size="300MB")
    with foresee.Loader(index, batch_size=4, cache=cache) as loader:
        for _ in range(2):
            assert [data for _, data in epoch(loader)] == [theirs[i][0] for i in range(len(theirs))]
    # Messages must be able to show them.
    for i in range(len(index)):
        index.sample_uri(i).encode()


# ---- cache directories


def test_damaged_segments_and_manifests_cause_reads_but_no_wrong_byte(
    folder: pathlib.Path, tmp_path: pathlib.Path, sizes: list[int]
) -> None:
    def three_epochs() -> None:
        cache = foresee.Cache(ram=0, disk=tmp_path / "cache", disk_size="1GB")
        with foresee.Loader(folder, batch_size=8, shuffle=True, seed=0, cache=cache) as loader:
            for _ in range(3):
                assert_exact(epoch(loader), sizes)
                assert loader.audit()["ok"]

    three_epochs()
    chance = np.random.default_rng(0)
    files = sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size)
    assert len(files) >= 2
    for path in files:
        for harm in ("flip", "cut", "empty", "noise"):
            data = path.read_bytes()
            used = max(len(data.rstrip(b"\0")), 1)
            if harm == "flip":
                damaged = bytearray(data)
                for place in chance.integers(0, used, 20):
                    damaged[place] ^= 0xFF
                path.write_bytes(damaged)
            elif harm == "cut":
                path.write_bytes(data[: used // 2])
            elif harm == "empty":
                path.write_bytes(b"")
            else:
                path.write_bytes(chance.bytes(4096))
            three_epochs()
            if not path.exists():
                break


def test_a_full_disk_causes_misses_but_no_wrong_byte(
    tmp_path: pathlib.Path, mount: Callable[..., pathlib.Path]
) -> None:
    sizes = [200_000] * 60
    data = make_folder(tmp_path / "data", sizes)
    small = mount("-t", "tmpfs", "-o", "size=6m", "tmpfs")
    with foresee.Loader(
        data, batch_size=4, shuffle=True, seed=0, cache=foresee.Cache(ram=0, disk=small, disk_size="1GB")
    ) as loader:
        for _ in range(3):
            assert_exact(epoch(loader), sizes)
        assert loader.stats()["tiers"][0]["capacity_bytes"] < sum(sizes)
    # Another program uses the rest of the disk.
    with (small / "others").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small).free)
    with foresee.Loader(
        data, batch_size=4, shuffle=True, seed=0, cache=foresee.Cache(ram=0, disk=small, disk_size="1GB")
    ) as loader:
        for _ in range(2):
            assert_exact(epoch(loader), sizes)


def test_a_cache_directory_that_cannot_be_written_is_an_error_that_names_it(
    folder: pathlib.Path, tmp_path: pathlib.Path, mount: Callable[..., pathlib.Path]
) -> None:
    read_only = mount("-t", "tmpfs", "-o", "ro,size=1m", "tmpfs")
    file = tmp_path / "a-file"
    file.write_bytes(b"")
    for place in (read_only, read_only / "below", file, file / "below"):
        cache = foresee.Cache(ram="64MB", disk=place, disk_size="1GB")
        with foresee.Loader(folder, batch_size=8, cache=cache) as loader:
            with pytest.raises(CacheError) as caught:
                loader.start()
            assert isinstance(caught.value, OSError)
            assert str(place) in str(caught.value)
            # A second attempt fails too and does not hang.
            with pytest.raises(CacheError):
                epoch(loader)


# ---- arguments


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"RANK": "1"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of 2"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x'"),
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, "Slurm"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "2"}, "local rank 3 of 2"),
    ],
)
def test_contradictory_launcher_variables_are_refused_by_both_loaders(
    folder: pathlib.Path, environment: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # A missing rank number may come from a process group that is made before the first iter().
    with pytest.raises(ConfigError, match=named):
        iter(foresee.Loader(folder, batch_size=8))
    with pytest.raises(ConfigError, match=named):
        iter(ft.DataLoader(ft.FolderDataset(folder), batch_size=8))


def test_a_state_of_another_data_set_is_refused_by_both_loaders(
    folder: pathlib.Path, tmp_path: pathlib.Path, sizes: list[int]
) -> None:
    other = make_folder(tmp_path / "other", [size + 1 for size in sizes])
    for make in (
        lambda data: foresee.Loader(data, batch_size=8, shuffle=True, seed=0),
        lambda data: ft.DataLoader(ft.FolderDataset(data), batch_size=8, shuffle=True, seed=0),
    ):
        with make(folder) as here, make(other) as there:
            next(iter(here))
            with pytest.raises(StateMismatch, match="data set: fingerprint") as caught:
                there.load_state_dict(here.state_dict())
        for loader in (here, there):
            assert loader.state_dict()["fingerprint"] in str(caught.value)


def test_more_ram_than_the_control_group_allows_is_refused_before_the_run(folder: pathlib.Path) -> None:
    with memory_group(512 << 20) as group:
        (facts,) = run(
            JOIN
            + """
    import foresee
    from support.processes import print_json
    folder = sys.argv[1]
    try:
        foresee.Loader(folder, batch_size=8, cache=foresee.Cache(ram="1GB"))
    except foresee.ConfigError as error:
        refused = str(error)
    with foresee.Loader(folder, batch_size=8, cache=foresee.Cache(ram="100MB")) as loader:
        print_json(refused=refused, batches=sum(1 for _ in loader))
""",
            str(folder),
            str(group),
        )
    assert "ram=1.0 GB" in facts["refused"]
    assert "536.9 MB" in facts["refused"]
    assert facts["batches"] == 12


def test_a_damaged_image_is_handled_by_on_error(folder: pathlib.Path) -> None:
    dataset = ft.FolderDataset(folder, transform=lambda picture: torch.zeros(1))
    with ft.DataLoader(dataset, batch_size=8) as loader, pytest.raises(SampleFault) as caught:
        next(iter(loader))
    assert caught.value.kind == "decode"
    assert caught.value.permanent
