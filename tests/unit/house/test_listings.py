# SPDX-License-Identifier: Apache-2.0
"""Listings of directories: included, omitted and refused files, compared with torchvision's ImageFolder."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys

import pytest
import torch
from torchvision.datasets import ImageFolder

import foresee
import foresee.torch as ft
from foresee import cli
from foresee.errors import (
    ConfigError,
    IndexInvalid,
    NoSamples,
    OriginError,
    OriginMissing,
    PackageMissing,
    SampleFault,
)


def plant(root: pathlib.Path, *names: bytes) -> pathlib.Path:
    """Create a tree of files that contain their own names."""
    for name in names:
        path = os.path.join(os.fsencode(root), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        pathlib.Path(os.fsdecode(path)).write_bytes(name)
    return root


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    """Two classes of one picture each."""
    return plant(tmp_path / "data", b"cat/1.png", b"dog/1.png")


def same_as_torch(root: pathlib.Path, **arguments: bool) -> ft.FolderDataset:
    """Return our data set after a comparison of its classes, labels and paths with torch's."""
    ours, theirs = ft.FolderDataset(root, **arguments), ImageFolder(str(root), **arguments)
    assert (ours.class_to_idx, ours.targets) == (theirs.class_to_idx, theirs.targets)
    assert ours.samples == theirs.samples
    return ours


# ---- files that are no samples


@pytest.mark.parametrize("name", ["cat/notes.txt", "latest", ".hidden/x.txt"])
def test_a_broken_link_without_a_picture_extension_is_omitted(tree: pathlib.Path, name: str) -> None:
    (tree / name).parent.mkdir(exist_ok=True)
    (tree / name).symlink_to("gone")
    if name.startswith("."):
        assert ft.FolderDataset(tree).class_to_idx == {"cat": 0, "dog": 1}
    else:
        same_as_torch(tree)


def test_a_broken_link_with_a_picture_extension_is_refused_by_name_and_can_be_excluded(
    tree: pathlib.Path,
) -> None:
    (tree / "cat" / "2.png").symlink_to("gone")
    with pytest.raises(
        OriginMissing, match=r"cat/2\.png cannot be read \(a link that leads nowhere\)"
    ) as caught:
        ft.FolderDataset(tree)
    assert "exclude=" in str(caught.value)
    assert len(ft.FolderDataset(tree, exclude="cat/2.png")) == 2
    with pytest.raises(OriginMissing):
        foresee.Loader(tree, batch_size=1, layout="flat")


def test_folders_of_editors_and_jobs_are_only_classes_if_they_have_samples(
    tree: pathlib.Path,
) -> None:
    plant(tree, b".ipynb_checkpoints/x.txt", b"_temporary/0/part")
    assert ft.FolderDataset(tree).class_to_idx == {"cat": 0, "dog": 1}
    assert same_as_torch(tree, allow_empty=True).classes == [".ipynb_checkpoints", "_temporary", "cat", "dog"]
    plant(tree, b"_temporary/1.png", b".ipynb_checkpoints/1.png")
    same_as_torch(tree)


def test_an_empty_class_is_refused_with_remedies_that_work(tree: pathlib.Path) -> None:
    (tree / "empty").mkdir()
    with pytest.raises(IndexInvalid, match="the first is empty") as caught:
        ft.FolderDataset(tree)
    assert "allow_empty=True" in str(caught.value)
    assert 'exclude="empty"' in str(caught.value)
    assert same_as_torch(tree, allow_empty=True).class_to_idx == {"cat": 0, "dog": 1, "empty": 2}
    assert ft.FolderDataset(tree, exclude="empty").class_to_idx == {"cat": 0, "dog": 1}


def test_a_guessed_layout_does_not_hide_that_one_class_is_empty(tree: pathlib.Path) -> None:
    (tree / "empty").mkdir()
    with pytest.raises(IndexInvalid, match="the first is empty"):
        foresee.Loader(tree, batch_size=1)
    assert foresee.Loader(tree, batch_size=1, allow_empty=True).index.classes == ["cat", "dog", "empty"]
    with pytest.raises(NoSamples):
        ft.FolderDataset(tree, extensions=".jpg")
    other = plant(tree.parent / "other", b"a/1.bin", b"b/2.bin")
    assert foresee.Loader(other, batch_size=1).index.layout == "flat"


def test_class_names_that_are_not_utf8_remain_distinct(tmp_path: pathlib.Path) -> None:
    root = plant(tmp_path, b"\xff/1.png", b"\xfe/1.png", b"z/\xfd.png")
    ours = same_as_torch(root)
    assert ours.classes == ["z", *map(os.fsdecode, (b"\xfe", b"\xff"))]
    assert ours.targets == [0, 1, 2]
    assert [pathlib.Path(path).read_bytes() for path, _ in ours.samples] == [
        b"z/\xfd.png",
        b"\xfe/1.png",
        b"\xff/1.png",
    ]


