# SPDX-License-Identifier: Apache-2.0
"""Batches of the torch loader: datasets, decoding, transforms on threads, faults, and ends."""

from __future__ import annotations

import math
import pickle
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import foresee
import foresee.torch as ft
from foresee.errors import ConfigError, IndexInvalid, SampleFault


def value(data):
    """Decoder of the test files: their first byte."""
    return torch.tensor(float(data[0]))


def test_equal_sizes_are_one_tensor_over_the_loaders_memory(folder):
    for data, labels in ft.DataLoader(ft.FolderDataset(folder), batch_size=4):
        assert data.dtype == torch.uint8
        assert labels.dtype == torch.int64
        assert data.shape == (len(labels), 8)
        data.add_(1)  # the memory is the batch's own


def test_unequal_sizes_are_a_list_of_tensors(ragged):
    data, labels = next(iter(ft.DataLoader(ft.FolderDataset(ragged), batch_size=4)))
    assert [len(tensor) for tensor in data] == [1, 2, 3, 4]
    assert labels.tolist() == [0, 0, 0, 0]


def test_a_collate_fn_gets_samples(ragged):
    loader = ft.DataLoader(ft.FolderDataset(ragged), batch_size=4, collate_fn=lambda samples: samples)
    first = next(iter(loader))
    assert [(data.tolist(), label) for data, label in first] == [([i] * (i + 1), 0) for i in range(4)]


def test_without_classes_a_sample_is_only_its_data(folder):
    index = foresee.Index.build(str(folder), layout="flat")
    dataset = ft.FolderDataset(folder, index=index)
    assert dataset[3].tolist() == [3] * 8
    assert next(iter(ft.DataLoader(dataset, batch_size=2))).tolist() == [[0] * 8, [1] * 8]


def test_rows_of_an_array_are_tensors(array, tmp_path):
    dataset = ft.ArrayDataset(array)
    assert (dataset.dtype, dataset.shape, len(dataset)) == (np.float32, (2, 3), 17)
    batch = next(iter(ft.DataLoader(dataset, batch_size=4)))
    assert batch.dtype == torch.float32
    assert batch.shape == (4, 2, 3)
    assert (batch[3] == 3).all()
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "rows.bin").write_bytes(np.arange(12, dtype=np.int16).tobytes())
    rows = ft.ArrayDataset(plain, dtype="int16", shape=(3,))
    assert next(iter(ft.DataLoader(rows, batch_size=4))).tolist() == np.arange(12).reshape(4, 3).tolist()
    doubled = ft.ArrayDataset(plain, dtype="int16", shape=(3,), transform=lambda row: row * 2)
    assert next(iter(ft.DataLoader(doubled, batch_size=2))).tolist() == [[0, 2, 4], [6, 8, 10]]


def test_a_single_array_is_a_data_set_and_its_neighbours_are_not(tmp_path, monkeypatch):
    rows = np.arange(60, dtype=np.int16).reshape(20, 3)
    for name in ("one.npy", "other.npy"):
        np.save(tmp_path / name, rows)
    rows.tofile(tmp_path / "one.bin")
    monkeypatch.chdir(tmp_path)
    for named in (tmp_path / "one.npy", "one.npy"):
        dataset = ft.ArrayDataset(named)
        with ft.DataLoader(dataset, batch_size=8) as loader:
            assert torch.equal(torch.cat(list(loader)), torch.from_numpy(rows))
    plain = ft.ArrayDataset(tmp_path / "one.bin", dtype="int16", shape=(3,))
    assert len(plain) == 20
    assert plain[4].tolist() == [12, 13, 14]
    with pytest.raises(ConfigError, match="is a file"):
        ft.FolderDataset(tmp_path / "one.bin")


def test_an_empty_class_folder_is_refused_as_by_image_folder(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "1.jpg").write_bytes(b"1")
    (tmp_path / "c" / "2.jpg").write_bytes(b"2")
    with pytest.raises(IndexInvalid, match="b"):
        ft.FolderDataset(tmp_path)


def test_a_wrong_mesh_is_refused_and_integers_of_numpy_are_accepted(folder):
    data = ft.FolderDataset(folder)
    with pytest.raises(ConfigError, match="mesh=3; a DeviceMesh"):
        ft.DataLoader(data, mesh=3)
    loader = ft.DataLoader(
        data, batch_size=8, num_workers=np.int64(0), rank=np.int64(0), world_size=np.int64(1)
    )
    assert sum(len(labels) for _, labels in loader) == len(data)
    assert foresee.Cache(ram=np.int64(5)).ram_bytes == 5


