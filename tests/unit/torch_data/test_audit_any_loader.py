# SPDX-License-Identifier: Apache-2.0
"""``ft.audit`` of any loader in one process: unchanged batches, the source of ids, and the table."""

from __future__ import annotations

import json
import typing
from typing import runtime_checkable

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import foresee
import foresee.torch as ft
from foresee.errors import ConfigError

N = 23


@pytest.fixture
def numbers():
    return TensorDataset(torch.arange(N), torch.arange(N).float() * 0.5)


def counts(report):
    return tuple(report[name] for name in ("lost", "doubled", "padding", "dropped", "same_on_all_ranks"))


def test_batches_generators_attributes_and_states_pass_through(numbers, capsys):
    def run(wrap):
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(5)
        loader = wrap(DataLoader(numbers, 4, shuffle=True, generator=generator))
        seen = [[batch[0].tolist() for batch in loader] for _ in range(2)]
        return (
            seen,
            generator.get_state().tolist(),
            torch.get_rng_state().tolist(),
            len(loader),
            loader.batch_size,
        )

    assert run(ft.audit) == run(lambda loader: loader)
    assert "audit of epoch 1: 23 samples on 1 rank, 6 batches each, ids by sampler" in capsys.readouterr().err
    loader = DataLoader(numbers, 4, sampler=DistributedSampler(numbers, 2, 0))
    audited = ft.audit(loader)
    sampler, batch_sampler = loader.sampler, loader.batch_sampler
    list(audited)
    assert (audited.sampler, audited.batch_sampler) == (sampler, batch_sampler)
    assert loader.batch_sampler is batch_sampler
    audited.sampler.set_epoch(4)
    assert sampler.epoch == 4


@runtime_checkable
class HasState(typing.Protocol):
    """The protocol of torch.distributed.checkpoint."""

    def state_dict(self): ...
    def load_state_dict(self, state): ...


class Stateful:
    def __init__(self, batches):
        self.batches, self.at = batches, 0

    def __iter__(self):
        return iter(self.batches)

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize(
    "wrap", [ft.measure, lambda loader: ft.audit(loader, key=list)], ids=["measure", "audit"]
)
def test_a_wrapped_loader_passes_runtime_protocol_checks_for_its_state(wrap):
    wrapped = wrap(Stateful([[1]]))
    assert isinstance(wrapped, HasState)
    assert "state_dict" in vars(wrapped)
    wrapped.load_state_dict({"at": 3})
    assert wrapped.state_dict() == {"at": 3}
    assert not isinstance(wrap([[1]]), HasState)


def test_a_right_epoch_is_ok_and_its_report_is_json(numbers):
    audited = ft.audit(DataLoader(numbers, 4, shuffle=True))
    assert (audited.last, audited.report()) == (None, "no epoch was audited on this rank")
    for epoch in range(2):
        list(audited)
        report = json.loads(json.dumps(audited.last))
        assert (report["epoch"], report["ok"], report["samples"], report["expected"]) == (epoch, True, N, N)
        assert counts(report) == (0, 0, 0, 0, 0)
        assert (report["faults"], report["batches"], report["ranks"]) == ([], [6], 1)
    assert report["same_order"] is False


