# SPDX-License-Identifier: Apache-2.0
"""``FileDataset``: rows, several objects per sample, targets, tables, and errors."""

from __future__ import annotations

import json
import os
import pathlib
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.equal_batches import assert_same
from support.properties import properties
from torch.utils.data import DataLoader, DistributedSampler

import foresee
import foresee.torch as ft
from foresee.errors import ConfigError, IndexInvalid, OriginChanged, OriginMissing, SampleFault

FILES = 9


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Nine files of equal size and nine of unequal ones, in unsorted folders."""
    root = tmp_path_factory.mktemp("files")
    for i in range(FILES):
        for name, data in ((f"equal/{i * 5 % 9}/{i}", bytes([i] * 8)), (f"ragged/{i}", bytes([i] * (i + 1)))):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
    return root


def equal(root, *numbers):
    return [str(root / f"equal/{i * 5 % 9}/{i}") for i in numbers]


def ragged(root, *numbers):
    return [str(root / f"ragged/{i}") for i in numbers]


def content(paths):
    return [list(pathlib.Path(path).read_bytes()) for path in paths]


@properties(soak=200, ordinary=24)
@given(
    rows=st.lists(st.integers(0, FILES - 1), min_size=1, max_size=12),
    extra=st.sampled_from([None, "sequence", "sequences", "mapping"]),
    kind=st.sampled_from(["none", "int", "float", "text", "bool", "array", "floats", "tensor"]),
    batch_size=st.integers(1, 5),
)
def test_batches_are_those_of_torch_over_a_plain_list(files, rows, extra, kind, batch_size):
    paths = equal(files, *rows)
    further = {
        None: None,
        "sequence": paths[::-1],
        "sequences": [paths[::-1], paths],
        "mapping": {"mask": paths[::-1]},
    }[extra]
    targets = {
        "none": None,
        "int": list(rows),
        "float": [row / 2 for row in rows],
        "text": [str(row) for row in rows],
        "bool": [row > 3 for row in rows],
        "array": np.array(rows, dtype=np.float32),
        "floats": np.array([[row, 1] for row in rows], dtype=np.float16),
        "tensor": torch.tensor([[row, 1] for row in rows]),
    }[kind]
    plain = [torch.tensor(list(pathlib.Path(path).read_bytes()), dtype=torch.uint8) for path in paths]
    data = {
        None: plain,
        "sequence": list(zip(plain, plain[::-1], strict=True)),
        "sequences": list(zip(plain, plain[::-1], plain, strict=True)),
        "mapping": [{"data": one, "mask": two} for one, two in zip(plain, plain[::-1], strict=True)],
    }[extra]
    known = sorted({str(row) for row in rows})
    learned = [known.index(text) for text in targets] if kind == "text" else targets
    reference = data if targets is None else list(zip(data, learned, strict=True))
    dataset = ft.FileDataset(paths, targets, extra=further)
    expected = list(DataLoader(reference, batch_size=batch_size))
    with ft.DataLoader(dataset, batch_size=batch_size) as loader:
        assert_same(list(loader), expected)
    assert_same(list(DataLoader(dataset, batch_size=batch_size)), expected)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_shuffled_epoch_of_several_objects_is_the_distributed_samplers(files, world_size):
    paths = ragged(files, 4, 2, 2, 8, 0, 1, 7)
    dataset = ft.FileDataset(paths, range(7), extra={"mask": paths[::-1]})
    for rank in range(world_size):
        sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, seed=5)
        with ft.DataLoader(
            dataset, batch_size=2, shuffle=True, seed=5, rank=rank, world_size=world_size
        ) as loader:
            for epoch in range(2):
                sampler.set_epoch(epoch)
                ids = list(sampler)
                found = [
                    (int(label), data.tolist(), mask.tolist())
                    for batch, labels in loader
                    for label, data, mask in zip(labels, batch["data"], batch["mask"], strict=True)
                ]
                assert found == [(i, content(paths)[i], content(paths[::-1])[i]) for i in ids]
                assert loader.audit()["ok"]


def test_rows_keep_their_order_and_a_file_of_several_rows_is_read_once(files):
    paths = ragged(files, 8, 0, 8, 3, 8)
    dataset = ft.FileDataset(paths)
    assert [sample.tolist() for sample in (dataset[i] for i in range(5))] == content(paths)
    assert len(dataset) == 5
    with ft.DataLoader(dataset, batch_size=2, shuffle=True, seed=1, epochs=2) as loader:
        for _ in range(2):
            assert sorted(len(sample) for batch in loader for sample in batch) == [1, 4, 9, 9, 9]
        assert loader.stats()["operations"]["origin"]["read"]["ok"]["bytes"] == 1 + 4 + 9


def test_a_run_over_samples_of_several_objects_resumes_within_an_epoch(files):
    paths = ragged(files, *range(9))
    dataset = ft.FileDataset(paths, range(9), extra=[paths[::-1]])

    def loader():
        return ft.DataLoader(dataset, batch_size=2, shuffle=True, seed=4)

    with loader() as whole:
        expected = [labels.tolist() for _, labels in whole]
    with loader() as first:
        head = iter(first)
        returned = [next(head)[1].tolist() for _ in range(2)]
        state = first.state_dict()
    with loader() as second:
        second.load_state_dict(state)
        rest = list(second)
        assert second.audit()["ok"]
    assert returned + [labels.tolist() for _, labels in rest] == expected
    for (one, two), labels in rest:
        for place, label in enumerate(labels.tolist()):
            assert (one[place].tolist(), two[place].tolist()) == (
                content(paths)[label],
                content(paths[::-1])[label],
            )


@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_a_missing_second_object_is_a_fault_of_its_sample(files, tmp_path, on_error):
    masks = [tmp_path / str(i) for i in range(6)]
    for i, mask in enumerate(masks):
        mask.write_bytes(bytes([i]))
    dataset = ft.FileDataset(equal(files, *range(6)), range(6), extra={"mask": masks})
    masks[2].unlink()
    with ft.DataLoader(dataset, batch_size=3) as loader, pytest.raises(SampleFault, match=str(masks[2])):
        list(loader)
    with ft.DataLoader(dataset, batch_size=3, on_error=on_error) as loader:
        batches = list(loader)
        change = loader.audit()["replaced" if on_error == "replace" else "skipped"][0]
    assert (len(batches), change["sample"]) == (2, 2)
    labels = [label for _, targets in batches for label in targets.tolist()]
    assert 2 not in labels
    assert len(labels) == (6 if on_error == "replace" else 5)
    for data, targets in batches:
        assert data["mask"].ravel().tolist() == targets.tolist()
        assert data["data"][:, 0].tolist() == targets.tolist()


def test_missing_files_are_an_error_with_the_first_rows_or_faults_with_allow_missing(files, tmp_path):
    paths = [*equal(files, 0, 1), str(tmp_path / "a"), str(tmp_path / "b"), *equal(files, 2)]
    with pytest.raises(
        OriginMissing, match=r"2 rows name objects.*uris, row 2: .*/a does not exist.*allow_missing=True"
    ):
        ft.FileDataset(paths)
    dataset = ft.FileDataset(paths, range(5), allow_missing=True)
    assert len(dataset) == 5
    with ft.DataLoader(dataset, batch_size=5, on_error="skip") as loader:
        assert next(iter(loader))[1].tolist() == [0, 1, 4]
    with pytest.raises(OriginMissing):
        dataset[2]


def test_transforms_get_the_whole_sample_and_each_object_its_decoder(files):
    dataset = ft.FileDataset(
        equal(files, 3, 5),
        [1, 2],
        extra={"mask": ragged(files, 3, 5)},
        decode={"data": bytes, "mask": len},
        transform=lambda sample: (sample["data"][0], sample["mask"]),
        target_transform=lambda target: target * 10,
    )
    assert [dataset[i] for i in range(2)] == [((3, 4), 10), ((5, 6), 20)]
    with ft.DataLoader(dataset, batch_size=2) as loader:
        assert_same(list(loader), list(DataLoader(dataset, batch_size=2)))


def test_pictures_are_decoded_for_a_transform(tmp_path):
    path = tmp_path / "a.png"
    Image.new("L", (3, 2), 7).save(path)
    dataset = ft.FileDataset([path], transform=lambda picture: (picture.mode, picture.size))
    assert dataset[0] == ("RGB", (3, 2))


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "jsonl"])
def test_tables_name_paths_below_their_folder(files, kind):
    rows = [(4, "dog", 0.5), (1, "cat", 1.5), (7, "dog", 2.5)]
    names = [(f"./ragged/{i}", os.path.relpath(equal(files, i)[0], files)) for i, _, _ in rows]
    columns = {
        "path": [one for one, _ in names],
        "mask": [two for _, two in names],
        "label": [label for _, label, _ in rows],
        "score": [score for _, _, score in rows],
        "bytes": [i + 1 for i, _, _ in rows],
    }
    table = files / f"table.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pa.table(columns), table)
    elif kind == "jsonl":
        lines = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        table.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        mark = "," if kind == "csv" else "\t"
        cells = [list(columns), *zip(*columns.values(), strict=True)]
        table.write_text("".join(mark.join(map(str, row)) + "\n" for row in cells))
    read = getattr(ft.FileDataset, "from_csv" if kind == "tsv" else f"from_{kind}")
    dataset = read(table, extra="mask", size="bytes")
    assert (dataset.classes, dataset.targets) == (["cat", "dog"], [1, 0, 1])
    assert dataset.class_to_idx == {"cat": 0, "dog": 1}
    data, target = dataset[1]
    assert (list(data), data["path"].tolist(), data["mask"].tolist(), target) == (
        ["path", "mask"],
        [1, 1],
        [1] * 8,
        0,
    )
    scores = read(table, target="score")
    assert [scores[i][1] for i in range(3)] == [0.5, 1.5, 2.5]
    assert read(table, target=None)[0].tolist() == [4] * 5
    with pytest.raises(ConfigError, match="has no column 'tag'; it has 'path', 'mask', 'label'"):
        read(table, target="tag")


def test_an_empty_cell_is_named_with_its_row(files):
    table = files / "empty.csv"
    table.write_text("path,label\nragged/1,3\nragged/2,\n")
    with pytest.raises(ConfigError, match=r"empty\.csv: label, row 1: the cell is empty"):
        ft.FileDataset.from_csv(table)
    table.write_text("path,label\nragged/1,3\n,4\n")
    with pytest.raises(ConfigError, match=r"empty\.csv: path, row 1: the cell is empty"):
        ft.FileDataset.from_csv(table)


@pytest.mark.parametrize("read", ["from_csv", "from_parquet", "from_jsonl"])
def test_a_missing_or_invalid_table_is_named(tmp_path, read):
    with pytest.raises(OriginMissing, match=r"none\.table does not exist"):
        getattr(ft.FileDataset, read)(tmp_path / "none.table")
    (tmp_path / "odd.table").write_bytes(b"\x00\xff{" * 5)
    with pytest.raises(ConfigError, match=r"odd\.table"):
        getattr(ft.FileDataset, read)(tmp_path / "odd.table")


def test_named_classes_keep_their_order_and_texts_can_stay_texts(files):
    paths, texts = equal(files, 0, 1), ["b", "a"]
    assert ft.FileDataset(paths, texts, classes=["b", "c", "a"]).targets == [0, 2]
    assert ft.FileDataset(paths, texts, classes=None)[0][1] == "b"
    with pytest.raises(ConfigError, match=r"targets, row 0: 'b' is not among the 1 classes"):
        ft.FileDataset(paths, texts, classes=["a"])


def test_columns_of_arrow_numpy_and_paths_are_rows(files):
    paths = equal(files, 2, 0)
    for column in (pa.array(paths), np.array(paths), [pathlib.Path(path) for path in paths], iter(paths)):
        dataset = ft.FileDataset(column)
        assert [dataset[i][0].item() for i in range(2)] == [2, 0]


def test_relative_rows_are_below_root_or_the_working_directory(files, monkeypatch):
    assert ft.FileDataset(["../ragged/3"], root=files / "equal")[0].tolist() == [3] * 4
    monkeypatch.chdir(files)
    assert ft.FileDataset(["ragged/3", "file://" + ragged(files, 2)[0]])[1].tolist() == [2] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"uris": []}, "uris is empty"),
        ({"uris": "/a/b"}, "a column expected"),
        ({"uris": ["x", ""]}, r"uris, row 1: .*the cell is empty"),
        ({"uris": ["x", None]}, r"uris, row 1: path=None"),
        ({"uris": ["x", "s3://b/x"]}, r"uris, row 1: .*one store"),
        ({"uris": ["x"], "targets": [1, 2]}, "targets has 2 rows, uris has 1"),
        ({"uris": ["x"], "extra": {"mask": ["x", "y"]}}, "mask has 2 rows, uris has 1"),
        ({"uris": ["x"], "extra": {"data": ["x"]}}, "extra= has an object 'data'"),
        ({"uris": ["x"], "extra": ["x"], "decode": [len]}, "decode= has 1 entries for 2 objects"),
        ({"uris": ["x"], "decode": {"mask": len}}, "decode= has 'mask', which is none of"),
        ({"uris": ["x"], "sizes": [-1]}, "sizes of data, row 0: -1; bytes expected"),
        ({"uris": ["x", "x"], "sizes": [1, 2]}, r"uris, row 1: .*its size is 2, and 1 in a row before"),
    ],
)
def test_a_wrong_row_or_column_is_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ft.FileDataset(**{"root": "/nowhere", **arguments})


def test_given_sizes_are_not_queried_and_are_checked_when_read(tmp_path):
    path = tmp_path / "late"
    dataset = ft.FileDataset([path], sizes=[3])
    path.write_bytes(b"abc")
    assert dataset[0].tolist() == list(b"abc")
    path.write_bytes(b"abcd")
    with pytest.raises(OriginChanged):
        dataset[0]
    with ft.DataLoader(dataset) as loader, pytest.raises(SampleFault, match="changed"):
        list(loader)


def test_a_dataset_is_pickled_subclassed_and_shown(files):
    class Doubled(ft.FileDataset):
        def __getitem__(self, i):
            data, target = super().__getitem__(i)
            return data.to(torch.int64) * 2, target

    dataset = Doubled(equal(files, 3, 2), ["b", "a"], extra=None)
    assert dataset[0][0].tolist() == [6] * 8
    with ft.DataLoader(dataset, batch_size=2) as loader:
        assert_same(list(loader), list(DataLoader(dataset, batch_size=2)))
    plain = ft.FileDataset(equal(files, 3, 2), ["b", "a"], extra=[ragged(files, 3, 2)])
    again = pickle.loads(pickle.dumps(plain))
    assert_same(again[1], plain[1])
    assert repr(again) == f"FileDataset(2 samples of 2 objects in {files}/, 2 classes)"


def test_the_numpy_loader_reads_a_saved_table_too(files, tmp_path):
    dataset = ft.FileDataset(ragged(files, 2, 0, 2))
    dataset.index.save(tmp_path / "table.fidx")
    assert foresee.Index.open(tmp_path / "table.fidx").fingerprint == dataset.index.fingerprint
    with foresee.Loader(tmp_path / "table.fidx", batch_size=3) as loader:
        (batch,) = loader
        assert [len(batch.sample(i)) for i in range(3)] == [3, 1, 3]
        assert batch.ids.tolist() == [0, 1, 2]


def test_without_the_engine_batches_of_several_objects_are_the_same(files, monkeypatch):
    dataset = ft.FileDataset(equal(files, 3, 2), [1, 2], extra=[ragged(files, 3, 2)])
    with ft.DataLoader(dataset, batch_size=2) as loader:
        expected = list(loader)
    monkeypatch.setenv("FORESEE_OFF", "1")
    with ft.DataLoader(dataset, batch_size=2) as loader:
        assert_same(list(loader), expected)


def test_a_second_object_that_cannot_be_decoded_is_named(files):
    dataset = ft.FileDataset(equal(files, 3), extra={"mask": ragged(files, 3)}, decode={"mask": "pil"})
    with (
        ft.DataLoader(dataset) as loader,
        pytest.raises(SampleFault, match=r"ragged/3: UnidentifiedImageError"),
    ):
        list(loader)


def test_a_folder_without_classes_has_its_files_as_samples(tmp_path, caplog):
    for name in ("b.jpg", "a.PNG", "notes.txt"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / ".ipynb_checkpoints").mkdir()
    dataset = ft.FolderDataset(tmp_path)
    assert (dataset.classes, dataset.targets) == ([], [-1, -1])
    assert [dataset[i].numpy().tobytes() for i in range(len(dataset))] == [b"a.PNG", b"b.jpg"]
    with ft.DataLoader(dataset, batch_size=2) as loader:
        assert next(iter(loader)).shape == (2, 5)
    assert ft.FolderDataset(tmp_path, transform=len, decode=bytes, extensions=[".txt"])[0] == 9
    assert caplog.records == []


def test_files_next_to_class_folders_are_no_samples_and_are_counted(tmp_path, caplog):
    for name in ("cat/1.jpg", "stray.jpg", "other.png", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert len(ft.FolderDataset(tmp_path)) == 1
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{tmp_path}: 2 files next to the class folders are no samples")
    assert len(ft.FolderDataset(tmp_path, exclude=["/stray.jpg", "other.png"])) == 1
    assert len(caplog.records) == 1


def test_an_empty_class_folder_next_to_files_is_an_error(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "stray.jpg").write_bytes(b"x")
    with pytest.raises(IndexInvalid, match="no sample in 1 class folders"):
        ft.FolderDataset(tmp_path)