def test_array_arguments_are_checked(array, folder, tmp_path):
    with pytest.raises(ConfigError, match="both"):
        ft.ArrayDataset(array, dtype="int16")
    for shape in ((0,), (-7, -1), (1.5,), 1.5, "7", True):
        with pytest.raises(ConfigError, match="at least one"):
            ft.ArrayDataset(array, dtype="int16", shape=shape)
    with pytest.raises(ConfigError, match="no file has rows of"):
        ft.ArrayDataset(array, dtype="int16", shape=(2**40, 2**40))
    with pytest.raises(ConfigError, match="NumPy has no such type"):
        ft.ArrayDataset(array, dtype="nonsense", shape=3)
    big = tmp_path / "big"
    big.mkdir()
    np.save(big / "a.npy", np.ones((4, 2), ">f4"))
    with pytest.raises(ConfigError, match="big-endian numbers to little-endian"):
        ft.ArrayDataset(big)
    texts = tmp_path / "texts"
    texts.mkdir()
    np.save(texts / "texts.npy", np.array(["a", "b"]))
    with pytest.raises(ConfigError, match="no dtype"):
        ft.ArrayDataset(texts)
    index = foresee.Index.build(str(array), layout="npy")
    with pytest.raises(ConfigError, match="rows of"):
        ft.ArrayDataset(array, index=index, dtype="int16", shape=(3,))
    with pytest.raises(IndexInvalid, match="ArrayDataset"):
        ft.FolderDataset(array, index=index)


def test_rows_without_header_accept_any_spelling_of_dtype_and_shape(tmp_path):
    path = tmp_path / "rows.bin"
    path.write_bytes(bytes(range(14)))
    for dtype in ("uint8", np.uint8, torch.uint8):
        for shape in (7, (7,), [7], np.int64(7)):
            data = ft.ArrayDataset(path, dtype=dtype, shape=shape)
            assert (len(data), data.shape, data[1].tolist()) == (2, (7,), list(range(7, 14)))


def test_automatic_decoding_depends_on_transform_and_extensions(folder, pictures):
    assert ft.FolderDataset(pictures).decode is None
    assert ft.FolderDataset(pictures, transform=len).decode == "pil"
    assert ft.FolderDataset(folder, transform=len, extensions=[".jpg"]).decode == "pil"
    assert ft.FolderDataset(pictures, transform=len, decode=None).decode is None
    with pytest.raises(ConfigError, match="decode="):
        ft.FolderDataset(pictures, decode="jpeg")


def test_a_dataset_alone_feeds_the_stock_loader(folder):
    dataset = ft.FolderDataset(folder)
    assert [data.tolist() for data, _ in dataset.__getitems__([5, 2])] == [[5] * 8, [2] * 8]
    data, labels = next(iter(DataLoader(dataset, batch_size=4)))
    assert data[:, 0].tolist() == [0, 1, 2, 3]
    assert labels.tolist() == [0, 0, 0, 0]
    for wrong in (-1, 23):
        with pytest.raises(IndexError):
            dataset[wrong]
    with pytest.raises(TypeError):
        dataset[1.5]


def test_a_dataset_pickles_with_its_index(folder, tmp_path):
    path = tmp_path / "x.fidx"
    foresee.Index.build(str(folder), layout="folder").save(path)
    for dataset in (ft.FolderDataset(folder), ft.FolderDataset(folder, index=path)):
        again = pickle.loads(pickle.dumps(dataset))
        assert again[7][0].tolist() == [7] * 8
        assert len(again) == 23
        assert len(pickle.loads(pickle.dumps(again))) == 23  # from one process to the next


def noisy(number, generator):
    return number + torch.rand((), generator=generator)


