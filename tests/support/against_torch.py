# SPDX-License-Identifier: Apache-2.0
"""Scripts that run on torch's DataLoader and on Foresee's, and the comparison of their observations.

A ``Case`` is a dataset, arguments and a script. Its observations are a list: batches by value, errors by class and
text, and at the end the states of all generators. ``DIFFERENCES`` are the intended ones.
"""

from __future__ import annotations

import collections
import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
    random_split,
)

N = 23

#: Intended differences from torch, and their reasons. The documentation must list each.
DIFFERENCES = {
    "iterable dataset": "its order is not known in advance; the error names the alternatives",
    "no samples": "an empty data set is nearly always a wrong path or filter, so it is an error",
    "sampler without a length": "it may be endless, but an epoch must be known before it begins",
    "random numbers in workers": "each sample's depend on (seed, epoch, position), not on the worker that makes it",
    "second iterator": "a loader has one position, so an older iterator ends; a nested loop needs a separate loader",
    "sampler that fails midway": "its whole epoch is read at once, so the error is raised before the first batch",
    "text of a worker's error": "the dataset's own error is raised; the worker's traceback is its cause",
    "arguments that are refused": "all faults in one ConfigError, which is a ValueError, when the loader is made",
    "attributes that are refused": "one that would have no effect when assigned later is refused",
    "copies of a loader": "it owns threads and memory, and cannot be copied or pickled",
}


class Numbers(Dataset[Any]):
    """Squares, with a class."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([i, i * i]), i % 3


class AtOnce(Numbers):
    """Makes several samples in one call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(torch.tensor([i, -i]), i) for i in indices]


class Faulty(Numbers):
    """Two of its samples fail."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if i in (5, 17):
            raise LookupError(f"no row {i}")
        return super().__getitem__(i)


class Random(Numbers):
    """Draws from every global generator."""

    def __getitem__(self, i: int) -> Any:
        return i, torch.rand(()).item(), float(np.random.rand()), random.random()  # noqa: NPY002


class Ragged(Numbers):
    """Samples of different sizes."""

    def __getitem__(self, i: int) -> Any:
        return torch.arange(i)


Point = collections.namedtuple("Point", "x y")  # noqa: PYI024 - as users write it


class Mixed(Numbers):
    """Samples with every type that default_collate supports."""

    def __getitem__(self, i: int) -> Any:
        return {
            "tensor": torch.full((2, 3), i, dtype=torch.float16),
            "array": np.full(4, i, np.uint8),
            "number": np.float32(i),
            "text": f"row {i}",
            "point": Point(i, [i, -i]),
            "flag": i % 2 == 0,
            "empty": torch.zeros(0),
        }


class Seeded(Numbers):
    """Samples with the fields of torch's worker info."""

    started: dict[int, tuple[int, float]] = {}  # noqa: RUF012 - of a worker's process

    @staticmethod
    def init(number: int) -> None:
        """Draw from the generators that torch has seeded."""
        drawn = torch.rand(()).item() + float(np.random.rand()) + random.random()  # noqa: NPY002
        Seeded.started[number] = get_worker_info().seed, drawn

    @staticmethod
    def fail(number: int) -> None:
        """Fail in every worker."""
        raise LookupError("no licence")

    def __getitem__(self, i: int) -> Any:
        info = get_worker_info()
        return i, info.id, info.num_workers, isinstance(info.dataset, Seeded), Seeded.started[info.id]


class WithoutLength(Dataset[Any]):
    """A dataset whose keys are words."""

    def __getitem__(self, key: Any) -> Any:
        return f"<{key}>"


class Endless(IterableDataset[int]):
    """A dataset without an order."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(N))


class Unsized:
    """A sampler without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(N))


class Breaking:
    """A sampler that fails after five indices."""

    def __iter__(self) -> Iterator[int]:
        yield from range(5)
        raise LookupError("no more indices")

    def __len__(self) -> int:
        return N


