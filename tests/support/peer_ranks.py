# SPDX-License-Identifier: Apache-2.0
"""Ranks of one job on several nodes, as torchrun starts them with several agents on this host."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import foresee
from support.data import digest
from support.node_ranks import DEFAULTS, launched
from support.processes import Child, child, print_json
from support.waiting import wait_until

#: A rank that prints a digest of each batch, and its statistics at the end; see `run_rank`.
RANK = """
    import json, sys
    from support.peer_ranks import run_rank
    run_rank(**json.loads(sys.argv[1]))
"""
#: What a node's first rank logs when the nodes have met.
MET = "this node exchanges samples"


@contextlib.contextmanager
def nodes_of_ranks(
    job: pathlib.Path,
    plan: Mapping[str, Any],
    *,
    nodes: int,
    per_node: int,
    env: Mapping[str, str] | None = None,
) -> Iterator[list[Child]]:
    """Start the ranks of a job on some nodes, with the argument ``plan`` of their program; ``job``: its `job_folder`."""
    import torch.distributed as dist

    world = nodes * per_node
    # torchrun's agents have such a store.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with contextlib.ExitStack() as stack:
        programs = []
        for rank in range(world):
            local = {
                "LOCAL_RANK": str(rank % per_node),
                "LOCAL_WORLD_SIZE": str(per_node),
                "GROUP_RANK": str(rank // per_node),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "FORESEE_ADDRESS": "127.0.0.1",
            }
            found = {**launched(rank, world, job), **local, **(env or {})}
            programs.append(stack.enter_context(child(RANK, json.dumps(plan), env=found, warm=True)))
        yield programs


def run_rank(
    root: str,
    epochs: int,
    cache: Mapping[str, Any],
    ends: Mapping[str, int],
    *,
    meets: bool,
    alone_from: int | None = None,
    go: str | None = None,
    state: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Read epochs in step with all ranks, and print a digest of each batch, then statistics.

    Args:
        root: folder of the data.
        epochs: number of epochs.
        cache: arguments of the cache.
        ends: number of steps of epochs that end early, by epoch.
        meets: whether the nodes exchange samples. Then all wait for that in the first step, and after an early end.
        alone_from: the epoch from which on ranks do not wait for each other.
        state: state of a loader with which they begin.
        go: a file for which all ranks but the first wait then, after a line.
        options: of the loader.
    """
    import torch.distributed as dist

    dist.init_process_group("gloo")
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("foresee").addHandler(handler)
    logging.getLogger("foresee").setLevel("INFO")
    if "disk" in cache:
        # Each node has disks of its own.
        cache = {**cache, "disk": f"{cache['disk']}-{os.environ['GROUP_RANK']}"}
    memory = foresee.Cache(**cache)
    meetings = 0
    with foresee.Loader(root, **{**DEFAULTS, **options}, cache=memory, epochs=epochs) as loader:
        if state is not None:
            loader.load_state_dict(state)
        for epoch in range(loader.state_dict()["epoch"], epochs):
            is_new = meetings == 0 or str(epoch - 1) in ends
            is_alone = alone_from is not None and epoch >= alone_from
            if epoch == alone_from and go is not None and dist.get_rank() > 0:
                print_json(holds=True)
                wait_until(pathlib.Path(go).exists, what="the test's signal")
            for step, batch in enumerate(loader):
                print_json(
                    batch=digest([(int(batch.ids[at]), bytes(batch.sample(at))) for at in range(len(batch))])
                )
                if is_new and step == 0:
                    meetings += 1
                    if meets and loader.stats()["node"]["role"] == "host":
                        _wait_for(messages, meetings)
                if not is_alone:
                    dist.barrier()
                if step + 1 == ends.get(str(epoch)):
                    break
        print_json(
            stats=loader.stats(), ok=loader.audit()["ok"], messages=messages, state=loader.state_dict()
        )
        if alone_from is None:
            dist.barrier()
    dist.destroy_process_group()


def _wait_for(messages: list[str], meetings: int) -> None:
    """Wait in the first rank of a node until the nodes have met so often."""
    try:
        wait_until(
            lambda: sum(text.startswith(MET) for text in messages) >= meetings, what=f"meeting {meetings}"
        )
    except AssertionError as error:
        raise AssertionError(f"{error}; the log so far: {messages}") from None
