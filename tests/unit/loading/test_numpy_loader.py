# SPDX-License-Identifier: Apache-2.0
"""``foresee.Loader``: batches, orders, faults, and ends."""

from __future__ import annotations

import copy
import json
import math
import pathlib
import pickle
import re
import threading

import numpy as np
import pytest

import foresee
from foresee.errors import Closed, ConfigError, IndexInvalid, OriginMissing, SampleFault


def make(data, **changes):
    return foresee.Loader(data, **({"batch_size": 4, "rank": 0, "world_size": 1} | changes))


def test_a_batch_has_the_bytes_ids_labels_and_positions_of_its_samples(ragged):
    loader = make(ragged)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [4, 4, 3]
    for batch in batches:
        assert batch.data.dtype == np.uint8
        assert batch.offsets.dtype == batch.ids.dtype == batch.labels.dtype == np.int64
        for place, sample in enumerate(batch.ids.tolist()):
            assert bytes(batch.sample(place)) == bytes([sample]) * (sample + 1)
            assert batch.labels[place] == sample * 3 // 11
        assert (batch.positions == batch.ids).all()
    with pytest.raises(IndexError):
        batches[0].sample(4)


def test_an_iterator_continues_after_a_batch_that_could_not_be_read(ragged):
    loader = make(ragged)
    pathlib.Path(loader.index.sample_uri(5)).unlink()
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(SampleFault, match="sample 5"):
        next(iterator)
    assert loader.state_dict()["position"] == 4, "a resumed run repeats what was not handed out"
    assert next(iterator).ids.tolist() == [8, 9, 10]
    assert loader.state_dict()["position"] == 4
    with pytest.raises(StopIteration):
        next(iterator)


def test_samples_of_equal_size_are_one_array(folder, array):
    assert next(iter(make(folder))).rows().shape == (4, 8)
    rows = next(iter(make(array))).rows()
    assert rows.shape == (4, 2, 3)
    assert rows.dtype == np.float32
    assert (rows[3] == 3).all()


def test_rows_of_one_file_are_right_in_every_order(array):
    for seed in range(20):
        for batch in make(array, shuffle=True, seed=seed):
            assert batch.rows()[:, 0, 0].tolist() == batch.ids.tolist()


def test_samples_of_unequal_size_are_no_array(ragged):
    with pytest.raises(ValueError, match="1 to 4 bytes make no array"):
        next(iter(make(ragged))).rows()


def test_seeded_shuffle_is_the_order_of_distributed_sampler(folder):
    torch_data = pytest.importorskip("torch.utils.data")
    for world in (1, 2, 3):
        for rank in range(world):
            sampler = torch_data.DistributedSampler(range(23), num_replicas=world, rank=rank, seed=9)
            loader = make(folder, shuffle=True, seed=9, rank=rank, world_size=world)
            for epoch in range(3):
                sampler.set_epoch(epoch)
                assert [i for batch in loader for i in batch.ids.tolist()] == list(sampler)


def test_a_keyed_epoch_has_every_sample_once_over_all_ranks(folder):
    seen = []
    for rank in range(2):
        loader = make(folder, shuffle=True, seed=3, order="keyed", rank=rank, world_size=2)
        seen += [i for batch in loader for i in batch.ids.tolist()]
        assert loader.audit()["ok"]
    assert len(seen) == 24
    assert set(seen) == set(range(23))


def test_the_length_is_the_number_of_batches(folder):
    for drop_last in (False, True):
        loader = make(folder, drop_last=drop_last)
        assert len(loader) == len(list(loader)) == (5 if drop_last else 6)


def test_an_early_break_is_followed_by_the_next_epoch(folder):
    loader = make(folder, shuffle=True, seed=1)
    for batch in loader:
        if batch.step == 1:
            break
    assert next(iter(loader)).epoch == 1


@pytest.mark.parametrize(
    "open_iterator", [iter, lambda loader: next(iter(loader))], ids=["opened", "one batch"]
)
def test_an_iterator_with_no_batch_or_only_the_first_does_not_count(folder, open_iterator):
    loader = make(folder, shuffle=True, seed=1, epochs=2)
    expected = [[batch.ids.tolist() for batch in make(folder, shuffle=True, seed=1)]]
    for epoch in range(2):
        open_iterator(loader)
        state = loader.state_dict()
        assert (state["epoch"], state["position"]) == (epoch, 0)
        got = [(batch.epoch, batch.ids.tolist()) for batch in loader]
        assert [number for number, _ in got] == [epoch] * 6
        if epoch == 0:
            assert [ids for _, ids in got] == expected[0]
        assert loader.audit()["ok"]


def test_the_first_batch_of_a_loop_counts_while_its_iterator_lives(folder):
    loader = make(folder, shuffle=True, seed=1)
    batches = iter(loader)
    next(batches)
    assert loader.state_dict()["position"] == 4
    del batches
    assert loader.state_dict()["position"] == 0


