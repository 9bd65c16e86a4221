# SPDX-License-Identifier: Apache-2.0
"""The job file: values in base units, all faults at once, and the published scenarios."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.house import ROOT
from support.properties import TEXTS, properties

from foresee import jobspec, network
from foresee._schema import values
from foresee.errors import ConfigError
from foresee.jobspec import Cache, Cluster, Data, Job, Network, Tier, Train, Window, sections, vary

FOLDER = ROOT / "testdata" / "job"
PAGE = ROOT / "docs" / "formats" / "job.md"
TABLES = {
    "data": sections.Data,
    "train": sections.Train,
    "cluster": sections.Cluster,
    "cluster.staging": sections.Staging,
    "cluster.tiers": sections.Tier,
    "cluster.network": sections.Network,
    "cluster.origin": sections.Origin,
    "cache": sections.Cache,
    "cache.window": sections.Window,
    "gradients": sections.Gradients,
    "stagger": sections.Stagger,
    "run": sections.Run,
    "cost": sections.Cost,
}


@pytest.mark.parametrize(
    "module",
    [
        "foresee._schema.toml",
        "foresee._schema.values",
        "foresee.jobspec.file",
        "foresee.jobspec.sections",
        "foresee.jobspec.vary",
    ],
)
def test_the_examples_in_the_docstrings_are_true(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted
    assert not result.failed


def test_the_golden_job_is_read_into_base_units() -> None:
    documented = jobspec.facts(jobspec.read(FOLDER / "full.toml"))
    for section, key in (("cluster", "profile"), ("gradients", "model")):
        documented[section][key] = os.path.relpath(documented[section][key], FOLDER)
    text = json.dumps(documented, indent=2) + "\n"
    golden = FOLDER / "full.json"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        golden.write_text(text)
    assert text == golden.read_text()


def test_the_golden_job_has_every_key_except_mutually_exclusive_ones() -> None:
    text = (FOLDER / "full.toml").read_text()
    for name, table in TABLES.items():
        (body,) = re.findall(
            rf"^\[+{re.escape(name)}\]+$(.*?)(?=^\[|\Z)", text, flags=re.DOTALL | re.MULTILINE
        )[:1]
        rest = text if name == "cluster.tiers" else body
        for key in (each.name for each in dataclasses.fields(table)):
            if key in {"index", "compute_step", "read"} or f"{name}.{key}" in TABLES:
                continue
            assert re.search(rf"^{key} = ", rest, flags=re.MULTILINE), f"{name}.{key}"


def test_the_page_has_exactly_the_keys_of_a_job() -> None:
    text = PAGE.read_text()
    for name, table in TABLES.items():
        (body,) = re.findall(
            rf"^### `\[+{re.escape(name)}\]+`.*?$(.*?)(?=^##|\Z)", text, flags=re.DOTALL | re.MULTILINE
        )
        documented = re.findall(r"^\| `(\w+)` \|", body, flags=re.MULTILINE)
        keys = [each.name for each in dataclasses.fields(table) if f"{name}.{each.name}" not in TABLES]
        assert sorted(documented) == sorted(keys), name
    for policy in (*sections.POLICIES, *sections.GRADIENT_POLICIES):
        assert f"`{policy}`" in text


def test_the_example_of_the_page_is_a_job() -> None:
    read = jobspec.loads(PAGE.read_text().split("```toml\n")[1].split("```")[0], str(FOLDER))
    assert read.need("data.samples", "train.batch", "cluster.ranks") == (1_281_167, 32, 4)


def test_gradient_policies_are_those_of_the_network_model() -> None:
    assert sections.GRADIENT_POLICIES == network.POLICIES


def test_a_profile_gives_only_values_that_the_job_lacks() -> None:
    read = jobspec.read(FOLDER / "full.toml")
    assert read.cluster.tiers[0].read == ((1, 5.5e9), (4, 12e9))
    assert read.cluster.tiers[0].capacity == 120 * 2**30
    assert read.cluster.tiers[1].read == ((1, 1.5e9), (2, 2e9))
    # Measured by requests in flight, of which a rank has eight.
    assert read.cluster.origin.read == ((1, 23e9 / 8),)
    assert read.cluster.origin.latency == 0.02
    assert read.cluster.network.rate == 12.5e9
    assert read.cluster.machines == 2


def test_a_job_with_a_changed_value_gets_the_profile_values_for_it() -> None:
    read = jobspec.read(FOLDER / "full.toml")
    for key, value in (("cluster.staging.threads", 1), ("cluster.ranks_per_machine", 2)):
        text = (FOLDER / "full.toml").read_text()
        last = key.rpartition(".")[2]
        changed = re.sub(rf"^{last} = .*$", f"{last} = {value}", text, count=1, flags=re.MULTILINE)
        assert vary.with_value(read, key, value) == dataclasses.replace(
            jobspec.loads(changed, str(FOLDER)), file=read.file
        )
    one = vary.with_value(read, "cluster.staging.threads", 1)
    assert one.cluster.origin.read == ((1, 330e6), (8, 23e9 / 8))
    # Several changes, and given values remain.
    both = vary.with_value(
        vary.with_value(one, "cluster.tiers.ram.threads", 2), "cluster.origin.read", "1 GB/s"
    )
    assert (both.cluster.staging.threads, both.cluster.tiers[0].threads) == (1, 2)
    assert vary.with_value(both, "cluster.staging.threads", 4).cluster.origin.read == ((1, 1e9),)


def test_the_capacity_of_a_tier_is_divided_among_the_ranks_of_a_node(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(
        'version = 1\n[cluster]\nprofile = "p.toml"\n[[cluster.tiers]]\nname = "ram"\n'
    )
    figure = '[[figure]]\nname = "tier.ram.capacity"\nunit = "GB"\nvalue = '
    for name, capacity in (("p", 12), ("q", 30)):
        text = f'version = 1\nmachine = "{name}"\ndate = 2026-11-22\n{figure}{capacity}\n'
        (tmp_path / f"{name}.toml").write_text(text)
    read = jobspec.read(tmp_path / "job.toml")
    four = vary.with_value(read, "cluster.ranks_per_machine", 4)
    assert [each.cluster.tiers[0].capacity for each in (read, four)] == [12e9, 3e9]
    other = vary.with_value(four, "cluster.profile", str(tmp_path / "q.toml"))
    assert other.cluster.tiers[0].capacity == 7.5e9
    (tmp_path / "none.toml").write_text('version = 1\nmachine = "n"\ndate = 2026-11-22\n')
    with pytest.raises(ConfigError, match=r"job\.toml: cluster\.tiers\[0\]\.capacity is missing; bytes"):
        vary.with_value(read, "cluster.profile", str(tmp_path / "none.toml"))
    with pytest.raises(FileNotFoundError, match=r"r\.toml"):
        vary.with_value(read, "cluster.profile", str(tmp_path / "r.toml"))


def test_the_error_for_an_invalid_value_names_file_key_value_and_range() -> None:
    read = jobspec.read(FOLDER / "full.toml")
    for key, value, documented in (
        ("train.batch", 0, "train.batch = 0; a whole number of 1 or more"),
        ("cluster.tiers.disk.capacity", -1, "cluster.tiers.disk.capacity = -1; bytes above 0"),
        ("cluster.ranks", 10**6 + 1, "cluster.ranks = 1000001; at most one rank per sample"),
        ("train.compute_step", 1, "train.compute_step beside compute_rate"),
        ("train.bach", 1, "train.bach: no key 'bach' there"),
        ("given", 1, "given: no key 'given' there"),
    ):
        with pytest.raises(ConfigError) as caught:
            vary.with_value(read, key, value)
        (fault,) = caught.value.faults
        assert fault.startswith(f"{read.file}: {documented}")
    with pytest.raises(ConfigError) as caught:
        vary.points(read, {"train.batch": [0, 1, -1], "cluster.ranks": [1, 0]})
    found = [fault.removeprefix(f"{read.file}: ").partition(";")[0] for fault in caught.value.faults]
    assert sorted(found) == ["cluster.ranks = 0", "train.batch = -1", "train.batch = 0"]
    jobs, faults = vary.try_points(read, {"train.batch": [0, 1]})
    assert ([values for values, _ in jobs], len(faults)) == ([(1,)], 1)


def test_paths_are_relative_to_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(
        'version = 1\n[data]\nindex = "train.fidx"\n[run]\nfolder = "/runs/a"\n'
    )
    read = jobspec.read(tmp_path / "job.toml")
    assert (read.data.index, read.run.folder) == (str(tmp_path / "train.fidx"), "/runs/a")


def test_all_required_keys_that_are_missing_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        jobspec.scenario("thesis_1").need("train.batch", "run.command", "cluster.origin.latency")
    first, second = caught.value.faults
    assert "thesis_1.toml: run.command is missing; a list of texts expected" in first
    assert "cluster.origin.latency is missing; a time 0 or more expected" in second


def test_values_in_code_are_checked_like_those_of_a_file() -> None:
    assert Data(samples=3, size="1.5 KiB").size == 1536.0
    assert Cluster(network=Network(rate="1 Gbit/s")).network.rate == 125e6
    with pytest.raises(ConfigError, match="capacity is missing"):
        Tier(name="ram")
    with pytest.raises(ConfigError, match="batch = 0; a whole number of 1 or more"):
        Train(batch=0)
    with pytest.raises(ConfigError, match=r"cluster\.ranks = 4; at most one rank per sample"):
        Job(data=Data(samples=3, size=1), cluster=Cluster(ranks=4))
    with pytest.raises(ConfigError, match="data = 3; a table expected"):
        Job(data=3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "version is missing; write version = 1"),
        ("version = 2", "version = 2; this program reads version 1"),
        ("version = true", "version = True"),
        ("version = 1.0", "version = 1.0"),
        ("version = ", "no TOML"),
        ("[data]\n[data]", "no TOML"),
        ("[dat]", "dat is no key of this table; did you mean data?"),
        ("zzz = 1", "zzz is no key of this table; known are version, data, train"),
        ('file = "a"', "file is no key"),
        ("data = 3", "data = 3; a table expected"),
        ("[data]\nsamples = 0\nsize = 1", "data.samples = 0; a whole number of 1 or more"),
        ("[data]\nsamples = 1.0\nsize = 1", "data.samples = 1.0"),
        ("[data]\nsamples = true\nsize = 1", "data.samples = true"),
        ("[data]\nsamples = 1", "data.size is missing beside samples"),
        ("[data]\nsize = 1", "data.samples is missing beside size"),
        ('[data]\nindex = "a"\nsamples = 1', "data.samples = 1 beside index"),
        ("[data]\nsamples = 1\nsize = nan", "data.size = nan; bytes above 0 expected"),
        ("[data]\nsamples = 1\nsize = inf", "data.size = inf"),
        ('[data]\nsamples = 1\nsize = "-1 KB"', 'data.size = "-1 KB"; bytes above 0'),
        ('[data]\nsamples = 1\nsize = "12 GX"', "(B, KB to PB, KiB to PiB)"),
        ('[data]\nsamples = 1\nsize = "12"', 'data.size = "12"'),
        ('[data]\nsamples = 1\nsize = "1e999 B"', "data.size"),
        ("[data]\nsize_sigma = -1", "data.size_sigma = -1; bytes 0 or more"),
        ("[train]\nbatch = -1", "train.batch = -1"),
        ('[train]\nseed = "a"', 'train.seed = "a"'),
        ("[train]\ndrop_last = 1", "train.drop_last = 1; true or false"),
        ("[train]\nbatchsize = 3", "did you mean batch?"),
        ('[train]\ncompute_rate = "64 MB"', 'train.compute_rate = "64 MB"; a rate above 0'),
        ("[train]\ncompute_rate = 0", "train.compute_rate = 0"),
        (
            '[train]\ncompute_rate = "1 Gb/s"',
            'train.compute_rate = "1 Gb/s"; Gb/s could be bits or bytes: write Gbit/s or GB/s',
        ),
        ('[train]\ncompute_rate = 1\ncompute_step = "1 s"', "both say how long a step computes"),
        ('[train]\ncompute_step = "1 fortnight"', "(ns, us, ms, s, min, h, d)"),
        ("[cluster]\nranks = 0", "cluster.ranks = 0"),
        ("[cluster.staging]\nthreads = 1", "cluster.staging.capacity is missing; bytes above 0"),
        ('[cluster.staging]\ncapacity = "0 GB"', 'cluster.staging.capacity = "0 GB"; bytes above 0'),
        ("[cluster.staging]\ncapacity = 0.5", "cluster.staging.capacity = 0.5"),
        ("[cluster.staging]\ncapacity = 1\nthreads = 0", "cluster.staging.threads = 0"),
        (
            '[[cluster.tiers]]\nname = "a"\ncapacity = 1\nread = {0 = "1 B/s"}',
            "from threads (1 or more) to rates",
        ),
        ('[[cluster.tiers]]\nname = "a"\ncapacity = 1\nread = {a = "1 B/s"}', "cluster.tiers[0].read"),
        ('[[cluster.tiers]]\nname = "a"\ncapacity = 1\nread = {}', "cluster.tiers[0].read = {}"),
        ('[[cluster.tiers]]\nname = "a"\ncapacity = 1\nread = [1, 2]', "cluster.tiers[0].read = [1, 2]"),
        ('[[cluster.tiers]]\nname = "a"\ncapacity = 1\nread = {1 = 0}', "cluster.tiers[0].read = {1 = 0}"),
        (
            '[[cluster.tiers]]\nname = "a"\ncapacity = 1\n[[cluster.tiers]]\nname = "a"\ncapacity = 1',
            "each name once",
        ),
        ('[[cluster.tiers]]\nname = " "\ncapacity = 1', 'cluster.tiers[0].name = " "; a text expected'),
        ("[[cluster.tiers]]\ncapacity = 1", "cluster.tiers[0].name"),
        ("[cluster]\ntiers = [3]", "cluster.tiers[0] = 3; a table expected"),
        ("[cluster]\ntiers = 3", "cluster.tiers = 3; a list of tables"),
        ('[cluster.origin]\nreaders = "some"', "one of all, active, demand, queue expected"),
        ("[cluster.origin]\nlatency = -1", "cluster.origin.latency = -1; a time 0 or more"),
        ("[cluster.origin]\nrequests = 0", "cluster.origin.requests = 0; a whole number of 1 or more"),
        ('[cache]\npolicies = ["nopf"]', "a list of perfect, naive"),
        ("[cache]\npolicies = []", "cache.policies = []"),
        ('[cache]\npolicies = ["nopfs", "nopfs"]', "each once"),
        ("[cache]\npolicies = [[]]", "cache.policies = [[]]"),
        ("[cache.window]\nthreshold = 1", "cache.window.fetch is missing beside threshold"),
        ("[cache.window]\nfetch = 1\nthreshold = 0\nstrict = true", "a queue is never below it"),
        ("[gradients]\nefficiency = 1.5", "above 0, at most 1"),
        ("[gradients]\nefficiency = 0", "gradients.efficiency = 0"),
        ("[run]\ncommand = []", "run.command = []; a list of texts"),
        ('[run]\ncommand = "a \'b"', "run.command"),
        ("[run]\ngpus = -1", "run.gpus = -1"),
        ('[cost]\nperiod = "year"', "one of run, month"),
        (
            "[cost]\nwait_time = {direc = 3}",
            "cost.wait_time.direc is no key of this table; did you mean direct?",
        ),
        ("[cost]\nwait_time = {direct = -3}", "cost.wait_time.direct = -3; a time 0 or more"),
        ("[cost]\nwait_time = {}", "cost.wait_time = {}"),
        ("[data]\nsamples = 3\nsize = 1\n[cluster]\nranks = 4", "at most one rank per sample expected"),
    ],
)
def test_each_fault_is_named(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text if not text or text.startswith("version") else f"version = 1\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        jobspec.read(path)
    (fault,) = caught.value.faults
    assert fault.startswith(f"{path}: ")
    assert expected in fault


def test_all_faults_are_reported_at_once() -> None:
    text = "version = 1\nx = 1\n[data]\nsamples = 0\nsize = 1\ncolour = 1\n[train]\nbatch = nan\n[cache.window]\nfetch = 0\n"
    with pytest.raises(ConfigError) as caught:
        jobspec.loads(text)
    found = [fault.split(" ")[0] for fault in caught.value.faults]
    assert sorted(found) == ["cache.window.fetch", "data.colour", "data.samples", "train.batch", "x"]


@pytest.mark.parametrize("content", [b"\xff", b"a = 1\0", b"a = " + b"[" * 100_000])
def test_a_file_without_valid_toml_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"job\.toml: no TOML"):
        jobspec.read(path)


def test_a_missing_or_invalid_profile_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('version = 1\n[cluster]\nprofile = "p.toml"\n')
    with pytest.raises(ConfigError, match=r"p\.toml.*`foresee calibrate` measures one"):
        jobspec.read(tmp_path / "job.toml")
    (tmp_path / "p.toml").write_text("version = 9\n")
    with pytest.raises(ConfigError, match=r"p\.toml: version = 9"):
        jobspec.read(tmp_path / "job.toml")


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1 B", 1),
        ("1kB", 1000),
        ("1.5 GiB", 1.5 * 2**30),
        ("1_000 MB", 1e9),
        ("2e3 TB", 2e15),
        (" .5 KB ", 500),
        ("1 PiB", 2**50),
    ],
)
def test_sizes_have_common_spellings(word: str, value: float) -> None:
    assert values.Size().read(word) == value


@pytest.mark.parametrize(
    ("word", "value"), [("8 bit/s", 1), ("1Gbit/s", 125e6), ("1 GB/s", 1e9), ("1 KiB/s", 1024), ("3 B/s", 3)]
)
def test_rates_have_common_spellings(word: str, value: float) -> None:
    assert values.Rate().read(word) == value


@pytest.mark.parametrize(
    ("word", "value"),
    [("20 ms", 0.02), ("3 us", 3e-6), ("3 µs", 3e-6), ("2 h", 7200), ("0 s", 0), ("1d", 86400)],
)
def test_times_have_common_spellings(word: str, value: float) -> None:
    assert values.Time().read(word) == pytest.approx(value)


@given(st.one_of(TEXTS, st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.integers())))
@properties()
def test_any_value_is_read_or_refused(value: object) -> None:
    kinds = [values.Size(), values.Size(whole=True), values.Rate(), values.Time(), values.Count()]
    kinds += [values.Number(), values.Text(), values.Texts(), values.Curve(), values.Choices(("a",))]
    for kind in kinds:
        try:
            read = kind.read(value)
        except ValueError:
            continue
        if isinstance(kind, values.Quantity):
            assert 0 <= read < kind.below


def test_scenarios_have_the_published_values() -> None:
    names = jobspec.scenarios()
    assert len(names) == 18
    for name in names:
        read = jobspec.scenario(name)
        assert read.cache.policies == sections.CACHE_POLICIES
        assert [tier.name for tier in read.cluster.tiers] == ["ram", "disk"]
        printed = name.endswith("_printed")
        assert (read.cluster.origin.link is None) == printed
        assert name.startswith("thesis") or read.train.seed == 42
    third = jobspec.scenario("nopfs_3_script")
    assert (third.data.samples, third.data.size, third.data.size_sigma) == (
        14_197_103,
        0.1077 * 2**20,
        0.1 * 2**20,
    )
    assert dict(third.cluster.origin.read or ())[2] == 7272 * 2**20
    assert dict(jobspec.scenario("nopfs_fig9_script").cluster.origin.read or ())[2] == 727 * 2**20
    assert jobspec.scenario("nopfs_4b_script").cluster.ranks == 32
    assert jobspec.scenario("nopfs_fig9_printed").train.compute_rate == 320e6
    with pytest.raises(ConfigError, match="did you mean thesis_1"):
        jobspec.scenario("thesis1")


def test_a_window_and_a_cache_have_defaults() -> None:
    assert Cache().window == Window()
    assert Window().parallel == 16