def parts(batch: list[Any]) -> Any:
    """A collate_fn that is not torch's."""
    return tuple(zip(*batch, strict=True))


def failing(batch: list[Any]) -> Any:
    """A collate_fn that fails for a short batch."""
    if len(batch) < 4:
        raise ArithmeticError("a short batch")
    return default_collate(batch)


def epochs(loader: Any, see: Callable[[Any], None]) -> None:
    """Run two epochs, and continue after errors."""
    for _ in range(2):
        iterator = iter(loader)
        while True:
            try:
                see(next(iterator))
            except StopIteration:
                break
            except Exception as error:
                see(error)


def first(loader: Any, see: Callable[[Any], None]) -> None:
    """Read one batch."""
    see(next(iter(loader)))


def broken_off(loader: Any, see: Callable[[Any], None]) -> None:
    """Read three batches, a whole epoch, five batches and a whole epoch."""
    for steps in (3, None, 5, None):
        for batch in itertools.islice(loader, steps):
            see(batch)


def peeked(loader: Any, see: Callable[[Any], None]) -> None:
    """Open an unused iterator, then run a whole epoch."""
    iter(loader)
    for batch in loader:
        see(batch)


def nested(loader: Any, see: Callable[[Any], None]) -> None:
    """Run a loop within a loop over the same loader."""
    for batch in loader:
        see(batch)
        for inner in loader:
            see(inner)


def measured(loader: Any, see: Callable[[Any], None]) -> None:
    """Observe the length and the attributes."""
    see(len(loader))
    for name in (
        "batch_size",
        "num_workers",
        "drop_last",
        "pin_memory",
        "timeout",
        "prefetch_factor",
        "in_order",
    ):
        see(getattr(loader, name))


@dataclass(frozen=True)
class Case:
    """A dataset, arguments and a script for both loaders."""

    name: str
    dataset: Callable[[], Any] = Numbers
    arguments: dict[str, Any] | Callable[[Any], dict[str, Any]] = field(
        default_factory=lambda: {"batch_size": 4}
    )
    script: Callable[[Any, Callable[[Any], None]], None] = epochs
    differs: str | None = None
    """The intended difference, one of ``DIFFERENCES``."""


def seeded(seed: int = 7) -> torch.Generator:
    """Return a seeded generator."""
    return torch.Generator().manual_seed(seed)


def seen(build: Callable[..., Any], case: Case) -> list[Any]:
    """Run the script of ``case`` with the loader of ``build``; returns its observations and the states of the generators."""
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the generator that datasets use
    torch.manual_seed(1)
    log: list[Any] = []
    given: dict[str, Any] = {}
    loader = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            dataset = case.dataset()
            given = case.arguments(dataset) if callable(case.arguments) else dict(case.arguments)
            loader = build(dataset, **given)
            case.script(loader, lambda value: log.append(plain(value)))
        except Exception as error:
            log.append(plain(error))
        finally:
            if hasattr(loader, "close"):
                loader.close()
    for name in ("generator", "sampler", "batch_sampler"):
        generator = given.get(name)
        generator = getattr(generator, "generator", generator)
        if isinstance(generator, torch.Generator):
            log.append((name, generator.get_state().tolist()))
    log.append(("torch", torch.get_rng_state().tolist()))
    log.append(("numpy", np.random.get_state()[1].tolist(), np.random.get_state()[2]))  # noqa: NPY002
    log.append(("random", random.getstate()))
    return log


def plain(value: Any) -> Any:
    """Return a comparable value: tensors and arrays with type and shape, errors by class and text."""
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), tuple(value.shape), value.tolist()
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, value.tolist()
    if isinstance(value, BaseException):
        # Torch puts a worker's traceback into the text of its error.
        return (
            "error",
            type(value).__name__,
            str(value).strip().splitlines()[-1].split(": ", 1)[-1].strip("'"),
        )
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [plain(part) for part in value]
    return type(value).__name__, value