@pytest.mark.parametrize("off", ["0", "1"])
def test_names_that_are_not_utf8_are_read_with_and_without_the_engine(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    monkeypatch.setenv("FORESEE_OFF", off)
    root = plant(tmp_path, b"c/\xff.png", b"c/a\nb.png", b"c/a%20b.png")
    for uri in (str(root), f"file://{root}"):
        with foresee.Loader(uri, batch_size=3, layout="folder") as loader:
            (batch,) = loader
            assert [bytes(batch.sample(place)) for place in range(3)] == [
                b"c/a\nb.png",
                b"c/a%20b.png",
                b"c/\xff.png",
            ]


# ---- patterns


@pytest.mark.parametrize(
    ("exclude", "remaining"),
    [
        (None, ["cat/1.png", "cat/old/2.png", "dog/1.png", "dog/old.png"]),
        ("old", ["cat/1.png", "dog/1.png", "dog/old.png"]),
        (["old/", "old.*"], ["cat/1.png", "dog/1.png"]),
        ("cat/old", ["cat/1.png", "dog/1.png", "dog/old.png"]),
        ("**/1.png", ["cat/old/2.png", "dog/old.png"]),
        ("dog", ["cat/1.png", "cat/old/2.png"]),
        ("[!o]*.png", ["dog/old.png"]),
    ],
)
def test_excluded_files_and_folders_are_in_no_interface(
    tree: pathlib.Path, tmp_path: pathlib.Path, exclude: str | list[str] | None, remaining: list[str]
) -> None:
    plant(tree, b"cat/old/2.png", b"dog/old.png")
    names = {f"{tree}/{name}" for name in remaining}
    if exclude == "[!o]*.png":
        exclude = [exclude, "cat"]
    assert {path for path, _ in ft.FolderDataset(tree, exclude=exclude).samples} == names
    with foresee.Loader(tree, batch_size=1, layout="folder", exclude=exclude) as loader:
        assert len(loader.index) == len(remaining)
    options = [f"--exclude={one}" for one in ([exclude] if isinstance(exclude, str) else exclude or [])]
    out = str(tmp_path / "x.fidx")
    assert cli.main(["index", str(tree), "--layout", "folder", "-o", out, "--json", *options]) == 0
    assert len(foresee.Index.open(out)) == len(remaining)


def test_arrays_can_be_excluded(array: pathlib.Path) -> None:
    whole = ft.ArrayDataset(array)
    shutil.copy(next(array.glob("*.npy")), array / "copy.npy")
    assert len(ft.ArrayDataset(array)) > len(whole)
    assert len(ft.ArrayDataset(array, exclude="copy.npy")) == len(whole)


@pytest.mark.parametrize(
    "change",
    [
        {"exclude": 3},
        {"exclude": b"x"},
        {"exclude": [b"x"]},
        {"exclude": "["},
        {"exclude": ""},
        {"extensions": 3},
        {"extensions": [3]},
        {"allow_empty": "no"},
        {"storage_options": "region=x"},
        {"storage_options": {"region": None}},
        {"transform": 3},
        {"target_transform": "x"},
    ],
)
def test_a_listing_argument_of_a_wrong_type_is_named(tree: pathlib.Path, change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        ft.FolderDataset(tree, **change)


def test_a_value_of_a_storage_option_is_never_shown(tree: pathlib.Path) -> None:
    with pytest.raises(ConfigError) as caught:
        ft.FolderDataset(tree, storage_options={"secret_access_key": [b"hush"]})
    assert "hush" not in str(caught.value)
    assert len(ft.FolderDataset(tree, storage_options={"allow_http": True, "x": 3})) == 2


def test_arguments_of_a_listing_are_refused_for_an_index(tree: pathlib.Path, tmp_path: pathlib.Path) -> None:
    index = foresee.Loader(tree, batch_size=1).index
    index.save(tmp_path / "x.fidx")
    for change in ({"exclude": "x"}, {"allow_empty": True}):
        with pytest.raises(ConfigError, match="with an index"):
            ft.FolderDataset(tree, index=index, **change)
        with pytest.raises(ConfigError, match="with an index"):
            foresee.Loader(tmp_path / "x.fidx", batch_size=1, **change)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda _: foresee.Index.open(3), "path=3"),
        (lambda _: foresee.Index.open(b"x"), "path=b'x'"),
        (lambda _: foresee.Index.build(3, layout="flat"), "uri=3"),
        (lambda _: foresee.Index.build("x", layout=3), "layout=3; use folder"),
        (lambda _: foresee.Index.build("x", layout="tree"), 'layout="tree"; use folder'),
        (lambda _: foresee.Index.build("x", layout="bin"), "row_bytes="),
        (lambda _: foresee.Index.build("x", layout="bin", row_bytes=-1), "row_bytes=-1"),
        (lambda _: foresee.Index.build("x", layout="flat", keys=["a"]), "keys="),
        (lambda index: index.size("a"), "sample='a'"),
        (lambda index: index.save(None), "path=None"),
        (lambda index: index.update(3), "other=3; an Index"),
    ],
)
def test_a_wrong_argument_of_an_index_is_named_and_shown(
    tree: pathlib.Path, call: object, named: str
) -> None:
    index = foresee.Loader(tree, batch_size=1).index
    with pytest.raises(ConfigError) as caught:
        call(index)
    assert named in str(caught.value)
    for outside in (-1, 2, 2**80):
        with pytest.raises(IndexError, match="outside the data set of 2"):
            index.size(outside)


