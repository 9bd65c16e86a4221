# SPDX-License-Identifier: Apache-2.0
"""A small training for rank processes over real servers, the same for their reference in one process."""

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
from support.processes import Child, descriptors, engine_threads, run, say
from support.ranks import Training
from support.reference import WIDTH, Net
from support.tensors import noise, state_of
from support.waiting import pause, wait_until

TOKEN = "a secret of 24 characters"
_RANK = "from support.gradients import main; main()"
_REFERENCE = "from support.gradients import say_reference; say_reference()"
#: Of ranks of which one is killed: enough for the others to be in the midst of it.
SURVIVING_STEPS = 60


def training(**arguments: Any) -> Training:
    return Training(
        Net,
        lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
        lambda step, rank: noise(4, 8, seed=100 * step + rank),
        arguments=arguments,
    )


def digest(state: Any) -> dict[str, str]:
    """Of every tensor of a state, by its path."""
    found: dict[str, str] = {}

    def walk(one: Any, path: str) -> None:
        if isinstance(one, torch.Tensor):
            memory = one.detach().contiguous().view(-1).view(torch.uint8)
            found[path] = hashlib.sha256(memory.numpy().tobytes()).hexdigest()
        elif isinstance(one, dict):
            for key, value in one.items():
                walk(value, f"{path}/{key}")

    walk(state, "")
    return found


def serve(*arguments: str, token: str | None = TOKEN, within: Sequence[str] = (), **variables: str) -> Child:
    """A `foresee serve` of its own; its first line says where. ``within``: see ``Child``."""
    source = "import sys; from foresee.cli import main; sys.exit(main(sys.argv[1:]))"
    env = variables if token is None else {"FORESEE_TOKEN": token, **variables}
    return Child(source, "serve", "--json", *arguments, env=env, within=within)


def at_rest(server: Child) -> tuple[list[str], int]:
    """Its threads, and how many files it has open, once no thread of a job or of a stranger is left."""
    visits = ("foresee-greet", "foresee-hear", "foresee-sum", "foresee-suspect", "foresee-tell")

    def nobody() -> bool:
        return not any(name.startswith(visits) for name in engine_threads(server.pid))

    def for_a_while() -> bool:
        # The files of a thread that has ended are another thread's to close, and one that ends may begin another.
        if not nobody():
            return False
        pause(0.3)
        return nobody()

    wait_until(for_a_while, what="the end of all visits")
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
    """A rank in a process of its own; it says what happens to it. ``local``: ranks of its machine, if it is told."""
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
    """A rank whose program gives torch's process group a store, at ``port``; no launcher has told it anything."""
    arguments = ("store", ",".join(servers), "recover", str(number), str(world), str(port))
    return Child(_RANK, *arguments, env=env, warm=True)


def torchrun(
    world: int, servers: list[str], env: dict[str, str] | None = None, *, mode: str = "group"
) -> Child:
    """Ranks under torchrun, in torch's process group; each says what happens to it.

    ``mode``: in a ``group`` each exchanges by itself, on a ``machine`` they do as one.
    """
    return under_torchrun(world, "support.gradients", mode, ",".join(servers), "recover", env=env)


def under_torchrun(
    world: int, module: str, *arguments: str, restarts: int = 0, env: dict[str, str] | None = None
) -> Child:
    """A module's ``main`` as every rank."""
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
    """One process that does what all ranks do. Not the test's own: torch rounds otherwise on more threads."""
    return Child(_REFERENCE, str(world), str(local), warm=True)


@functools.cache
def expected(world: int) -> dict[str, str]:
    """What the reference ends with; computed once for all tests."""
    (said,) = run(_REFERENCE, str(world), "1", warm=True)
    digests: dict[str, str] = said["digest"]
    return digests


def say_reference() -> None:
    """Of the reference process."""
    say(digest=digest(training().reference(int(sys.argv[1]), int(sys.argv[2]))))


def main() -> None:
    """Of a rank process."""
    mode, servers, *more = sys.argv[1:]
    if mode == "store":
        own, world, port = map(int, more[1:])
        store = torch.distributed.TCPStore("127.0.0.1", port)
        torch.distributed.init_process_group("gloo", store=store, rank=own, world_size=world)
    else:
        own = detect().rank
    if mode in ("group", "machine"):
        torch.distributed.init_process_group("gloo")
    loss = "continue" if mode == "survive" else "raise"
    plan = training(
        servers=servers,
        timeout=20.0,
        recover="recover" in more,
        hierarchical=mode != "group",
        on_rank_loss=loss,
    )
    if mode == "survive":
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
        for step in itertools.count() if mode == "for ever" else range(plan.steps):
            optimizer.zero_grad()
            plan.loss(model, plan.batch(step, own)).backward()
            optimizer.step()
            if mode in ("for ever", "telling", "survive"):
                say(step=step)
        if mode in ("train", "telling", "survive", "group", "machine", "store"):
            state = state_of(model, optimizer)
            variance = float(model.norm.running_var.min())
            say(digest=digest(state), stats=dict(optimizer.stats()), least_variance=variance)
    except Exception as error:
        say(error=type(error).__name__, text=str(error), rank=getattr(error, "rank", None))


if __name__ == "__main__":
    main()
