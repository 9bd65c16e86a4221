# SPDX-License-Identifier: Apache-2.0
"""torchrun goes on without a node, and once more with it: no sample of an epoch is lost or repeated."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest
from support.processes import ROOT, plain_environment
from support.recorded import write_rows
from support.waiting import WATCHDOG, wait_until
from torch.utils.data import DistributedSampler

SAMPLES, BATCH, EPOCHS = 90, 8, 3
PROGRAM = ROOT / "tests" / "support" / "recorded.py"

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]


class Nodes:
    """Agents of torchrun, with one rank each, that meet at one port."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.rows = write_rows(folder / "rows.npy", SAMPLES)
        (folder / "records").mkdir()
        self.agents: list[subprocess.Popen[bytes]] = []
        self.meet()

    def meet(self) -> None:
        """Let the nodes that are started from here on meet at a port of their own."""
        self.hosts = True
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self) -> subprocess.Popen[bytes]:
        """One more node."""
        holds = {str(size): str(self.folder / f"go-{size}") for size in (1, 2)}
        variables = {
            "EXAMPLE": "elastic",
            "RECORDED": str(self.folder / "records"),
            "HOLD": json.dumps(holds),
            "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests'}",
            "OMP_NUM_THREADS": "1",
        }
        # The first node has the store at which all meet, so it is not the one to lose.
        host, self.hosts = f"is_host={int(self.hosts)}", False
        quick = f"{host},last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2"
        words = ["--nnodes", "1:2", "--max-restarts", "5", "--rdzv-backend", "c10d", "--rdzv-id", "test"]
        words += [
            "--rdzv-endpoint",
            f"127.0.0.1:{self.port}",
            "--rdzv-conf",
            quick,
            "--monitor-interval",
            "0.1",
        ]
        checkpoints = ["--checkpoints", str(self.folder / "checkpoints"), "--every", "2"]
        with (self.folder / f"log-{len(self.agents)}").open("wb") as log:
            agent = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *words, PROGRAM, self.rows, *checkpoints],
                env=plain_environment(variables),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.agents.append(agent)
        return agent

    def records(self) -> dict[str, list[list]]:
        """Of each rank and process, the batches so far: epoch, position after it, ids."""
        return {
            file.name: [json.loads(line) for line in file.read_text().splitlines() if line.endswith("]")]
            for file in (self.folder / "records").iterdir()
        }

    def wait_for_batches(self, ranks: int, but: set[str]) -> set[str]:
        """Wait until so many new processes are at their third batch; who they are."""

        def found() -> set[str]:
            return {name for name, read in self.records().items() if len(read) >= 3} - but

        wait_until(lambda: len(found()) == ranks or self.failed(), what="the third batch of each rank")
        assert not self.failed(), self.logs()
        return found()

    def failed(self) -> bool:
        return any(agent.poll() not in (None, 0, -signal.SIGKILL) for agent in self.agents)

    def logs(self) -> str:
        return "\n".join(file.read_text()[-3000:] for file in self.folder.glob("log-*"))

    def kill(self, agent: subprocess.Popen[bytes]) -> None:
        """Lose a node: its agent and what that started."""
        children = pathlib.Path(f"/proc/{agent.pid}/task/{agent.pid}/children")
        for child in children.read_text().split() if children.exists() else []:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        agent.kill()
        agent.wait()


@pytest.fixture
def nodes(tmp_path: pathlib.Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    for agent in made.agents:
        made.kill(agent)


def test_a_node_that_is_lost_and_comes_back_costs_no_sample(nodes: Nodes, tmp_path: pathlib.Path) -> None:
    nodes.start()
    lost = nodes.start()
    first = nodes.wait_for_batches(2, set())
    nodes.kill(lost)
    (tmp_path / "go-2").touch()
    alone = nodes.wait_for_batches(1, first)
    # The other node is back, and the job is started on both: a running agent may begin its next round without it.
    nodes.kill(nodes.agents[0])
    nodes.meet()
    for agent in (nodes.start(), nodes.start()):
        agent.wait(timeout=WATCHDOG)
    assert not nodes.failed(), nodes.logs()

    # A checkpoint is made after every second step; the third batch of those that were stopped was never trained on.
    read = nodes.records()
    orders = []
    for epoch in range(EPOCHS):
        sampler: DistributedSampler[int] = DistributedSampler(range(SAMPLES), 1, 0, seed=0)
        sampler.set_epoch(epoch)
        orders.append(list(sampler))

    def ids(name: str, epoch: int, stop: int | None = None) -> list[int]:
        return [i for of, _, batch in read[name][:stop] if of == epoch for i in batch]

    for name in first:
        assert ids(name, 0, 2) == orders[0][: 4 * BATCH][int(name[0]) :: 2]
    (name,) = alone
    assert ids(name, 0, 2) == orders[0][4 * BATCH : 6 * BATCH]
    last = sorted(set(read) - first - alone)
    assert [name[0] for name in last] == ["0", "1"], read.keys()
    for rank, name in enumerate(last):
        assert ids(name, 0) == orders[0][6 * BATCH :][rank::2]
        assert [ids(name, epoch) for epoch in (1, 2)] == [order[rank::2] for order in orders[1:]]
