# SPDX-License-Identifier: Apache-2.0
"""Ranks with PyTorch that share the cache of their node: tables, samplers, worker processes, and torchrun itself."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Callable

import pytest
from support.data import make_folder
from support.gradients import under_torchrun
from support.node_ranks import digests, outcomes, ranks
from support.processes import Child

SIZES = [2000 + 370 * (sample % 11) for sample in range(96)]

RUN = """
    import json, os, pathlib, sys
    import torch
    from torch.utils.data import DataLoader, DistributedSampler
    import foresee.torch as ft
    from support.data import digest
    from support.node_ranks import meet
    from support.processes import print_json
    from support.waiting import wait_until
    plan = json.loads(sys.argv[1])
    files = sorted(plan["files"])
    data = ft.FileDataset(files, range(len(files)), extra=[files[1:] + files[:1], files[::-1]], root=plan["root"])
    cache = ft.Cache(ram="2MB")
"""

TABLE = (
    RUN
    + """
    sampler = DistributedSampler(data, 2, int(os.environ["RANK"]), seed=5)
    with (
        ft.DataLoader(data, batch_size=7, shuffle=True, seed=3, collate_fn=list, cache=cache) as planned,
        ft.DataLoader(data, batch_size=5, sampler=sampler, collate_fn=list, cache=cache) as sampled,
    ):
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for loader in (planned, sampled):
                print_json(batch=digest(list(loader)))
        meet(plan["job"], "end")
        print_json(tiers=[planned.stats()["tiers"], sampled.stats()["tiers"]])
"""
)

WORKERS = (
    RUN
    + """
    pictures = ft.FileDataset(files, root=plan["root"])
    with ft.DataLoader(data, batch_size=7, shuffle=True, seed=3, collate_fn=list, cache=cache) as planned:
        iterator = iter(planned)
        print_json(batch=digest(next(iterator)))
        # The worker processes are forked while this rank consumes, and rank 0 hosts.
        workers = iter(DataLoader(pictures, batch_size=8, num_workers=2, collate_fn=list))
        print_json(batch=digest(next(workers)))
        if plan["holds"]:
            print_json(holds=True)
            wait_until((pathlib.Path(plan["job"]) / "go").exists, what="the test's signal")
            # What the host has read is found in its memory, also after its end.
            wait_until(lambda: not planned.stats()["node"]["attached"], what="the end of the host")
        print_json(batch=digest(list(workers)))
        print_json(batch=digest(list(iterator)))
        print_json(batch=digest(list(planned)))
        meet(plan["job"], "end")
        print_json(tiers=[planned.stats()["tiers"]])
        planned.close()
        planned.close()
"""
)


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """A data set."""
    return make_folder(tmp_path / "data", SIZES)


def plan_of(root: pathlib.Path, *, holds: bool = False) -> dict[str, object]:
    """Return the plan of a rank of `RUN`."""
    return {
        "root": str(root),
        "holds": holds,
        "files": [str(path.relative_to(root)) for path in root.glob("*/*")],
    }


@pytest.mark.parametrize("source", [TABLE, WORKERS], ids=["tables and samplers", "worker processes"])
def test_ranks_with_torch_return_the_batches_of_ranks_that_read_alone(
    job: pathlib.Path, root: pathlib.Path, source: str
) -> None:
    found = {}
    for node in ("", "off"):
        env = {"FORESEE_NODE": node}
        with ranks(job, [plan_of(root)] * 2, source=source, env=env, warm=True) as programs:
            found[node] = outcomes(programs)
        for file in job.glob("end-?"):
            file.unlink()
    for (shared, errors), (alone, _) in zip(found[""], found["off"], strict=True):
        assert digests(shared) == digests(alone)
        assert len(digests(shared)) >= 5
        assert errors == ""
        assert not any(shared[-1]["tiers"])
        assert any(alone[-1]["tiers"])


def test_the_end_of_a_host_is_noticed_while_its_worker_processes_live(
    job: pathlib.Path, root: pathlib.Path
) -> None:
    with ranks(job, [plan_of(root, holds=True)] * 2, source=WORKERS, warm=True) as programs:
        host, consumer = programs
        begun = [[program.line() for _ in range(3)] for program in programs]
        # Its worker processes have the same sockets, and stay.
        host.send(signal.SIGKILL)
        host.wait()
        (job / "killed-0").touch()
        (job / "go").touch()
        ((lines, errors),) = outcomes([consumer])
        os.killpg(host.pid, signal.SIGKILL)
    with ranks(job, [plan_of(root)] * 2, source=WORKERS, env={"FORESEE_NODE": "off"}, warm=True) as programs:
        _, (alone, _) = outcomes(programs)
    assert digests(begun[1] + lines) == digests(alone)
    assert errors.count("this node's cache is gone") == len(errors.splitlines()) == 1, errors


def test_ranks_under_torchrun_read_each_sample_once(
    job: pathlib.Path, root: pathlib.Path, started: Callable[[Child], Child]
) -> None:
    environment = {"XDG_RUNTIME_DIR": str(job)}
    program = started(under_torchrun(2, "support.node_ranks", str(root), env=environment))
    ((lines, _),) = outcomes([program])
    assert sorted(line["rank"] for line in lines) == [0, 1]
    assert all(line["tiers"] == [] for line in lines)
    assert sum(line["read"] for line in lines) == len(SIZES)
