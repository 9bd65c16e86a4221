# SPDX-License-Identifier: Apache-2.0
"""A small training for rank processes over real servers, and for their reference in one process."""

from __future__ import annotations

import functools
import hashlib
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import torch

import foresee.torch as ft
from foresee._runtime.ranks import detect
from support.processes import Child, descriptors, engine_threads, print_json, run
from support.ranks import Training
from support.reference import WIDTH, Net
from support.tensors import noise, state_of
from support.waiting import pause, wait_until

TOKEN = "a secret of 24 characters"
_RANK = "from support.gradients import main; main()"
_REFERENCE = "from support.gradients import report_reference; report_reference()"
#: Steps of ranks of which one is killed during training.
SURVIVING_STEPS = 60


def training(**arguments: Any) -> Training:
    return Training(
        Net,
        lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
        lambda step, rank: noise(4, 8, seed=100 * step + rank),
        arguments=arguments,
    )


def digest(state: Any) -> dict[str, str]:
    """Return a digest of every tensor of a state, by its path."""
    found: dict[str, str] = {}

    def visit(one: Any, path: str) -> None:
        if isinstance(one, torch.Tensor):
            memory = one.detach().contiguous().view(-1).view(torch.uint8)
            found[path] = hashlib.sha256(memory.numpy().tobytes()).hexdigest()
        elif isinstance(one, dict):
            for key, value in one.items():
                visit(value, f"{path}/{key}")

    visit(state, "")
    return found


def serve(*arguments: str, token: str | None = TOKEN, within: Sequence[str] = (), **variables: str) -> Child:
    """Start a `foresee serve`, whose first line has its address. ``within``: see ``Child``."""
    source = "import sys; from foresee.cli import main; sys.exit(main(sys.argv[1:]))"
    env = variables if token is None else {"FORESEE_TOKEN": token, **variables}
    return Child(source, "serve", "--json", *arguments, env=env, within=within)


def at_rest(server: Child) -> tuple[list[str], int]:
    """Return the threads and the number of open files of a server once no connection is left."""
    of_connections = ("foresee-greet", "foresee-read", "foresee-sum", "foresee-suspect", "foresee-write")

    def is_idle() -> bool:
        return not any(name.startswith(of_connections) for name in engine_threads(server.pid))

    def stays_idle() -> bool:
        # Another thread closes the files of an ended one, and an ending thread may start another.
        if not is_idle():
            return False
        pause(0.3)
        return is_idle()

    wait_until(stays_idle, what="the end of all connections")
    return sorted(engine_threads(server.pid)), descriptors(server.pid)


def rank(
    number: int,
    world: int,
    servers: list[str],
    *,
    token: str = TOKEN,
    mode: str = "train",
    recover: bool = True,
    local: int = 0,
) -> Child:
    """Start a rank in its own process, which reports its results. ``local``: ranks per node; 0: unknown."""
    env = {
        "RANK": str(number),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "FORESEE_TOKEN": token,
    }
    if local:
        env |= {"LOCAL_RANK": str(number % local), "LOCAL_WORLD_SIZE": str(local)}
    return Child(_RANK, mode, ",".join(servers), *(["recover"] if recover else []), env=env, warm=True)


def in_a_store(
    number: int, world: int, port: int, servers: list[str], env: dict[str, str] | None = None
) -> Child:
    """Start a rank without a launcher, whose program gives torch's process group a store at ``port``."""
    arguments = ("store", ",".join(servers), "recover", str(number), str(world), str(port))
    return Child(_RANK, *arguments, env=env, warm=True)


def torchrun(
    world: int, servers: list[str], env: dict[str, str] | None = None, *, mode: str = "group"
) -> Child:
    """Start ranks under torchrun, in torch's process group; each reports its results.

    ``mode``: in a ``group`` each exchanges by itself, on a ``node`` they do as one.
    """
    return under_torchrun(world, "support.gradients", mode, ",".join(servers), "recover", env=env)


def under_torchrun(
    world: int, module: str, *arguments: str, restarts: int = 0, env: dict[str, str] | None = None
) -> Child:
    """Run a module's ``main`` as every rank."""
    source = """
        import sys
        from support.warm import fork_ranks_of_torchrun
        from torch.distributed.run import main
        fork_ranks_of_torchrun()
        world, restarts, module, *arguments = sys.argv[1:]
        counts = [f"--nproc-per-node={world}", f"--max-restarts={restarts}"]
        main(["--standalone", *counts, "-m", module, *arguments])
    """
    return Child(source, str(world), str(restarts), module, *arguments, env=env, warm=True)


def reference(world: int, local: int = 1) -> Child:
    """Start the reference in its own process, since torch rounds differently on more threads."""
    return Child(_REFERENCE, str(world), str(local), warm=True)


@functools.cache
def expected(world: int) -> dict[str, str]:
    """Return the digests of the reference; computed once for all tests."""
    (report,) = run(_REFERENCE, str(world), "1", warm=True)
    digests: dict[str, str] = report["digest"]
    return digests


def report_reference() -> None:
    """Run the reference process."""
    print_json(digest=digest(training().reference(int(sys.argv[1]), int(sys.argv[2]))))


def main() -> None:
    """Run a rank process."""
    mode, servers, *more = sys.argv[1:]
    if mode == "store":
        own, world, port = map(int, more[1:])
        store = torch.distributed.TCPStore("127.0.0.1", port)
        torch.distributed.init_process_group("gloo", store=store, rank=own, world_size=world)
    else:
        own = detect().rank
    if mode in ("group", "node"):
        torch.distributed.init_process_group("gloo")
    loss = "continue" if mode == "continue" else "raise"
    plan = training(
        servers=servers,
        timeout=20.0,
        recover="recover" in more,
        hierarchical=mode != "group",
        on_rank_loss=loss,
    )
    if mode == "continue":
        plan.steps = SURVIVING_STEPS
    try:
        torch.manual_seed(0)
        model: Any = Net(WIDTH + own) if mode == "other shape" else Net()
        if own:
            with torch.no_grad():
                for tensor in model.parameters():
                    tensor.mul_(0.5)
        optimizer = plan.optimizer(model)
        model, optimizer = ft.synchronize(model, optimizer, **plan.arguments)
        for step in itertools.count() if mode == "forever" else range(plan.steps):
            optimizer.zero_grad()
            plan.loss(model, plan.batch(step, own)).backward()
            optimizer.step()
            if mode in ("forever", "report", "continue"):
                print_json(step=step)
        if mode in ("train", "report", "continue", "group", "node", "store"):
            state = state_of(model, optimizer)
            variance = float(model.norm.running_var.min())
            print_json(digest=digest(state), stats=dict(optimizer.stats()), least_variance=variance)
    except Exception as error:
        print_json(error=type(error).__name__, text=str(error), rank=getattr(error, "rank", None))


if __name__ == "__main__":
    main()
