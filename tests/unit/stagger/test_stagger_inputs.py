# SPDX-License-Identifier: Apache-2.0
"""From job files to step times: the precedence of the sources, estimates, and refused inputs."""

from __future__ import annotations

import datetime as dt
import pathlib

import pytest

from foresee import jobspec
from foresee.cli import main
from foresee.errors import ConfigError, NotMeasured
from foresee.stagger import Catalog, Entry, Key
from foresee.stagger import inputs as stagger_inputs
from foresee.stagger.catalog_entry import UsedValue
from foresee.stagger.inputs import times
from foresee.stagger.model import Figure
from foresee.stagger.pooling import rate

TOML = """
version = 1
[data]
name = "TinyImageNet"
[train]
batch = 64
epochs = 2
steps_per_epoch = 1560
{train}
[stagger]
{stagger}
"""
WHOLE = 'wait = "449.3 ms"\nwait_cached = 0.04\nwait_conc = 0.6'
MACHINE = "node-1"


def job_file(model: str, *, train: str = "compute_step = 0.3036", stagger: str = WHOLE) -> jobspec.Job:
    return jobspec.loads(TOML.format(train=train, stagger=f'model = "{model}"\n{stagger}'))


def key(model: str, **more: object) -> Key:
    return Key(
        **{
            "machine": MACHINE,
            "data": "TinyImageNet",
            "model": model,
            "batch": 64,
            "loader": "default",
            **more,
        }
    )


def store(
    path: pathlib.Path, model: str, name: Figure, seconds: float, *, beside: str | None = None, **more: object
) -> None:
    entry = Entry(
        **{"seconds": seconds, "steps": 100, "date": dt.date(2026, 11, 22), "program": "0.1.0", **more}
    )
    with Catalog.open(path, write=True) as catalog:
        catalog.put(key(model), name, entry, beside=None if beside is None else key(beside))


def test_job_files_can_give_all_times() -> None:
    inputs = times([job_file("a"), job_file("b", stagger=WHOLE + "\n")])
    assert (inputs.data, inputs.doubts) == ("TinyImageNet", ())
    first, second = inputs.jobs
    assert (first.name, second.name) == ("a", "b")
    assert (first.compute, first.wait, first.wait_cached, first.wait_conc) == (0.3036, 0.4493, 0.04, 0.6)
    assert (first.steps, first.epochs, first.estimated) == (1560, 2, frozenset())