def test_a_random_transform_with_a_generator_is_the_same_after_resume_and_at_another_world_size(folder):
    def make(**changes):
        dataset = ft.FolderDataset(folder, decode=value, transform=noisy)
        return ft.DataLoader(
            dataset, **({"batch_size": 4, "shuffle": True, "seed": 6, "rank": 0, "world_size": 1} | changes)
        )

    whole = [x for data, _ in make() for x in data.tolist()]
    first = make()
    iterator = iter(first)
    head = [x for _ in range(3) for x in next(iterator)[0].tolist()]
    second = make(batch_size=5)
    second.load_state_dict(first.state_dict())
    assert head + [x for data, _ in second for x in data.tolist()] == whole
    halves = [[x for data, _ in make(rank=r, world_size=2) for x in data.tolist()] for r in range(2)]
    interleaved = [halves[i % 2][i // 2] for i in range(23)]
    assert interleaved == whole
    assert [x for data, _ in first for x in data.tolist()] != whole, "another epoch, other numbers"


def test_a_raising_transform_names_the_sample_at_its_batch(folder):
    def fail(number):
        if number == 9:
            raise KeyError("nine")
        return number

    loader = ft.DataLoader(ft.FolderDataset(folder, decode=value, transform=fail), batch_size=4)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    with pytest.raises(SampleFault, match="KeyError: 'nine'") as caught:
        next(iterator)
    assert caught.value.sample == 9
    assert "0009.jpg" in caught.value.uri
    assert caught.value.kind == "transform"
    assert isinstance(caught.value.__cause__, KeyError)
    assert loader.state_dict()["position"] == 8
    assert ours(next(iter(loader))) == [0, 1, 2, 3], "the loader lives on"


def test_a_sample_whose_transform_raises_is_skipped(folder):
    transformed = []

    def fail(number):
        transformed.append(int(number))
        if number == 9:
            raise KeyError("nine")
        return number

    dataset = ft.FolderDataset(folder, decode=value, transform=fail)
    loader = ft.DataLoader(dataset, batch_size=4, on_error="skip")
    assert [ours(batch) for batch in loader][2] == [8, 10, 11]
    assert transformed == list(range(23)), "no other sample is made twice"
    assert loader.audit()["skipped"][0]["sample"] == 9


def ours(batch):
    return [int(x) for x in batch[0].tolist()]


def undecodable(data):
    if data[0] in (9, 10):
        raise ValueError("broken file")
    return torch.tensor(float(data[0]))


def test_an_undecodable_sample_is_handled_by_on_error(folder):
    dataset = ft.FolderDataset(folder, decode=undecodable)
    with pytest.raises(SampleFault, match="broken file"):
        list(ft.DataLoader(dataset, batch_size=4))
    skipped = list(ft.DataLoader(dataset, batch_size=4, on_error="skip"))
    assert [len(data) for data, _ in skipped] == [4, 4, 2, 4, 4, 3]
    runs = [
        [ours(batch) for batch in ft.DataLoader(dataset, batch_size=4, on_error="replace")] for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert [len(batch) for batch in runs[0]] == [4, 4, 4, 4, 4, 3]
    loader = ft.DataLoader(dataset, batch_size=1, on_error="skip")
    assert [len(data) for data, _ in loader] == [1] * 23
    assert len(loader.audit()["replaced"]) == 2


@pytest.mark.parametrize(
    "timeout", [math.inf, 1e300, 10**400, threading.TIMEOUT_MAX, threading.TIMEOUT_MAX / 2]
)
@pytest.mark.parametrize("decode", [None, value], ids=["whole", "threads"])
def test_a_timeout_beyond_any_clock_is_no_timeout(folder, decode, timeout):
    with ft.DataLoader(ft.FolderDataset(folder, decode=decode), batch_size=4, timeout=timeout) as loader:
        assert loader.timeout == timeout
        assert [len(labels) for _, labels in loader] == [4, 4, 4, 4, 4, 3]


def test_foresee_off_gives_the_same_batches_in_this_thread(folder, monkeypatch):
    def make():
        dataset = ft.FolderDataset(folder, decode=value, transform=noisy)
        return ft.DataLoader(dataset, batch_size=4, shuffle=True, seed=3)

    on = [data.tolist() for data, _ in make()]
    monkeypatch.setenv("FORESEE_OFF", "1")
    loader = make()
    threads = set(threading.enumerate())
    assert [data.tolist() for data, _ in loader] == on
    # Those of the loader before may end meanwhile.
    assert set(threading.enumerate()) <= threads


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"generator": 3, "shuffle": True}, "a torch.Generator"),
        ({"collate_fn": 3}, "collate_fn=3; a callable"),
        ({"worker_init_fn": 3}, "worker_init_fn=3; a callable"),
        ({"multiprocessing_context": "fork"}, "multiprocessing_context='fork' with num_workers=0"),
        (
            {"multiprocessing_context": "thread", "num_workers": 1},
            "multiprocessing_context='thread'; a context",
        ),
    ],
)
def test_an_argument_of_the_wrong_type_is_named(folder, arguments, named):
    with pytest.raises(ConfigError, match=named):
        ft.DataLoader(ft.FolderDataset(folder), **arguments)


def test_an_attribute_that_is_assigned_later_is_refused_as_by_torch(folder):
    loader = ft.DataLoader(ft.FolderDataset(folder), num_workers=1, multiprocessing_context="spawn")
    for name in ("batch_size", "sampler", "num_workers", "drop_last"):
        with pytest.raises(ConfigError, match=f"{name} of a loader is fixed"):
            setattr(loader, name, 2)
    loader.note = "one of the user's own"


def test_pinning_without_cuda_is_no_pinning(folder):
    loader = ft.DataLoader(ft.FolderDataset(folder), batch_size=4, pin_memory=True)
    data, _ = next(iter(loader))
    assert data.is_pinned() == torch.cuda.is_available()
