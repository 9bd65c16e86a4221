# SPDX-License-Identifier: Apache-2.0
"""Ranks of one launched job on this node, as torchrun starts them: processes that share the cache of their node."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import foresee
from support.data import digest, epoch
from support.processes import Child, child, print_json
from support.waiting import wait_until

#: A rank that prints a digest of each batch, and its statistics at the end; see `run_rank`.
RANK = """
    import json, sys
    from support.node_ranks import run_rank
    run_rank(**json.loads(sys.argv[1]))
"""


def launched(rank: int, world: int, job: pathlib.Path) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank of a job on one node. ``job``: its `job_folder`."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "XDG_RUNTIME_DIR": str(job),
    }


@contextlib.contextmanager
def job_folder() -> Iterator[pathlib.Path]:
    """Create a folder for the sockets and signals of a job. Its path is short, because those of sockets are limited."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fs-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def ranks(
    job: pathlib.Path,
    plans: Sequence[Mapping[str, Any]],
    *,
    source: str = RANK,
    env: Mapping[str, str] | None = None,
    warm: bool = False,
) -> Iterator[list[Child]]:
    """Start one rank per plan, the argument of its program, with its `launched` variables and ``env``."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                child(
                    source,
                    json.dumps({"job": str(job), **plan}),
                    env={**launched(rank, len(plans), job), **(env or {})},
                    warm=warm,
                )
            )
            for rank, plan in enumerate(plans)
        ]


def outcomes(programs: Sequence[Child], *, fails: Sequence[int] = ()) -> list[tuple[list[Any], str]]:
    """Return the remaining lines and the errors of each rank once it has ended. Only ranks in ``fails`` may fail."""
    found = []
    for rank, program in enumerate(programs):
        status, output, errors = program.end()
        assert status == 0 or rank in fails, f"rank {rank} ended with {status}:\n{output}\n{errors}"
        found.append(([json.loads(line) for line in output.splitlines()], errors))
    return found


def digests(lines: Sequence[Any]) -> list[str]:
    """Return the digests of the batches among the lines of a rank."""
    return [line["batch"] for line in lines if "batch" in line]


def expected(
    root: pathlib.Path,
    rank: int,
    world: int,
    epochs: int,
    *,
    state: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[str]:
    """Return the digest of each batch of a rank that reads alone, from a state on if there is one."""
    loader = foresee.Loader(
        root, **{**DEFAULTS, **options}, rank=rank, world_size=world, cache=foresee.Cache(ram=0)
    )
    with loader:
        if state is not None:
            loader.load_state_dict(state)
        first = 0 if state is None else state["epoch"]
        return [_digest(batch) for _ in range(first, epochs) for batch in loader]


def run_rank(
    job: str,
    root: str,
    epochs: int = 1,
    cache: Mapping[str, Any] | None = None,
    hold_at: Sequence[int] = (),
    **options: Any,
) -> None:
    """Read epochs and print a digest of each batch, then the statistics of the loader.

    The rank waits for the others before it closes its loader, so that none of them loses its host.
    ``hold_at``: numbers of batches after which it prints a line and waits for the file ``go-NUMBER`` in the job's folder.
    """
    memory = foresee.Cache(**(cache or {"ram": "64MB"}))
    # Nothing is read for epochs that nobody consumes, so the statistics are complete at the end.
    with foresee.Loader(root, **{**DEFAULTS, **options}, cache=memory, epochs=epochs) as loader:
        count = 0
        for _ in range(epochs):
            for batch in loader:
                if count in hold_at:
                    print_json(holds=True)
                    wait_until((pathlib.Path(job) / f"go-{count}").exists, what="the test's signal")
                count += 1
                print_json(batch=_digest(batch))
        meet(job, "end")
        print_json(stats=loader.stats(), ok=loader.audit()["ok"])
        meet(job, "reported")


def read_until_hold(program: Child) -> list[Any]:
    """Return the lines of a rank up to its next hold."""
    lines = []
    while "holds" not in (line := program.line()):
        lines.append(line)
    return lines


def meet(job: str, name: str) -> None:
    """Wait until all ranks of the job are here that have not been killed by the test."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = pathlib.Path(job)
    (folder / f"{name}-{rank}").touch()
    there = [(folder / f"{name}-{other}", folder / f"killed-{other}") for other in range(world)]
    wait_until(
        lambda: all(arrived.exists() or killed.exists() for arrived, killed in there),
        what="the arrival of all ranks",
    )


def main() -> None:
    """Run a rank under torchrun: read three epochs of a folder, and print the number of samples read at the origin."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    memory = foresee.Cache(ram="8MB")
    with foresee.Loader(sys.argv[1], **DEFAULTS, cache=memory) as loader:
        for _ in range(3):
            epoch(loader)
        dist.barrier()
        stats = loader.stats()
        reads = stats["operations"]["origin"]["read"]["ok"]
        print_json(rank=dist.get_rank(), tiers=stats["tiers"], read=reads["samples"] if reads else 0)
        dist.barrier()
    dist.destroy_process_group()


#: Arguments of loaders that a test does not change.
DEFAULTS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3}


def _digest(batch: foresee.Batch) -> str:
    return digest([(int(batch.ids[place]), bytes(batch.sample(place))) for place in range(len(batch))])