def _distributed(**arguments: Any) -> Callable[[Any], dict[str, Any]]:
    return lambda dataset: {
        "batch_size": 4,
        "sampler": DistributedSampler(dataset, num_replicas=3, rank=1, **arguments),
    }


ALONE = [
    Case("default", arguments={}),
    Case("batches"),
    Case("drop last", arguments={"batch_size": 4, "drop_last": True}),
    Case("no batches", arguments={"batch_size": None}),
    Case("no batches, shuffled", arguments={"batch_size": None, "shuffle": True}),
    Case("no batches, collated", arguments={"batch_size": None, "collate_fn": str}),
    Case("shuffled", arguments={"batch_size": 4, "shuffle": True}),
    Case("generator", arguments=lambda _: {"batch_size": 4, "shuffle": True, "generator": seeded()}),
    Case("generator alone", arguments=lambda _: {"batch_size": 4, "generator": seeded()}),
    Case("collate_fn", arguments={"batch_size": 4, "collate_fn": parts}),
    Case("failing collate_fn", arguments={"batch_size": 4, "collate_fn": failing}),
    Case("ragged samples", Ragged),
    Case("mixed samples", Mixed),
    Case("at once", AtOnce),
    Case("at once, no batches", AtOnce, {"batch_size": None}),
    Case("faulty", Faulty),
    Case("faulty, shuffled", Faulty, {"batch_size": 4, "shuffle": True}),
    Case("faulty, no batches", Faulty, {"batch_size": None}),
    Case("random", Random, {"batch_size": 4, "shuffle": True}),
    Case("list", lambda: list(range(100, 117))),
    Case("text", lambda: "abcdefg", {"batch_size": 2}),
    Case("array", lambda: np.arange(12.0).reshape(6, 2)),
    Case("tensors", lambda: TensorDataset(torch.arange(9), torch.arange(9) * 2)),
    Case("subset", lambda: Subset(Numbers(), [3, 1, 8, 9, 1])),
    Case("subset at once", lambda: Subset(AtOnce(), [3, 1, 8, 9, 1])),
    Case("concatenated", lambda: ConcatDataset([Numbers(), AtOnce()]), {"batch_size": 4, "shuffle": True}),
    Case("stacked", lambda: StackDataset(first=Numbers(), second=Numbers())),
    Case("split", lambda: random_split(Numbers(), [0.5, 0.5])[0]),
    Case("keys of a dict", lambda: {i: i * i for i in range(5)}, {"batch_size": 2}),
    Case("sampler", arguments={"batch_size": 4, "sampler": [3, 3, 0, 7, 22]}),
    Case("sampler, drop last", arguments={"batch_size": 2, "sampler": [3, 3, 0, 7, 22], "drop_last": True}),
    Case("sampler out of range", arguments={"batch_size": 2, "sampler": [3, 99, 0]}),
    Case("negative indices", lambda: list(range(9)), {"batch_size": 2, "sampler": [-1, 0, -9]}),
    Case("indices of numpy", arguments={"batch_size": 2, "sampler": np.array([4, 2, 1])}),
    Case("indices as tensors", arguments={"batch_size": 2, "sampler": torch.tensor([4, 2, 1])}),
    Case("words", WithoutLength, {"batch_size": 2, "sampler": ["a", "b", ("c", 1)]}),
    Case("words in batches", WithoutLength, {"batch_sampler": [["a"], ["b", "a"]]}),
    Case("sequential", arguments=lambda d: {"batch_size": 4, "sampler": SequentialSampler(d)}),
    Case("random sampler", arguments=lambda d: {"batch_size": 4, "sampler": RandomSampler(d)}),
    Case(
        "random with replacement",
        arguments=lambda d: {"batch_size": 4, "sampler": RandomSampler(d, replacement=True, num_samples=50)},
    ),
    Case(
        "random with a generator",
        arguments=lambda d: {"batch_size": 4, "sampler": RandomSampler(d, generator=seeded())},
    ),
    Case("random subset", arguments={"batch_size": 2, "sampler": SubsetRandomSampler([5, 1, 9, 12, 3])}),
    Case(
        "weighted",
        arguments=lambda _: {"batch_size": 4, "sampler": WeightedRandomSampler(range(1, N + 1), 30)},
    ),
    Case("batch sampler", arguments={"batch_sampler": [[1, 2], [5], [22, 0, 1]]}),
    Case(
        "random batch sampler",
        arguments=lambda d: {"batch_sampler": BatchSampler(RandomSampler(d), 5, drop_last=False)},
    ),
    Case("distributed", arguments=_distributed()),
    Case("distributed, seeded", arguments=_distributed(seed=9, drop_last=True)),
    Case("distributed, in order", arguments=_distributed(shuffle=False)),
    Case("pinned where it can be", arguments={"batch_size": 4, "pin_memory": True, "pin_memory_device": ""}),
    Case("broken off", arguments={"batch_size": 4, "shuffle": True}, script=broken_off),
    Case(
        "broken off, generator",
        arguments=lambda _: {"batch_size": 4, "shuffle": True, "generator": seeded()},
        script=broken_off,
    ),
    Case("peeked", arguments={"batch_size": 4, "shuffle": True}, script=peeked),
    Case("measured", script=measured),
    Case("nested", script=nested, differs="second iterator"),
    Case("iterable", Endless, differs="iterable dataset"),
    Case("empty", list, differs="no samples"),
    Case(
        "unsized sampler",
        arguments={"batch_size": 4, "sampler": Unsized()},
        differs="sampler without a length",
    ),
    Case(
        "breaking sampler",
        arguments={"batch_size": 2, "sampler": Breaking()},
        differs="sampler that fails midway",
    ),
]

