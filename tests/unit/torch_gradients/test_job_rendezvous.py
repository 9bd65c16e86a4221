# SPDX-License-Identifier: Apache-2.0
"""Rendezvous of ranks and servers of a job: its name, secret, store, and addresses of colocated servers."""

from __future__ import annotations

import datetime as dt
import platform

import pytest
import torch

from foresee._runtime import rendezvous
from foresee._runtime.ranks import World
from foresee.errors import ConfigError


def test_the_secret_comes_from_the_user_or_rank_0_draws_it(tmp_path) -> None:
    store = torch.distributed.HashStore()
    assert rendezvous.find_secret(0, "file", store, {}) is None
    with pytest.raises(ConfigError, match="rank 1 has no secret, and rank 0 has"):
        rendezvous.find_secret(1, None, store, {})
    assert rendezvous.find_secret(1, None, store, {"FORESEE_TOKEN": "x"}) is None
    secret = rendezvous.find_secret(0, None, store, {})
    assert secret is not None
    assert len(secret) == 64
    assert rendezvous.find_secret(1, None, store, {}) == secret
    with pytest.raises(ConfigError, match="no secret: set FORESEE_TOKEN"):
        rendezvous.find_secret(0, None, None, {})


def test_a_run_has_a_name_that_all_ranks_know() -> None:
    one, many = World(0, 1), World(1, 4)
    name = rendezvous.find_job_name
    assert name("x", many, {"FORESEE_JOB": "my job!"}) == "my-job-/x"
    slurm = {"SLURM_JOB_ID": "7", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert name("x", many, {**slurm, "SLURM_STEP_ID": "2"}) == "slurm-7.2/x"
    assert name("x", many, {**slurm, "SLURM_STEP_ID": "2", "RANK": "1"}) == "a:1/x"
    # A batch script may start several runs with different addresses.
    assert name("x", many, slurm) == "a:1/x"
    assert name("x", many, {"MASTER_ADDR": "fe80::1", "MASTER_PORT": "29500"}) == "fe80::1:29500/x"
    # Every host has a loopback address, and torchrun's port is the same on all.
    single_node = World(1, 4, 1, 4, local_size_known=True)
    for place in ("127.0.0.1", "::1", "localhost"):
        alike = name("x", single_node, {"MASTER_ADDR": place, "MASTER_PORT": "29500"})
        assert alike == f"{platform.node()}:29500/x"
    assert name("x", single_node, {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}) == "node1:29500/x"
    # With an unknown local size the last rank must not use another name than the others.
    last = World(3, 4, 3, 4)
    assert name("x", last, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}) == "127.0.0.1:29500/x"
    assert name("x", one, {}) is not None
    # The launcher of the ranks names the run; the node of mpirun has no Slurm step.
    for number in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PALS_APID", "PMI_JOBID"):
        assert name("x", many, {number: "prterun-a-12@1"}) == "mpi-prterun-a-12-1/x"
        assert name("x", many, {number: "7", **slurm, "SLURM_STEP_ID": "0"}) == "mpi-7/x"
        # The id may be that of torchrun's agents, which may start several runs.
        assert name("x", many, {number: "7", **slurm, "RANK": "1"}) == "a:1/x"
    # A constant name would mix the ranks of two runs.
    assert name("x", many, {}) is None
    assert name("x", many, {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_ID": "1"}) is None
    assert len(name("exchange-3", many, {"FORESEE_JOB": "j" * 500})) == 128


def test_a_run_without_a_name_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="set FORESEE_JOB to the same on every rank and to another for every run"
    ):
        rendezvous.open_job("x", World(1, 4), {"OMPI_COMM_WORLD_RANK": "1"})
    assert rendezvous.open_job("x", World(1, 4), {"FORESEE_JOB": "a"}) == ("a/x", None)


def test_a_store_view_has_the_timeout_of_its_store() -> None:
    store = torch.distributed.HashStore()
    store.set_timeout(dt.timedelta(seconds=7))
    assert rendezvous.store_timeout_s(rendezvous.begin_attempt(store, "job", World(0, 1))) == 7
    assert rendezvous.store_timeout_s(None) == 1800


def test_a_rank_publishes_an_address_that_other_nodes_reach(monkeypatch) -> None:
    alone, unknown_size = World(0, 2, 0, 2), World(0, 2)
    own = rendezvous.find_own_address
    monkeypatch.setattr(rendezvous, "_find_source_address", {"127.0.0.1": "127.0.0.1"}.get)
    assert own(alone, {"MASTER_ADDR": "127.0.0.1"}) == "127.0.0.1"
    assert own(alone, {}) == "127.0.0.1"
    assert own(unknown_size, {"FORESEE_ADDRESS": "10.1.2.3", "MASTER_ADDR": "127.0.0.1"}) == "10.1.2.3"
    sources = {"127.0.1.1": "127.0.0.1", "10.0.0.9": "10.0.0.4", rendezvous._REMOTE: "10.0.0.1"}
    monkeypatch.setattr(rendezvous, "_find_source_address", sources.get)
    assert own(unknown_size, {"MASTER_ADDR": "10.0.0.9"}) == "10.0.0.4"
    # A host whose own name is a loopback address, as on Debian.
    assert own(unknown_size, {"MASTER_ADDR": "127.0.1.1"}) == "10.0.0.1"
    monkeypatch.setattr(rendezvous, "_find_source_address", lambda place: None)
    with pytest.raises(ConfigError, match="set FORESEE_ADDRESS to its IP"):
        own(unknown_size, {"MASTER_ADDR": "unknown"})


def test_addresses_of_colocated_servers_are_in_rank_order() -> None:
    store = torch.distributed.HashStore()
    world = [World(rank, 3) for rank in range(3)]
    found = [f"10.0.0.{rank}:7" for rank in range(3)]
    for rank in (2, 1):
        store.set(f"server/{rank}", found[rank])
    assert rendezvous.share_address(world[0], found[0], store) == found
    assert rendezvous.share_address(World(0, 1), found[0], None) == found[:1]
    with pytest.raises(ConfigError, match="init_process_group"):
        rendezvous.share_address(world[0], found[0], None)
