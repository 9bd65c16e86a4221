# SPDX-License-Identifier: Apache-2.0
"""Sizes, the cache, environment variables, and the rank of the process."""

from __future__ import annotations

import pickle

import pytest

import foresee
from foresee._runtime import ranks
from foresee.config import Settings, parse_size
from foresee.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (0, 0),
        (512, 512),
        ("512", 512),
        ("16GB", 16 * 10**9),
        ("16 gb", 16 * 10**9),
        ("2GiB", 2 * 2**30),
        ("1.5KiB", 1536),
        ("0.1GB", 10**8),
        ("3TB", 3 * 10**12),
    ],
)
def test_a_size_is_bytes_or_a_string_with_a_unit(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize("wrong", ["16XB", "", "GB", "-1GB", -1, 1.5, True, None, "1e9", 2**63, "9999999TB"])
def test_a_wrong_size_is_an_error_that_shows_it(wrong):
    with pytest.raises(ConfigError, match="ram=") as caught:
        parse_size(wrong, "ram")
    assert repr(wrong) in str(caught.value)


def test_a_cache_reports_all_its_faults_at_once():
    with pytest.raises(ConfigError) as caught:
        foresee.Cache(ram="lots", disk="/tmp/x", peers="yes")
    assert len(caught.value.faults) == 3
    assert "peers='yes'" in str(caught.value)


def test_a_disk_size_without_a_disk_is_refused():
    with pytest.raises(ConfigError, match="disk_size='1GB' without disk="):
        foresee.Cache(disk_size="1GB")


def test_two_equal_caches_are_two_budgets():
    one, two = foresee.Cache(ram="1MB"), foresee.Cache(ram="1MB")
    assert one.native() is one.native()
    assert one.native() is not two.native()
    assert one != two


def test_more_ram_than_the_process_may_use_is_refused():
    with pytest.raises(ConfigError):
        foresee.Cache(ram="4000000TB").native()


def test_a_cache_pickles_as_its_fields(tmp_path):
    cache = foresee.Cache(ram="1MB", disk=tmp_path, disk_size="1GB", peers=False)
    cache.native()
    again = pickle.loads(pickle.dumps(cache))
    assert (again.ram_bytes, again.disk, again.disk_bytes, again.peers) == (10**6, tmp_path, 10**9, False)


def test_loaders_without_a_cache_share_the_one_of_the_environment(monkeypatch):
    assert Settings.read().cache() is Settings.read().cache()
    monkeypatch.setenv("FORESEE_RAM", "1MB")
    assert Settings.read().cache() is Settings.read().cache()
    assert Settings.read().cache().ram_bytes == 10**6


def test_environment_variables_are_read_and_empty_ones_are_not_set():
    read = Settings.read(
        {"FORESEE_OFF": "1", "FORESEE_THREADS": "3", "FORESEE_TRACE": "runs/a", "FORESEE_LOG": ""}
    )
    assert (read.off, read.threads, read.run_dir, read.log) == (True, 3, "runs/a", None)
    read = Settings.read({"FORESEE_PROFILE": "profile.toml", "FORESEE_JOB_FILE": "job.toml"})
    assert (read.profile, read.job, read.run_dir) == ("profile.toml", "job.toml", None)


def test_wrong_environment_variables_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        Settings.read({"FORESEE_OFF": "yes", "FORESEE_THREADS": "0", "FORESEE_LOG": "loud"})
    assert len(caught.value.faults) == 3


def test_arguments_take_precedence_over_every_launcher():
    world = ranks.detect(1, 4, {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"})
    assert (world.rank, world.size, world.local_rank, world.local_size) == (1, 4, 0, 2)


def test_variables_of_a_batch_script_are_not_those_of_the_tasks_that_it_starts() -> None:
    script = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS_PER_NODE": "4"}
    world = ranks.detect(3, 4, script)
    assert (world.local_rank, world.local_size, world.local_size_known) == (0, 1, False)
    world = ranks.detect(3, 4, {**script, "SLURM_LOCALID": "3", "SLURM_STEP_ID": "0"})
    assert (world.local_rank, world.local_size, world.local_size_known) == (3, 4, True)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, 0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (3, 4, 1, 2)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}, (3, 4, 1, 2)),
        ({"SLURM_NTASKS": "4"}, (0, 1, 0, 1)),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"}, (0, 1, 0, 1)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, (0, 1, 0, 1)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, (0, 4, 0, 1)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "2",
                "OMPI_COMM_WORLD_SIZE": "4",
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "4",
                "SLURM_JOB_ID": "7",
            },
            (2, 4, 0, 1),
        ),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2, 0, 1)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, 0, 1)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2, 0, 1)),
        (
            {
                "RANK": "5",
                "WORLD_SIZE": "8",
                "TORCHELASTIC_RUN_ID": "x",
                "SLURM_PROCID": "1",
                "SLURM_NTASKS": "2",
            },
            (5, 8, 0, 1),
        ),
    ],
)
def test_the_rank_comes_from_the_first_launcher_that_is_set(environ, expected):
    world = ranks.detect(environ=environ)
    assert (world.rank, world.size, world.local_rank, world.local_size) == expected


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"RANK": "1"}, "WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "RANK is not"),
        ({"SLURM_PROCID": "1"}, "SLURM_NTASKS is not"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of 2"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "-1"}, "local rank -1"),
        ({"RANK": "0", "WORLD_SIZE": "2", "PMI_RANK": "1", "PMI_SIZE": "2"}, "PMI says rank 1 of 2"),
    ],
)
def test_incomplete_or_disagreeing_launchers_are_named(environ, named):
    with pytest.raises(ConfigError, match=named):
        ranks.detect(environ=environ)


def test_rank_without_world_size_is_refused():
    with pytest.raises(ConfigError, match="both or neither"):
        ranks.detect(1, None, {})