#: Cases that do not depend on the process that makes a sample.
WITHOUT_WORKERS = {
    "batches",
    "array",
    "default",
    "concatenated",
    "distributed, in order",
    "distributed, seeded",
    "empty",
    "faulty",
    "faulty, shuffled",
    "indices of numpy",
    "iterable",
    "keys of a dict",
    "list",
    "no batches",
    "no batches, collated",
    "peeked",
    "random batch sampler",
    "random subset",
    "random with replacement",
    "sampler",
    "sequential",
    "split",
    "stacked",
    "subset",
    "tensors",
    "text",
    "unsized sampler",
    "weighted",
    "words in batches",
}


def in_workers(case: Case, **workers: Any) -> Case:
    """Return ``case`` with workers."""
    given = case.arguments

    def arguments(dataset: Any) -> dict[str, Any]:
        return {**(given(dataset) if callable(given) else given), "num_workers": 2, **workers}

    differs = case.differs
    if case.dataset is Random:
        differs = "random numbers in workers"
    elif differs == "sampler that fails midway":
        differs = None  # Torch reads indices ahead too.
    return Case(", ".join((case.name, "workers", *workers)), case.dataset, arguments, case.script, differs)


PERSISTENT = [
    in_workers(case, persistent_workers=True)
    for case in ALONE
    if case.name
    in ("shuffled", "generator", "broken off", "broken off, generator", "faulty", "mixed samples", "measured")
]
IN_WORKERS = [
    *(in_workers(case) for case in ALONE if case.name not in WITHOUT_WORKERS),
    *PERSISTENT,
    in_workers(Case("one ahead"), prefetch_factor=1),
    in_workers(Case("seven ahead", arguments={"batch_size": 2, "shuffle": True}), prefetch_factor=7),
    in_workers(Case("init", Seeded), worker_init_fn=Seeded.init),
    in_workers(Case("failing init", script=first), worker_init_fn=Seeded.fail),
    in_workers(Case("in_order=False", arguments={"batch_size": N}), in_order=False),
    in_workers(Case("with a context"), multiprocessing_context="fork"),
    in_workers(Case("with a timeout"), timeout=60),
]