@pytest.mark.parametrize(
    ("arguments", "expected", "note"),
    [
        ({"batch_size": 4, "drop_last": True}, (0, 0, 0, 3, 0), "dropped: 3 samples at the end"),
        ({"batch_size": None}, (0, 0, 0, 0, 0), None),
        ({"batch_sampler": BatchSampler(RandomSampler(range(N)), 5, drop_last=False)}, (0, 0, 0, 0, 0), None),
        ({"batch_size": 4, "sampler": list(range(20))}, (3, 0, 0, 0, 0), None),
        ({"batch_size": 4, "sampler": [*range(N), 1, 2]}, (0, 2, 0, 0, 0), None),
        ({"batch_size": 4, "sampler": SubsetRandomSampler([3, 4, 9])}, (0, 0, 0, 0, 0), None),
        ({"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * N, 5)}, None, "draws with replacement"),
    ],
)
def test_indices_of_the_sampler_are_compared_with_the_data_set(numbers, arguments, expected, note):
    audited = ft.audit(DataLoader(numbers, **arguments))
    list(audited)
    if expected is not None:
        assert counts(audited.last) == expected
        assert audited.last["ok"] is (expected[:2] == (0, 0))
    assert any(note in each for each in audited.last["notes"]) if note else not audited.last["notes"]


def test_lost_and_doubled_samples_are_named(numbers):
    audited = ft.audit(DataLoader(numbers, 4, sampler=[*range(20), 7, 7]))
    list(audited)
    assert audited.last["examples"] == {"lost": [20, 21, 22], "doubled": [7], "same_on_all_ranks": []}
    assert audited.last["faults"] == [
        "2 samples were doubled: the shares of ranks or batches overlap; check the sampler",
        "3 of 23 samples were lost: no rank returned them",
    ]
    assert "lost                             3   such as 20, 21, 22" in audited.report()


def test_a_missing_set_epoch_is_found_and_a_sequential_order_is_no_fault(numbers):
    def second(shuffle):
        sampler = DistributedSampler(numbers, 1, 0, shuffle=shuffle)
        audited = ft.audit(DataLoader(numbers, 4, sampler=sampler))
        list(audited)
        list(audited)
        return audited.last

    assert second(shuffle=True)["faults"] == [
        "the order is that of the epoch before: call sampler.set_epoch(epoch) before each epoch"
    ]
    assert (second(shuffle=False)["same_order"], second(shuffle=False)["ok"]) == (True, True)


def test_subsets_are_counted_by_the_indices_of_their_data_set(numbers):
    outer = Subset(Subset(numbers, range(10, 20)), [1, 3, 5])
    audited = ft.audit(DataLoader(outer, 2, shuffle=True))
    list(audited)
    assert (audited.last["expected"], audited.last["ok"]) == (3, True)
    audited = ft.audit(DataLoader(outer, 2, sampler=[0, 1, 1]))
    list(audited)
    assert audited.last["examples"] == {"lost": [15], "doubled": [13], "same_on_all_ranks": []}


def test_an_epoch_that_was_left_early_is_partial_and_counts_received_batches_only(numbers):
    audited = ft.audit(DataLoader(numbers, 4, shuffle=True))
    for at, _ in enumerate(audited):
        if at == 1:
            break
    report = audited.last
    assert (report["whole"], report["samples"], report["lost"], report["ok"]) == (False, 8, None, None)
    assert "audit of epoch 0, partial: 8 samples" in audited.report()
    iter(audited)
    assert audited.last is report, "an iterator without a batch is no epoch"
    list(audited)
    assert (audited.last["epoch"], audited.last["ok"], audited.last["same_order"]) == (1, True, None)


def test_two_iterators_at_once_get_their_own_batches(numbers):
    audited = ft.audit(DataLoader(numbers, 4, shuffle=True))
    outer = iter(audited)
    next(outer)
    seen = [batch[0].tolist() for batch in audited]
    assert (audited.last["epoch"], audited.last["ok"], sum(map(len, seen))) == (0, True, N)
    list(outer)
    assert (audited.last["epoch"], audited.last["ok"]) == (1, True)


class Resuming(DataLoader):
    """A stock loader with a state, as torchdata has it."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.skipped = 0

    def __iter__(self):
        skipped, self.skipped = self.skipped, 0
        # Its sampler yields only the rest.
        batches = list(self.batch_sampler)[skipped:]
        yield from DataLoader(self.dataset, batch_sampler=batches) if skipped else super().__iter__()

    def load_state_dict(self, state):
        self.skipped = state


def test_an_epoch_resumed_from_a_state_has_no_lost_samples(numbers, folder):
    resuming = Resuming(numbers, 4)
    audited = ft.audit(resuming)
    resuming.load_state_dict(2)
    list(audited)
    assert (audited.last["whole"], audited.last["lost"], audited.last["faults"]) == (False, None, [])
    assert "partial: the epoch was resumed from a saved state" in audited.report()
    list(audited)
    assert audited.last["ok"] is True
    loader = foresee.Loader(folder, batch_size=4, shuffle=True, seed=3)
    batches = iter(loader)
    next(batches)
    resumed = foresee.Loader(folder, batch_size=4, shuffle=True, seed=3)
    resumed.load_state_dict(loader.state_dict())
    audited = ft.audit(resumed)
    list(audited)
    assert (audited.last["samples"], audited.last["lost"], audited.last["faults"]) == (N - 4, None, [])
    list(audited)
    assert (audited.last["ok"], audited.last["epoch"]) == (True, 1)


class Streamed(IterableDataset):
    def __init__(self, copies=1, noise=False):
        self.copies, self.noise = copies, noise

    def __iter__(self):
        for _ in range(self.copies):
            for i in range(N):
                yield {
                    "x": torch.full((3,), float(i)) + (torch.rand(3) if self.noise else 0),
                    "name": f"n{i}",
                }


def test_samples_of_a_stream_are_identified_by_fields_or_by_a_key():
    with pytest.raises(ConfigError, match=r"samples of a DataLoader are not known.*key=.*fields="):
        ft.audit(DataLoader(Streamed(), 4))
    for arguments in (
        {"fields": ["x", "name"]},
        {"key": lambda batch: batch["name"]},
        {"key": lambda b: b["x"]},
    ):
        right, doubled = (ft.audit(DataLoader(Streamed(copies), 4), **arguments) for copies in (1, 2))
        list(doubled)
        assert (doubled.last["doubled"], doubled.last["ok"], doubled.last["examples"]) == (N, False, {})
        for epoch in range(2):
            list(right)
            assert (right.last["doubled"], right.last["faults"], right.last["lost"]) == (0, [], None)
            assert any("known after a second epoch" in note for note in right.last["notes"]) is (epoch == 0)


def test_random_augmentation_is_reported_as_not_auditable():
    audited = ft.audit(DataLoader(Streamed(noise=True), 4), fields=["x"])
    list(audited)
    assert audited.last["ok"] is None
    list(audited)
    assert (audited.last["auditable"], audited.last["ok"], audited.last["doubled"]) == (False, None, None)
    assert "not auditable: fewer than half of the hashes" in audited.report()
    assert "pass key=" in audited.report()


def test_fields_of_a_map_style_data_set_are_compared_with_its_length(numbers):
    audited = ft.audit(DataLoader(numbers, 4, sampler=[*range(20), 1]), fields=[0, 1])
    list(audited)
    assert counts(audited.last) == (3, 1, 0, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": 3}, "key=3; a function"),
        ({"key": list, "fields": [0]}, "key= with fields="),
        ({"fields": "x"}, "fields='x'; names or positions"),
        ({"fields": []}, "names or positions"),
        ({"timeout": 0}, "timeout=0; seconds above 0"),
    ],
)
def test_wrong_arguments_are_named_with_their_remedy(numbers, arguments, message):
    with pytest.raises(ConfigError, match=message):
        ft.audit(DataLoader(numbers, 4), **arguments)


def test_missing_fields_and_ids_that_are_no_column_are_named(numbers):
    with pytest.raises(ConfigError, match=r"fields=\['y'\]: a batch is a list"):
        list(ft.audit(DataLoader(numbers, 4), fields=["y"]))
    with pytest.raises(ConfigError, match=r"a batch is a dict with 'x', 'name'"):
        list(ft.audit(DataLoader(Streamed(), 4), fields=["y"]))
    with pytest.raises(ConfigError, match="ids of a batch are a int"):
        list(ft.audit(DataLoader(numbers, 4), key=lambda batch: 3))


def test_a_sampler_of_strings_is_not_auditable_without_a_key():
    loader = DataLoader({"a": 1, "b": 2}, 1, sampler=["a", "b"])
    audited = ft.audit(loader)
    list(audited)
    assert (audited.last["auditable"], audited.last["ok"]) == (False, None)
    assert "pass key=" in audited.last["notes"][0]


class Framework:
    """A loader that contains the stock one and opens its iterator at the first batch."""

    def __init__(self, loader):
        self.base_dataloader = loader

    def __iter__(self):
        yield from self.base_dataloader


def test_the_sampler_of_a_loader_inside_a_frameworks_loader_is_found(numbers):
    audited = ft.audit(Framework(DataLoader(numbers, 4, sampler=list(range(21)))))
    for _ in range(2):
        list(audited)
        assert counts(audited.last) == (2, 0, 0, 0, 0)


@pytest.mark.parametrize("face", ["numpy", "torch", "drawn"])
def test_foresee_loaders_are_audited_by_their_order_and_their_own_proof(folder, face):
    if face == "numpy":
        loader = foresee.Loader(folder, batch_size=4, shuffle=True, seed=3)
    else:
        seed = {"seed": 3} if face == "torch" else {}
        loader = ft.DataLoader(ft.FolderDataset(folder), 4, shuffle=True, drop_last=True, **seed)
    audited = ft.audit(loader)
    for _ in range(2):
        list(audited)
        assert (audited.last["ok"], audited.last["source"]) == (True, "Foresee's order")
        assert audited.last["dropped"] == (0 if face == "numpy" else 3)
    assert audited.last["same_order"] is False
    assert audited.state_dict() == loader.state_dict()
    if face != "drawn":
        loader.set_epoch(1)
        list(audited)
        assert "set_epoch" in audited.last["faults"][0]
