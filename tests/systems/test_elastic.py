# SPDX-License-Identifier: Apache-2.0
"""Elastic torchrun loses a node and gets it back: no sample of an epoch is lost or repeated."""

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
from support.recorded_example import write_rows
from support.waiting import WATCHDOG, wait_until
from torch.utils.data import DistributedSampler

SAMPLES, BATCH, EPOCHS = 90, 8, 3
PROGRAM = ROOT / "tests" / "support" / "recorded_example.py"

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]


class Nodes:
    """Agents of torchrun with one rank each, and their rendezvous port."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.rows = write_rows(folder / "rows.npy", SAMPLES)
        (folder / "records").mkdir()
        self.agents: list[subprocess.Popen[bytes]] = []
        self.new_rendezvous()

    def new_rendezvous(self) -> None:
        """Choose a new rendezvous port for nodes that start from now on."""
        self.hosts = True
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self) -> subprocess.Popen[bytes]:
        """Start a node."""
        holds = {str(size): str(self.folder / f"go-{size}") for size in (1, 2)}
        variables = {
            "EXAMPLE": "elastic",
            "RECORDED": str(self.folder / "records"),
            "HOLD": json.dumps(holds),
            "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests'}",
            "OMP_NUM_THREADS": "1",
        }
        # The first node hosts the rendezvous store, so the test does not kill it first.
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

    def batches(self) -> dict[str, list[list]]:
        """Return the batches so far by rank and process: epoch, position after the batch, ids."""
        return {
            file.name: [json.loads(line) for line in file.read_text().splitlines() if line.endswith("]")]
            for file in (self.folder / "records").iterdir()
        }

    def wait_for_batches(self, ranks: int, known: set[str]) -> set[str]:
        """Wait until ``ranks`` new processes are at their third batch; returns their files."""

        def found() -> set[str]:
            return {name for name, read in self.batches().items() if len(read) >= 3} - known

        wait_until(lambda: len(found()) == ranks or self.failed(), what="the third batch of each rank")
        assert not self.failed(), self.logs()
        return found()

    def failed(self) -> bool:
        return any(agent.poll() not in (None, 0, -signal.SIGKILL) for agent in self.agents)

    def logs(self) -> str:
        return "\n".join(file.read_text()[-3000:] for file in self.folder.glob("log-*"))

    def kill(self, agent: subprocess.Popen[bytes]) -> None:
        """Kill a node: its agent and the processes of the agent."""
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


def test_a_lost_and_restored_node_loses_and_repeats_no_sample(nodes: Nodes, tmp_path: pathlib.Path) -> None:
    nodes.start()
    lost = nodes.start()
    first = nodes.wait_for_batches(2, set())
    nodes.kill(lost)
    (tmp_path / "go-2").touch()
    alone = nodes.wait_for_batches(1, first)
    # Restart the job on both nodes, because a running agent may begin its next round without the other node.
    nodes.kill(nodes.agents[0])
    nodes.new_rendezvous()
    for agent in (nodes.start(), nodes.start()):
        agent.wait(timeout=WATCHDOG)
    assert not nodes.failed(), nodes.logs()

    # Checkpoints are written after every second step, so the third batch of a stopped process was not trained on.
    read = nodes.batches()
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
