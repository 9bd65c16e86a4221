# SPDX-License-Identifier: Apache-2.0
"""``TokenDataset``: windows and their targets, ends of files, dtypes, and errors."""

from __future__ import annotations

import pathlib
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.equal_batches import assert_same
from support.properties import properties
from torch.utils.data import DataLoader

import foresee
import foresee.torch as ft
from foresee.cli import main
from foresee.errors import ConfigError, IndexInvalid


def windows(arrays, window, stride, offset, drop_tail):
    """Return the samples as a plain loop makes them."""
    samples = []
    for tokens in arrays:
        starts = list(range(0, len(tokens) - window - offset + 1, stride))
        if starts and not drop_tail and starts[-1] + window + offset < len(tokens):
            starts.append(len(tokens) - window - offset)
        samples += [(tokens[s : s + window], tokens[s + offset : s + offset + window]) for s in starts]
    return samples


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that each case fills again."""
    return tmp_path_factory.mktemp("tokens")


@properties(soak=300, ordinary=40)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    window=st.integers(1, 9),
    stride=st.one_of(st.none(), st.integers(1, 12)),
    offset=st.integers(0, 3),
    drop_tail=st.booleans(),
    dtype=st.sampled_from(["uint8", "uint16", "int32", "int64"]),
    suffix=st.sampled_from([".npy", ".bin"]),
    cast=st.sampled_from([torch.int64, torch.int32, None]),
)
def test_windows_are_those_of_a_plain_loop(
    folder, lengths, window, stride, offset, drop_tail, dtype, suffix, cast
):
    arrays, paths = [], []
    for number, length in enumerate(lengths):
        tokens = (np.arange(length) * 7 + number * 50).astype(dtype)
        path = folder / f"{9 - number}{suffix}"
        if suffix == ".npy":
            np.save(path, tokens)
        else:
            tokens.tofile(path)
        arrays.append(tokens)
        paths.append(path)
    reference = [
        tuple(torch.from_numpy(part.copy()).to(cast or torch.from_numpy(part).dtype) for part in sample)
        for sample in windows(arrays, window, stride or window, offset, drop_tail)
    ]

    def make():
        given_type = dtype if suffix == ".bin" else None
        return ft.TokenDataset(
            paths, window, stride, dtype=given_type, offset=offset, drop_tail=drop_tail, cast=cast
        )

    if not reference:
        with pytest.raises(IndexInvalid, match="use a smaller window"):
            make()
        return
    dataset = make()
    assert len(dataset) == len(reference)
    assert_same([dataset[i] for i in range(len(dataset))], reference)
    with ft.DataLoader(dataset, batch_size=4) as loader:
        assert_same(list(loader), list(DataLoader(reference, batch_size=4)))


@pytest.fixture
def tokens(tmp_path):
    """Two files of 100 and 50 tokens."""
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "b.bin")
    np.save(tmp_path / "a.npy", np.arange(1000, 1050, dtype=np.uint16))
    (tmp_path / "meta.json").write_text("{}")
    return tmp_path


def test_files_of_a_folder_are_ordered_by_name_and_other_files_are_ignored(tokens):
    dataset = ft.TokenDataset(tokens, 10, dtype="uint16")
    assert [int(dataset[i][0][0]) for i in range(len(dataset))] == [
        *range(1000, 1031, 10),
        *range(0, 81, 10),
    ]
    listed = ft.TokenDataset([tokens / "b.bin", tokens / "a.npy"], 10, dtype="uint16")
    assert [int(listed[i][0][0]) for i in (0, 9)] == [0, 1000]


def test_the_dropped_tail_is_logged_once_with_tokens_and_files(tokens, caplog):
    dataset = ft.TokenDataset(tokens, 10, dtype="uint16")
    assert [record.getMessage() for record in caplog.records] == [
        f"{tokens}: 18 tokens at the ends of 2 files are in no window"
    ]
    caplog.clear()
    with ft.DataLoader(dataset, batch_size=2) as loader:
        assert len(list(loader)) == len(loader) == 7
    ft.TokenDataset(tokens, 10, dtype="uint16", drop_tail=False)
    assert caplog.records == []


def test_stored_types_are_views_of_the_batchs_memory_and_casts_are_copies(tokens):
    with ft.DataLoader(
        ft.TokenDataset(tokens / "b.bin", 8, dtype=np.uint16, cast=None), batch_size=4
    ) as loader:
        x, y = next(iter(loader))
        assert (x.dtype, x.shape) == (torch.uint16, (4, 8))
        assert x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    with ft.DataLoader(ft.TokenDataset(tokens / "b.bin", 8, dtype=torch.uint16), batch_size=4) as loader:
        x, y = next(iter(loader))
        assert (x.dtype, x.is_contiguous(), y.is_contiguous()) == (torch.int64, True, True)
        x.zero_()
        assert y[0].tolist() == list(range(1, 9))


def test_a_saved_index_is_used_for_the_windows_that_it_has(tokens, tmp_path):
    dataset = ft.TokenDataset(tokens / "b.bin", 8, 4, dtype="uint16")
    path = tmp_path / "windows.fidx"
    dataset.index.save(path)
    again = ft.TokenDataset(str(path), 8, 4)
    assert_same(again[3], dataset[3])
    with pytest.raises(ConfigError, match="stride 4 and drop_tail=True"):
        ft.TokenDataset(str(path), 8)
    assert_same(pickle.loads(pickle.dumps(again))[2], dataset[2])
    assert repr(again) == f"TokenDataset(23 windows of 8 tokens, stride 4, uint16 in {tokens}/)"


def test_a_run_over_overlapping_windows_resumes_within_an_epoch(tokens):
    dataset = ft.TokenDataset(tokens / "b.bin", 8, 3, dtype="uint16")

    def loader():
        return ft.DataLoader(dataset, batch_size=4, shuffle=True, seed=2)

    with loader() as whole:
        expected = [x[:, 0].tolist() for x, _ in whole]
        assert whole.audit()["ok"]
    with loader() as first:
        iterator = iter(first)
        returned = [next(iterator)[0][:, 0].tolist() for _ in range(2)]
        state = first.state_dict()
    with loader() as second:
        second.load_state_dict(state)
        assert returned + [x[:, 0].tolist() for x, _ in second] == expected
        assert second.audit()["ok"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"window": 0}, ConfigError, "window=0; a whole number of tokens, 1 or more"),
        ({"stride": True}, ConfigError, "stride=True"),
        ({"offset": -1}, ConfigError, "offset=-1; a whole number of tokens, 0 or more"),
        ({"cast": "int64"}, ConfigError, "cast='int64'; a torch.dtype"),
        ({"dtype": "tokens"}, ConfigError, "dtype='tokens'; NumPy has no such type"),
        ({"dtype": None}, ConfigError, "b.bin has no header that states its type; pass dtype="),
        ({"dtype": "complex32"}, ConfigError, "no such type"),
        ({"dtype": "int64", "uri": "odd.bin"}, IndexInvalid, "3 are left over after elements of 8"),
        (
            {"uri": "flat.npy"},
            IndexInvalid,
            r"flat.npy is an array of <f4 \[4, 2\]; windows need one axis of <u2",
        ),
        (
            {"window": 100},
            IndexInvalid,
            "a window has 101 elements, the longest file 100; use a smaller window",
        ),
        ({"dtype": ">u2"}, ConfigError, "torch has no dtype"),
    ],
)
def test_wrong_arguments_and_files_are_named(tokens, arguments, error, message):
    (tokens / "odd.bin").write_bytes(bytes(11))
    np.save(tokens / "flat.npy", np.zeros((4, 2), np.float32))
    given = {"uri": "b.bin", "window": 8, "dtype": "uint16", **arguments}
    with pytest.raises(error, match=message):
        ft.TokenDataset(tokens / given.pop("uri"), **given)


def test_windows_are_rows_for_numpy(tokens, tmp_path):
    index = ft.TokenDataset(tokens / "b.bin", 7, dtype="uint16").index
    index.save(tmp_path / "windows.fidx")
    with foresee.Loader(pathlib.Path(tmp_path / "windows.fidx"), batch_size=2) as loader:
        assert next(iter(loader)).rows().tolist() == [list(range(8)), list(range(7, 15))]


def test_the_index_command_names_the_function_for_windows(tokens, tmp_path, capsys):
    path = tmp_path / "windows.fidx"
    ft.TokenDataset(tokens / "b.bin", 7, dtype="uint16").index.save(path)
    assert main(["index", str(tokens), "-o", str(path), "--update"]) == 2
    assert "make the FileDataset or TokenDataset anew" in capsys.readouterr().err