# ---- places


def test_a_missing_directory_is_named_with_the_existing_folders(tree: pathlib.Path) -> None:
    for make in (ft.FolderDataset, lambda uri: foresee.Loader(uri, batch_size=1)):
        with pytest.raises(OriginMissing, match=r'dta does not exist; .* has the folders "data"'):
            make(str(tree.parent / "dta"))
    with pytest.raises(OriginMissing, match='write "s3://b/x"'):
        ft.FolderDataset("s3:/b/x")


@pytest.mark.parametrize(
    ("uri", "remedy"),
    [
        ("hdfs://h/x", "mount the file system"),
        ("gopher://h", "s3://"),
    ],
)
def test_the_error_for_an_unsupported_scheme_has_a_remedy(uri: str, remedy: str) -> None:
    with pytest.raises(OriginError, match="is not supported") as caught:
        ft.FolderDataset(uri)
    assert remedy in str(caught.value)


def test_the_home_folder_is_expanded_in_every_interface(
    tree: pathlib.Path, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tree)
    monkeypatch.setenv("FORESEE_TRACE", "~/run")
    monkeypatch.setenv("FORESEE_CACHE_DIR", "~/cache")
    monkeypatch.setenv("FORESEE_DISK_SIZE", "4MB")
    assert cli.main(["index", "~/data", "-o", "~/a.fidx"]) == 0
    foresee.Index.open("~/a.fidx").save("~/b.fidx")
    with foresee.Loader("~/b.fidx", uri="~/data", batch_size=1) as loader:
        assert sum(1 for _ in loader) == 2
    with foresee.Loader(foresee.Index.build("~/data", layout="folder"), batch_size=1) as loader:
        assert sum(1 for _ in loader) == 2
    assert len(ft.FolderDataset("~/data", index="~/b.fidx")) == 2
    assert sorted(os.listdir(tmp_path)) == ["a.fidx", "b.fidx", "cache", "data", "run"]
    assert sorted(os.listdir(tree)) == ["cat", "dog"]


def test_messages_about_a_copy_name_the_copy(tree: pathlib.Path, tmp_path: pathlib.Path) -> None:
    index = foresee.Loader(tree, batch_size=1).index
    copy = tmp_path / "copy"
    plant(copy, b"cat/1.png")
    with (
        foresee.Loader(index, uri=str(copy), batch_size=2) as loader,
        pytest.raises(SampleFault) as caught,
    ):
        list(loader)
    assert caught.value.uri.startswith(f"{copy}/")
    assert str(tree) not in str(caught.value)
    data = ft.FolderDataset(copy, index=index)
    assert [path for path, _ in data.samples] == [f"{copy}/cat/1.png", f"{copy}/dog/1.png"]


# ---- packages


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("PIL.Image", "pictures", lambda data: ft.FolderDataset(data, decode="pil")),
        ("PIL.Image", "pictures", lambda data: ft.FolderDataset(data, transform=torch.nn.Identity())),
        ("cloudpickle", "workers", lambda data: ft.DataLoader(ft.FolderDataset(data), num_workers=1)),
    ],
)
def test_a_missing_package_is_named_with_its_extra_before_a_sample_is_read(
    tree: pathlib.Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str, use: object
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PackageMissing, match=rf"install \w+, or foresee\[{extra}\]"):
        use(tree)


def test_throttling_has_its_own_remedy(tree: pathlib.Path) -> None:
    from foresee._loading.on_error import FaultHandler

    data = ft.FolderDataset(tree)
    error = FaultHandler("skip", data.source, 0, 0, lambda _: b"").error(
        1, "throttled", "refused", permanent=False
    )
    assert error.kind == "throttled"
    assert "fewer ranks" in error.remedy