def test_reading_the_first_batch_of_a_resumed_epoch_leaves_its_position(folder):
    first = make(folder, shuffle=True, seed=1)
    batches = iter(first)
    next(batches)
    next(batches)
    state = first.state_dict()
    rest = [batch.ids.tolist() for batch in batches]
    second = make(folder, shuffle=True, seed=1)
    second.load_state_dict(state)
    next(iter(second))
    second.set_epoch(0)
    assert second.state_dict() == state
    assert [batch.ids.tolist() for batch in second] == rest


def test_the_only_batch_of_an_epoch_counts(folder):
    loader = make(folder, batch_size=23, shuffle=True, seed=1)
    assert [next(iter(loader)).epoch for _ in range(3)] == [0, 1, 2]


def test_an_epoch_beyond_the_number_given_is_read_after_one_warning(folder, caplog):
    loader = make(folder, shuffle=True, seed=1, epochs=1)
    got = [[batch.ids.tolist() for batch in loader] for _ in range(3)]
    plain = make(folder, shuffle=True, seed=1)
    assert got == [[batch.ids.tolist() for batch in plain] for _ in range(3)]
    assert sum("epochs=1" in record.message for record in caplog.records) == 1


def test_an_index_is_used_without_another_listing(folder, tmp_path):
    path = tmp_path / "x.fidx"
    index = foresee.Index.build(str(folder), layout="folder")
    index.save(path)
    (folder / "a" / "zzz.jpg").write_bytes(b"12345678")
    assert len(make(path).index) == 23
    assert len(make(index).index) == 23
    assert len(make(folder).index) == 24


def test_an_opened_index_is_saved_anywhere_and_over_its_own_file(folder, tmp_path):
    path, other = tmp_path / "x.fidx", tmp_path / "y.fidx"
    foresee.Index.build(str(folder), layout="folder").save(path)
    opened = foresee.Index.open(path)
    opened.save(other)
    opened.save(path)
    assert path.read_bytes() == other.read_bytes()
    assert foresee.Index.open(path).fingerprint == opened.fingerprint
    assert sorted(tmp_path.glob("*.fidx*")) == [path, other]


def test_the_layout_is_guessed(folder, array, tmp_path):
    assert make(folder).index.layout == "folder"
    assert make(array).index.layout == "npy"
    flat = tmp_path / "flat"
    flat.mkdir()
    (flat / "one.bin").write_bytes(b"x")
    assert make(flat).index.layout == "flat"


def test_all_wrong_arguments_are_reported_at_once(folder):
    with pytest.raises(ConfigError) as caught:
        make(folder, batch_size=0, epochs=0, shuffle=True, on_error="ignore", timeout=-1)
    assert len(caught.value.faults) == 5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 2**64}, r"-2\*\*63 to 2\*\*64 - 1"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"drop_last": "no"}, "drop_last='no'; True or False"),
        ({"cache": {"ram": "1GB"}}, r"foresee.Cache\(ram="),
        ({"rank": "0", "world_size": "2"}, "rank='0'; a whole number"),
        ({"layout": "tree"}, "layout='tree'; use auto"),
        ({"layout": "bin"}, "row_bytes="),
        ({"row_bytes": "8"}, "row_bytes='8'"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named_with_the_expected_one(folder, change, named):
    with pytest.raises(ConfigError, match=named):
        make(folder, **({"shuffle": True, "seed": 1} | change))


def test_integers_of_numpy_are_integers(folder):
    plain = make(folder, shuffle=True, seed=3)
    other = make(folder, shuffle=True, seed=np.int64(3), batch_size=np.int32(4), epochs=np.int64(2))
    assert [batch.ids.tolist() for batch in other] == [batch.ids.tolist() for batch in plain]
    json.dumps(other.state_dict())


def test_the_home_folder_is_expanded(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    cache = foresee.Cache(ram=0, disk="~/cache", disk_size="300MB")
    with make(f"~/{folder.name}", cache=cache) as loader:
        assert len(list(loader)) == 6
    assert (tmp_path / "cache").is_dir()
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("path", [b"/data", 3, None])
def test_a_path_that_is_no_string_is_refused(path):
    with pytest.raises(ConfigError, match=r"a string or a pathlib\.Path expected"):
        make(path)


def test_a_uri_damaged_by_pathlib_is_refused_with_the_original_string():
    with pytest.raises(ConfigError, match="pass the string 's3://b/x'"):
        make(pathlib.Path("s3://b/x"))


def test_a_loader_is_neither_copied_nor_pickled(folder):
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="make one in each process"):
            copied(make(folder))


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 10**400, threading.TIMEOUT_MAX])
def test_a_timeout_beyond_any_clock_is_no_timeout(folder, timeout):
    assert sum(len(batch) for batch in make(folder, timeout=timeout)) == 23


@pytest.mark.parametrize("timeout", [-0.1, -math.inf, math.nan, True, "1", None])
def test_a_wrong_timeout_is_refused_with_its_value(folder, timeout):
    with pytest.raises(ConfigError, match=re.escape(f"timeout={timeout!r}")):
        make(folder, timeout=timeout)


