# SPDX-License-Identifier: Apache-2.0
"""Run one arm of a part: start the nodes, send them their task, and turn their results into a raw line."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import proof, runs, s3
from common.hosts import NAMESPACES, Cluster, Process, ProcessFailed
from common.report import show
from common.runs import Run

from . import measures
from .data import Data
from .sizes import LATENCY_MS, Size
from .task import Result, Task

PROGRAMS = Path(__file__).resolve().parents[1]
RANK, ORIGIN = "rank.py", "origin.py"
#: The host of the bucket; nodes have one each.
BUCKET_HOST = "bucket"
#: Interfaces of a host in a namespace, and without.
INTERFACE, LOOPBACK = "eth0", "lo"


@dataclasses.dataclass
class Session:
    """State of one call of this program."""

    seed: int
    timeout_s: float
    about: dict[str, Any]
    #: File to which each run is appended when it ends.
    save: Path | None
    #: Folder on a fast disk whose folders are buckets.
    home: Path
    cluster: Cluster
    endpoint: str = ""
    runs: list[Run] = dataclasses.field(default_factory=list)
    #: Whether a rank has delivered wrong samples, or another order.
    is_wrong: bool = False
    #: Number of the last run; its processes have it too, so that their output stays apart.
    number: int = 0

    @property
    def has_links(self) -> bool:
        """Whether hosts have links, which can be shaped."""
        return bool(self.about["hosts"] == NAMESPACES)

    def serve(self) -> None:
        """Start the bucket."""
        address = self.cluster.addresses[BUCKET_HOST]
        self.endpoint = self._origin({"do": "serve", "folder": str(self.home), "address": address})["url"]

    def close(self) -> None:
        """Stop the bucket."""
        self.cluster.process(BUCKET_HOST, ORIGIN).close()

    def measure(self, size: Size, data: Data, arm: str, repeat: int) -> None:
        """Run one arm once; a failure makes the run void, with the reason."""
        self.number += 1
        run = Run(size.part, arm, repeat, size.nodes, size.data_bytes, size.bound_s)
        try:
            self._shape(size)
            results, counted = self._run(size, data, arm)
            run.values = measures.values_of(size, results, counted)
            run.void = self._fault(size, data, results)
            self.is_wrong |= bool(run.void)
            messages = [result.messages for result in results]
        except (ProcessFailed, OSError) as error:
            run.void, messages = str(error), []
        finally:
            self.cluster.drop(RANK)
        run.machine = {**self.about, "messages": messages, "load": os.getloadavg(), "time": time.time()}
        self.runs.append(run)
        if self.save:
            runs.write(self.save, run)
        _show(run)

    def _shape(self, size: Size) -> None:
        if self.has_links:
            self.cluster.shape({host_of(node): f"{size.link_mbit}mbit" for node in range(size.nodes)})
        elif size.part == "links":
            raise ProcessFailed(f"links are shaped between namespaces only; hosts: {self.about['hosts']}")

    def _run(self, size: Size, data: Data, arm: str) -> tuple[list[Result], dict[str, Any]]:
        """Run the nodes of one run; return their results, and the counters of the proxy."""
        task = Task(
            arm=arm,
            endpoint=self.endpoint,
            bucket=s3.BUCKET,
            prefix=data.prefix,
            samples=size.samples,
            sample_bytes=size.sample_bytes,
            batch=size.batch,
            epochs=size.epochs,
            seed=self.seed,
            ram_bytes=size.ram_bytes,
            step_s=size.step_s,
            interface=INTERFACE if self.has_links else "",
        )
        port = self._origin({"do": "store"})["port"]
        with tempfile.TemporaryDirectory(prefix="fs-") as sockets:
            nodes = [self._node(node, size.nodes, port, Path(sockets)) for node in range(size.nodes)]
            self._each(nodes, {"do": "open", "task": task.to_json()})
            self._origin({"do": "begin", "latency_ms": LATENCY_MS, "bytes_per_s": size.origin_bytes_per_s})
            results = [Result.from_json(answer) for answer in self._each(nodes, {"do": "run"})]
            counted = self._origin({"do": "counters"})
            self._each(nodes, {"do": "end"})
        return results, counted

    def _node(self, node: int, nodes: int, port: int, sockets: Path) -> Process:
        """Start the only rank of a node, as torchrun does."""
        host = host_of(node)
        runtime = sockets / host
        runtime.mkdir(mode=0o700)
        environment = {
            "RANK": str(node),
            "WORLD_SIZE": str(nodes),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(node),
            "MASTER_ADDR": self.cluster.addresses[BUCKET_HOST],
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": f"peers-{self.number}",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "XDG_RUNTIME_DIR": str(runtime),
            "GLOO_SOCKET_IFNAME": INTERFACE if self.has_links else LOOPBACK,
        }
        if not self.has_links:
            # There is no route to another host, by which the own address could be found.
            environment["FORESEE_ADDRESS"] = self.cluster.addresses[host]
        return self.cluster.process(host, RANK, self.number, environment=environment)

    def _each(self, nodes: Sequence[Process], command: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Send a command to all nodes and return their answers.

        Raises:
            ProcessFailed: some failed; the message has the errors of all, because one failure causes others.
        """
        deadline = time.monotonic() + self.timeout_s
        answers: list[dict[str, Any]] = []
        errors: list[str] = []
        for node in nodes:
            node.send(command)
        for node in nodes:
            try:
                answers.append(node.answer(deadline))
            except ProcessFailed as error:
                errors.append(str(error))
        if errors:
            raise ProcessFailed("; ".join(errors))
        return answers

    def _origin(self, command: Mapping[str, Any]) -> dict[str, Any]:
        process = self.cluster.process(BUCKET_HOST, ORIGIN)
        process.send(command)
        return process.answer(time.monotonic() + self.timeout_s)

    def _fault(self, size: Size, data: Data, results: Sequence[Result]) -> str:
        """Return how a run differs from what it must deliver; empty if it does not."""
        orders = [
            proof.orders(size.samples, ranks=size.nodes, rank=rank, seed=self.seed, epochs=size.epochs)
            for rank in range(size.nodes)
        ]
        return proof.void([result.epochs for result in results], orders, data.crcs, size.sample_bytes)


def host_of(node: int) -> str:
    """Return the name of a node's host."""
    return f"n{node}"


def _show(run: Run) -> None:
    shown = ("seconds", "run_over_bound", "origin_over_data", "later_wait_share", "from_peer", "met_s")
    result = ", ".join(f"{name} {run.values[name]:.4g}" for name in shown if name in run.values)
    show(f"{run.part:<8} {run.arm:<6} {f'void: {run.void}' if run.void else result}")
