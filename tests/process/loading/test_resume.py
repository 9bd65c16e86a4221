# SPDX-License-Identifier: Apache-2.0
"""A resumed run equals an uninterrupted one byte for byte, also after kill -9 and at another world size."""

from __future__ import annotations

import json
import pathlib
import random
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.data import digest, make_folder
from support.processes import child

import foresee
import foresee.torch as ft
from foresee.errors import Closed, StateMismatch

EPOCHS = 3


def noisy(data: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """A random transform that threads support."""
    return data[:16].to(torch.float32) + torch.rand(16, generator=generator)


def numpy_loader(folder: pathlib.Path, **arguments: Any) -> Any:
    """A loader of bytes."""
    return foresee.Loader(folder, **{"batch_size": 5, "shuffle": True, "seed": 7, **arguments})


def torch_loader(folder: pathlib.Path, **arguments: Any) -> Any:
    """A loader of randomly transformed tensors."""
    dataset = ft.FolderDataset(folder, transform=noisy, decode=None)
    return ft.DataLoader(dataset, **{"batch_size": 5, "shuffle": True, "seed": 7, **arguments})


def marks(batch: Any) -> list[str]:
    """Return a digest per sample, of bytes and label or of the transformed sample."""
    if isinstance(batch, foresee.Batch):
        return [digest([int(batch.ids[i]), batch.sample(i), int(batch.labels[i])]) for i in range(len(batch))]
    images, labels = batch
    return [digest([image, label]) for image, label in zip(images, labels, strict=True)]


Face = Callable[..., Any]
FACES = pytest.mark.parametrize("kind", [numpy_loader, torch_loader], ids=["numpy", "torch"])


def whole_run(kind: Face, folder: pathlib.Path, **arguments: Any) -> list[list[list[str]]]:
    """Return the batches of each epoch of an uninterrupted run."""
    with kind(folder, **arguments) as loader:
        return [[marks(batch) for batch in loader] for _ in range(EPOCHS)]


def saved(loader: Any) -> dict[str, Any]:
    """Return the state after a round trip through JSON."""
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


# ---- single cases


@FACES
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_run_resumed_at_any_batch_has_the_same_rest(
    kind: Face, folder: pathlib.Path, drop_last: bool
) -> None:
    expected = whole_run(kind, folder, drop_last=drop_last)
    for cut in (0, 1, 7, len(expected[0]) - 1, len(expected[0])):
        with kind(folder, drop_last=drop_last) as first:
            for step, batch in enumerate(first):
                marks(batch)
                if step == 1:
                    break
            iterator = iter(first)
            for _ in range(cut):
                next(iterator)
            # The engine is far ahead; only returned batches count.
            state = saved(first)
        assert state["epoch"] == 1
        assert state["finished"] == (cut == len(expected[0]))
        with kind(folder, drop_last=drop_last) as second:
            second.load_state_dict(state)
            rest = [[marks(batch) for batch in second] for _ in range(2 if cut < len(expected[1]) else 1)]
        if cut < len(expected[1]):
            assert rest == [expected[1][cut:], expected[2]], cut
        else:
            assert rest == [expected[2]]


@FACES
def test_a_state_before_the_first_batch_is_that_of_the_start_and_a_loaded_one_is_unchanged(
    kind: Face, folder: pathlib.Path
) -> None:
    with kind(folder) as loader:
        state = saved(loader)
        assert (state["epoch"], state["position"], state["finished"]) == (0, 0, False)
        iter(loader)
        assert saved(loader) == state
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        state = saved(loader)
    for _ in range(3):
        with kind(folder) as loader:
            loader.load_state_dict(state)
            again = json.dumps(loader.state_dict())
            assert json.loads(again) == state
            iterator = iter(loader)
            assert json.dumps(loader.state_dict()) == again
            state = json.loads(again)


@FACES
def test_at_an_epochs_end_no_epoch_is_lost_or_repeated(kind: Face, folder: pathlib.Path) -> None:
    expected = whole_run(kind, folder)
    with kind(folder) as loader:
        for _ in loader:
            pass
        state = saved(loader)
    assert state["finished"]
    for chosen, got in ((None, expected[1]), (0, []), (1, expected[1]), (2, expected[2])):
        with kind(folder) as loader:
            loader.load_state_dict(state)
            if chosen is not None:
                loader.set_epoch(chosen)
            assert [marks(batch) for batch in loader] == got, chosen
            following = (0 if chosen is None else chosen) + 1
            if chosen == 0:
                assert [marks(batch) for batch in loader] == expected[following]


@FACES
def test_set_epoch_after_load_keeps_the_position_of_that_epoch_only(kind: Face, folder: pathlib.Path) -> None:
    expected = whole_run(kind, folder)
    with kind(folder) as loader:
        loader.set_epoch(1)
        iterator = iter(loader)
        for _ in range(6):
            next(iterator)
        state = saved(loader)
    for chosen, got in ((1, expected[1][6:]), (2, expected[2]), (0, expected[0])):
        with kind(folder) as loader:
            loader.load_state_dict(state)
            loader.set_epoch(chosen)
            assert [marks(batch) for batch in loader] == got, chosen


@FACES
def test_loading_a_state_ends_older_iterators(kind: Face, folder: pathlib.Path) -> None:
    expected = whole_run(kind, folder)
    with kind(folder) as loader:
        iterator = iter(loader)
        next(iterator)
        state = saved(loader)
        next(iterator)
        loader.load_state_dict(state)
        with pytest.raises(Closed, match="replaced"):
            next(iterator)
        assert [marks(batch) for batch in loader] == expected[0][1:]


@FACES
def test_a_wrong_state_is_refused_with_both_values_and_the_loader_stays_usable(
    kind: Face, folder: pathlib.Path, tmp_path: pathlib.Path, sizes: list[int]
) -> None:
    with kind(folder) as loader:
        batches = iter(loader)
        next(batches)
        state = saved(loader)
    grown = make_folder(tmp_path / "grown", sizes)
    (grown / "cat" / "zzz.jpg").write_bytes(b"one more" * 4)
    for changes, shown in (
        ({"seed": 8}, ("7", "8")),
        ({"shuffle": False, "seed": None}, ("True", "False")),
        ({"order": "keyed"}, ("torch.distributed", "keyed-1")),
    ):
        with kind(folder, **changes) as other:
            with pytest.raises(StateMismatch) as caught:
                other.load_state_dict(state)
            for value in shown:
                assert value in str(caught.value)
            assert sum(len(marks(batch)) for batch in other) == len(sizes)
    with kind(grown) as other:
        with pytest.raises(StateMismatch, match="fingerprint"):
            other.load_state_dict(state)
        other.load_state_dict(state, strict=False)
        assert sum(len(marks(batch)) for batch in other) == len(sizes) + 1 - 5
    with kind(folder) as other:
        for damage in (
            {"foresee": 2},
            {"epoch": -1},
            {"position": 10**9},
            {"position": "5"},
            {"order": None},
        ):
            with pytest.raises(StateMismatch):
                other.load_state_dict({**state, **damage})


@pytest.mark.parametrize("generator", [True, False], ids=["generator", "global"])
def test_an_order_drawn_by_torch_resumes_from_its_random_numbers(
    folder: pathlib.Path, generator: bool
) -> None:
    dataset = ft.FolderDataset(folder, decode=None)

    def make() -> ft.DataLoader:
        drawn = torch.Generator().manual_seed(11) if generator else None
        return ft.DataLoader(dataset, batch_size=5, shuffle=True, generator=drawn)

    torch.manual_seed(5)
    with make() as loader:
        expected = [[marks(batch) for batch in loader] for _ in range(2)]
    for cut in (0, 3, len(expected[0])):
        torch.manual_seed(5)
        with make() as loader:
            iterator = iter(loader)
            for _ in range(cut):
                next(iterator)
            state = saved(loader)
            random_state = torch.get_rng_state()
        torch.manual_seed(999)
        with make() as loader:
            loader.load_state_dict(state)
            torch.set_rng_state(random_state)
            if cut < len(expected[0]):
                assert [marks(batch) for batch in loader] == expected[0][cut:], cut
            if generator:
                assert [marks(batch) for batch in loader] == expected[1], cut


@FACES
@pytest.mark.parametrize(
    ("before", "after"), [((2, 5), (1, 3)), ((1, 4), (3, 5)), ((3, 2), (2, 6)), ((2, 3), (4, 3))]
)
def test_resuming_at_another_world_and_batch_size_reads_the_rest_of_the_epoch(
    kind: Face, folder: pathlib.Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    (world, batch_size), (new_world, new_batch_size) = before, after
    returned: Counter[str] = Counter()
    states = []
    for rank in range(world):
        with kind(folder, rank=rank, world_size=world, batch_size=batch_size) as loader:
            iterator = iter(loader)
            for _ in range(4):
                returned.update(marks(next(iterator)))
            states.append(saved(loader))
    # Any rank's state is every rank's.
    assert all(state == states[0] for state in states)
    for rank in range(new_world):
        with kind(folder, rank=rank, world_size=new_world, batch_size=new_batch_size) as loader:
            loader.load_state_dict(states[-1])
            for batch in loader:
                returned.update(marks(batch))
            following = [marks(batch) for batch in loader]
        with kind(folder, rank=rank, world_size=new_world, batch_size=new_batch_size) as loader:
            loader.set_epoch(1)
            assert following == [marks(batch) for batch in loader]
    with kind(folder) as loader:
        whole = Counter(mark for batch in loader for mark in marks(batch))
    assert whole <= returned, "a sample was lost"
    # Ranks are padded to equal length from the epoch's head, as torch does it; else nothing is repeated.
    assert returned.total() - whole.total() < new_world


# ---- kill -9

TRAINING = """
    import json, os, sys
    sys.path.insert(0, os.environ["TESTS"])
    from test_resume import EPOCHS, marks, numpy_loader, torch_loader
    from support.processes import print_json
    from support.waiting import pause
    kind, folder, place, rank, world, workers = sys.argv[1:]
    arguments = {"num_workers": int(workers), "persistent_workers": True} if workers != "0" else {}
    with {"numpy": numpy_loader, "torch": torch_loader}[kind](
        folder, rank=int(rank), world_size=int(world), **arguments
    ) as loader:
        if os.path.exists(place):
            with open(place) as file:
                loader.load_state_dict(json.load(file))
        state = loader.state_dict()
        while not (state["epoch"] == EPOCHS - 1 and state["finished"]):
            for batch in loader:
                pause(0.01)
                state = loader.state_dict()
                print_json(marks=marks(batch))
                with open(place + ".new", "w") as file:
                    json.dump(state, file)
                os.replace(place + ".new", place)
"""


@pytest.mark.parametrize(("kind", "workers", "kills"), [("numpy", 0, 4), ("torch", 0, 2), ("torch", 1, 2)])
def test_a_run_killed_at_random_points_and_resumed_is_the_same(
    folder: pathlib.Path, tmp_path: pathlib.Path, kind: str, workers: int, kills: int
) -> None:
    make = {"numpy": numpy_loader, "torch": torch_loader}[kind]
    arguments: dict[str, Any] = {"num_workers": workers, "persistent_workers": True} if workers else {}
    expected = [batch for epoch in whole_run(make, folder, **arguments) for batch in epoch]
    place = tmp_path / "state.json"
    rng = random.Random(kind)
    env = {"TESTS": str(pathlib.Path(__file__).parent)}
    got: list[list[str]] = []
    killed = 0
    while True:
        arguments_of_child = [kind, str(folder), str(place), "0", "1", str(workers)]
        with child(TRAINING, *arguments_of_child, env=env, warm=True) as program:
            steps = rng.randrange(1, len(expected) // 4) if killed < kills else len(expected) + 1
            assert program.process.stdout is not None
            for _ in range(steps):
                line = program.process.stdout.readline()
                if not line:
                    break
                got.append(json.loads(line)["marks"])
            else:
                program.send(signal.SIGKILL)
            rest = program.process.stdout.read()
            got += [json.loads(line)["marks"] for line in rest.splitlines() if line.endswith("}")]
            status, _, errors = program.end()
            if status == 0:
                break
            assert status == -signal.SIGKILL, errors
        killed += 1
        # A printed but unsaved step is repeated: at most the one in progress.
        saved_steps = 0
        if place.exists():
            state = json.loads(place.read_text())
            saved_steps = state["epoch"] * len(expected) // EPOCHS + -(-state["position"] // 5)
        assert saved_steps in (len(got), len(got) - 1)
        del got[saved_steps:]
    assert killed == kills
    assert got == expected