@pytest.mark.parametrize("change", [{"order": "keyed"}, {"order": "random"}, {"layout": "tar"}, {"rank": 1}])
def test_wrong_arguments_are_refused(folder, change):
    with pytest.raises(ConfigError):
        make(folder, **change)


def test_missing_data_directories_and_indices_are_errors_with_the_path(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(IndexInvalid, match="empty"):
        make(empty)
    with pytest.raises(OriginMissing, match="nowhere"):
        make(tmp_path / "nowhere")
    broken = tmp_path / "broken.fidx"
    broken.write_bytes(b"not an index")
    with pytest.raises(IndexInvalid):
        make(broken)


def lose(folder, sample):
    path = folder / "abc"[sample * 3 // 23] / f"{sample:04}.jpg"
    path.unlink()
    return path


def test_a_missing_sample_raises_at_its_batch_with_all_facts(folder):
    loader = make(folder)
    path = lose(folder, 9)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    with pytest.raises(SampleFault) as caught:
        next(iterator)
    error = caught.value
    assert (error.sample, error.rank, error.kind, error.permanent) == (9, 0, "missing", True)
    assert str(path) in error.uri
    assert isinstance(error.__cause__, OriginMissing)
    assert loader.state_dict()["position"] == 8, "resume tries the batch again"


def test_replace_gives_the_same_substitute_on_every_run_and_keeps_the_number_of_batches(folder):
    loaders = [make(folder, on_error="replace") for _ in range(2)]
    lose(folder, 9)
    runs = [[batch.ids.tolist() for batch in loader] for loader in loaders]
    assert runs[0] == runs[1]
    assert [len(batch) for batch in runs[0]] == [4, 4, 4, 4, 4, 3]
    assert runs[0][2][1] != 9
    report = loaders[0].audit()
    assert report["ok"]
    assert report["replaced"][0]["sample"] == 9
    assert report["replaced"][0]["substitute"] == runs[0][2][1]
    assert loaders[0].stats()["on_error"] == {"replaced": 1, "skipped": 0}


def test_a_substitute_has_its_own_bytes_and_label(folder):
    loader = make(folder, on_error="replace")
    lose(folder, 9)
    batch = list(loader)[2]
    substitute = int(batch.ids[1])
    assert bytes(batch.sample(1)) == bytes([substitute]) * 8
    assert batch.labels[1] == substitute * 3 // 23


def test_skip_makes_a_batch_shorter_but_never_empty(folder):
    loader = make(folder, on_error="skip")
    for sample in (5, 8, 9, 10, 11):
        lose(folder, sample)
    lengths = [len(batch) for batch in loader]
    assert lengths == [4, 3, 1, 4, 4, 3]
    assert len(loader.audit()["skipped"]) == 4


def test_a_callable_chooses_the_substitute(folder):
    failed = []

    def choose(error):
        failed.append(error.sample)
        return 0

    loader = make(folder, on_error=choose)
    lose(folder, 9)
    assert list(loader)[2].ids.tolist() == [8, 0, 10, 11]
    assert failed == [9]


def test_a_callable_gets_the_fault_of_its_substitute(folder):
    seen = []

    def choose(error):
        seen.append((error.sample, error.kind))
        return {9: 12, 12: 14, 14: 0}[error.sample]

    loader = make(folder, on_error=choose)
    lose(folder, 9)
    lose(folder, 12).write_bytes(b"short")
    lose(folder, 14)
    assert list(loader)[2].ids.tolist() == [8, 0, 10, 11]
    assert seen[:3] == [(9, "missing"), (12, "changed"), (14, "missing")]


def test_foresee_off_gives_the_same_batches_without_the_engine(folder, array, monkeypatch):
    on = [
        [b.ids.tolist() for b in make(folder, shuffle=True, seed=2)],
        [b.rows().tolist() for b in make(array)],
    ]
    monkeypatch.setenv("FORESEE_OFF", "1")
    threads = set(threading.enumerate())
    off = [
        [b.ids.tolist() for b in make(folder, shuffle=True, seed=2)],
        [b.rows().tolist() for b in make(array)],
    ]
    assert on == off
    # Threads of the previous loader may end in the meantime.
    assert set(threading.enumerate()) <= threads


def test_foresee_off_has_the_same_faults(folder, monkeypatch):
    monkeypatch.setenv("FORESEE_OFF", "1")
    loader = make(folder, on_error="replace")
    lose(folder, 9)
    assert [len(batch) for batch in loader] == [4, 4, 4, 4, 4, 3]
    assert loader.audit()["replaced"][0]["sample"] == 9
    assert loader.stats()["off"] is True


def test_close_is_idempotent_and_ends_iterators(folder):
    with make(folder) as loader:
        iterator = iter(loader)
        next(iterator)
        loader.close()
        with pytest.raises(Closed):
            next(iterator)
    loader.close()