def test_the_catalog_gives_only_times_that_the_files_lack(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "catalog.db"
    store(path, "a", "compute", 0.5)
    store(path, "a", "wait", 0.9)
    store(path, "a", "wait_cached", 0.01, steps=None)
    store(path, "a", "wait_conc", 1.5, beside="b")
    store(path, "b", "wait_conc", 2.5, beside="a", stale="another kernel")
    files = [
        job_file("a", train="", stagger="wait = 0.2"),
        job_file("b", stagger="wait = 0.2\nwait_cached = 0.1"),
    ]
    with Catalog.open(path) as catalog:
        inputs = times(files, catalog=catalog, machine=MACHINE)
        first, second = inputs.jobs
        assert (first.compute, first.wait, first.wait_cached, first.wait_conc) == (0.5, 0.2, 0.01, 1.5)
        assert first.estimated == {"wait_cached"}
        assert second.wait_conc == 2.5
        assert inputs.doubts == ("b: wait_conc of 2026-11-22 is stale: another kernel; measure it again",)
        with pytest.raises(NotMeasured, match="compute of a is not known"):
            times(files, catalog=catalog, machine="elsewhere")


def test_a_concurrent_wait_below_the_wait_alone_counts_as_no_cost(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "catalog.db"
    store(path, "a", "wait_conc", 0.199, beside="b")
    store(path, "b", "wait_conc", 0.1, beside="a")
    stagger_times = "wait = 0.2\nwait_cached = 0.1"
    with Catalog.open(path) as catalog:
        inputs = times(
            [job_file(name, stagger=stagger_times) for name in "ab"], catalog=catalog, machine=MACHINE
        )
    assert [one.wait_conc for one in inputs.jobs] == [0.2, 0.2]
    # The difference is larger than noise, so that it is reported.
    (doubt,) = inputs.doubts
    assert "b: wait_conc 0.1 s is shorter" in doubt


@pytest.mark.parametrize(
    ("difference", "sd", "one_rate"),
    [(0.02, 0.3, True), (0.02, 0.02, False), (0.08, 0.9, False), (0.0, 0.0, True)],
    ids=["by chance", "by more than chance", "by much", "not at all"],
)
def test_jobs_that_wait_for_the_same_storage_get_one_rate(
    tmp_path: pathlib.Path, difference: float, sd: float, one_rate: bool
) -> None:
    path = tmp_path / "catalog.db"
    for model, compute, step in (("a", 0.3, 0.8), ("b", 0.5, 0.8 * (1 + difference))):
        store(path, model, "compute", compute, sd=0.0)
        store(path, model, "wait", step - compute, sd=sd)
        store(path, model, "wait_cached", 0.0)
        store(path, model, "wait_conc", step - compute + 0.1, beside="b" if model == "a" else "a")
    with Catalog.open(path) as catalog:
        files = [job_file(name, train="", stagger="") for name in "ab"]
        a, b = times(files, catalog=catalog, machine=MACHINE).jobs
        step = 0.8 * (1 + difference / 2) if one_rate else 0.8
        assert a.compute + a.wait == pytest.approx(step)
        assert b.compute + b.wait == pytest.approx(step if one_rate else 0.8 * (1 + difference))
        # The measured cost of contention does not change.
        assert a.wait_conc is not None
        assert a.wait_conc - a.wait == pytest.approx(0.1)
        # A wait from a file is the user's, so that there is nothing to compare it with.
        given = job_file("b", train="", stagger="wait = 0.4")
        assert [job.wait for job in times([files[0], given], catalog=catalog, machine=MACHINE).jobs] == [
            pytest.approx(0.5),
            0.4,
        ]


def test_a_job_without_waits_gives_no_storage_rate(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "catalog.db"
    for model, compute, wait in (("a", 0.3, 0.5), ("b", 0.81, 0.001)):
        store(path, model, "compute", compute, sd=0.0)
        store(path, model, "wait", wait, sd=0.3)
        store(path, model, "wait_cached", 0.0)
    with Catalog.open(path) as catalog:
        files = [job_file(name, train="", stagger="") for name in "ab"]
        assert [job.wait for job in times(files, catalog=catalog, machine=MACHINE).jobs] == [0.5, 0.001]


def test_waits_without_another_source_come_from_the_storage_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        job_file("a", train="compute_step = 0.25", stagger="wait_cached = 0"),
        job_file("b", train="compute_step = 0.5", stagger="wait_cached = 0\nwait = 0.125"),
    ]
    read = 0.75 * 1560
    # All files share one page cache, as in a short calibration; a coalescing cache behaves alike.
    for coalesces in (False, True):
        first, second = times(files, read=read, coalesces=coalesces).jobs
        assert (first.wait, first.wait_conc) == (0.5, 0.5)
        assert first.estimated == {"wait", "wait_conc"}
        assert (second.wait, second.wait_conc, second.estimated) == (0.125, 0.125, {"wait_conc"})
    # From a bucket, each job reads separately.
    monkeypatch.setattr(stagger_inputs, "is_local", lambda jobs: False)
    first, second = times(files, read=read).jobs
    assert (first.wait_conc, second.wait_conc) == (1.25, 1.0)
    slow = job_file("b", train="compute_step = 1.5", stagger="wait_cached = 0\nwait = 0.125")
    assert times([files[0], slow], read=read).jobs[1].wait_conc == 0.125
    first, second = times(files, read=read, coalesces=True).jobs
    assert (first.wait_conc, second.wait_conc) == (first.wait, second.wait)


def test_values_taken_from_the_catalog_are_listed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "catalog.db"
    store(path, "a", "compute", 0.5)
    store(path, "a", "wait", 0.9)
    store(path, "a", "wait_conc", 1.5, beside="b")
    files = [job_file("a", train="", stagger="wait_cached = 0.2"), job_file("b")]
    with Catalog.open(path) as catalog:
        inputs = times(files, catalog=catalog, machine=MACHINE)
        assert inputs.used == (
            UsedValue(key("a"), "compute"),
            UsedValue(key("a"), "wait"),
            UsedValue(key("a"), "wait_conc", key("b")),
        )
        # If one pair of a job is unknown, its other pairs are not used either.
        three = times([*files, job_file("c")], catalog=catalog, machine=MACHINE)
        assert [one.name for one in three.used] == ["compute", "wait"]
    assert times([job_file("a"), job_file("b")]).used == ()


@pytest.mark.parametrize(
    ("wait", "cached", "more", "seen"),
    [
        (0.5, 0.0, {}, True),
        (0.5, 0.5, {}, False),
        (0.03, 0.0, {}, False),
        (0.5, 0.0, {"sd": 3.0}, False),
        (0.5, 0.0, {"stale": "another disk"}, False),
        (0.5, 0.0, {"steps": None}, False),
    ],
    ids=["waits", "as long as warm", "hardly", "by chance", "stale", "derived"],
)
def test_only_a_job_that_waits_for_the_storage_gives_its_rate(
    tmp_path: pathlib.Path, wait: float, cached: float, more: dict, seen: bool
) -> None:
    path = tmp_path / "catalog.db"
    store(path, "a", "compute", 0.78)
    store(path, "a", "wait", wait, **more)
    store(path, "a", "wait_cached", cached)
    with Catalog.open(path) as catalog:
        assert rate(catalog, [key("b"), key("a")]) == (pytest.approx(1.28 / 64) if seen else None)


def test_step_time_and_steps_follow_from_the_compute_rate_and_the_sample_count() -> None:
    text = """
version = 1
[data]
name = "TinyImageNet"
samples = 1000
size = "2 KB"
[train]
batch = 30
epochs = 1
drop_last = {drop}
compute_rate = "60 KB/s"
[stagger]
wait = 0
wait_cached = 0
"""
    dropping, keeping = (jobspec.loads(text.format(drop=drop)) for drop in ("true", "false"))
    first, second = times([dropping, keeping]).jobs
    assert (first.compute, first.steps, second.steps) == (1.0, 33, 34)
    assert (first.name, second.name) == ("job #1", "job #2")


def test_the_sample_count_comes_from_the_index(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.fidx"
    assert main(["index", str(folder), "-o", str(path)]) == 0
    text = """
version = 1
[data]
index = "train.fidx"
[train]
batch = {batch}
epochs = 1
compute_step = 1
[cluster]
ranks = 2
[stagger]
wait = 0
wait_cached = 0
"""
    inputs = times([jobspec.loads(text.format(batch=batch), str(tmp_path)) for batch in (5, 23)])
    assert [one.steps for one in inputs.jobs] == [3, 1]
    assert inputs.data == str(path.resolve())


def test_more_than_two_jobs_have_no_common_concurrent_wait(tmp_path: pathlib.Path) -> None:
    store(tmp_path / "catalog.db", "a", "wait_conc", 1.5, beside="b")
    files = [job_file(name, stagger="wait = 0.1\nwait_cached = 0") for name in "abc"]
    with Catalog.open(tmp_path / "catalog.db") as catalog:
        inputs = times(files, catalog=catalog, machine=MACHINE)
    assert [one.wait_conc for one in inputs.jobs] == [None, None, None]


def test_implausible_times_are_doubted() -> None:
    odd = job_file("a", stagger="wait = 0.1\nwait_cached = 0.2\nwait_conc = 0.05")
    first, second = times([odd, job_file("b")]).doubts
    assert "a: wait_cached 0.2 s is longer than wait 0.1 s" in first
    assert "a: wait_conc 0.05 s is shorter" in second


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (lambda: [job_file("a")], "1 job; two or more"),
        (
            lambda: [
                job_file("a"),
                jobspec.loads(TOML.replace("TinyImageNet", "CIFAR").format(train="", stagger="")),
            ],
            "data sets differ: TinyImageNet in a job, CIFAR in a job; all jobs have to read the same data",
        ),
        (lambda: [job_file("a"), job_file("b", train="seed = 1")], "orders differ: 0 in a job, 1 in a job"),
        (lambda: [job_file("a"), jobspec.loads("version = 1\n")], "data.name is missing"),
        (
            lambda: [job_file("a"), jobspec.loads('version = 1\n[data]\nname = "TinyImageNet"\n')],
            "train.epochs is missing",
        ),
        (
            lambda: [
                job_file("a"),
                jobspec.loads('version = 1\n[data]\nname = "TinyImageNet"\n[train]\nepochs = 1\nbatch = 2'),
            ],
            "data.samples is missing",
        ),
        (
            lambda: [
                job_file("a"),
                jobspec.loads(
                    'version = 1\n[data]\nname = "TinyImageNet"\nsamples = 1\nsize = 1\n'
                    "[train]\nepochs = 1\nbatch = 2\ndrop_last = true"
                ),
            ],
            "a rank's 1 samples make no whole step",
        ),
        (
            lambda: [job_file("a"), job_file("b", train="")],
            "compute of b is not known; write [train] compute_step",
        ),
        (lambda: [job_file("a", stagger=""), job_file("b")], "wait of a is not known; write [stagger] wait"),
        (lambda: [job_file("a", stagger="wait = 1"), job_file("b")], "wait_cached of a is not known"),
    ],
)
def test_invalid_and_missing_values_are_named(files, expected: str) -> None:
    with pytest.raises((ConfigError, NotMeasured)) as raised:
        times(files())
    assert expected in str(raised.value)
