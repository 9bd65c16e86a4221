# SPDX-License-Identifier: Apache-2.0
"""Run one arm of a part: send its task to the ranks, and turn their results into a raw line."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from common import proof, runs
from common.hosts import ROOT, Cluster, Process, ProcessFailed, cluster_or_processes
from common.report import show
from common.runs import Run

from . import measures
from .data import Data
from .sizes import ARMS, PEERS, Settings, Size
from .table import SETTING
from .task import Result, Task

PROGRAMS = Path(__file__).resolve().parents[1]
RANK, ORIGIN = "rank.py", "origin.py"
#: The host of the bucket; ranks have one each.
BUCKET_HOST = "bucket"
PEERS_PYTHON = ROOT / ".bench-venv" / "bin" / "python"
#: Numbers of the processes of arms with worker processes; all other arms share process 0.
NUMBERS = {arm: 1 + at for at, arm in enumerate(dict.fromkeys(itertools.chain(*ARMS.values())))}
#: Arms that one rank runs, and that deliver no epochs.
ALONE = ("native", "reads")
#: Number of the process of peers' settings without worker processes, which have the peers' environment.
NO_WORKERS_OF_PEERS = 1 + len(NUMBERS)


@dataclasses.dataclass
class Session:
    """State of one call of this program."""

    seed: int
    timeout_s: float
    about: dict[str, Any]
    #: File to which each run is appended when it ends.
    save: Path | None
    #: Folder on a fast disk whose folders are buckets; files that arms cache are next to it.
    home: Path
    cluster: Cluster
    #: Folder with one folder per host for sockets of caches.
    sockets: Path
    endpoint: str = ""
    runs: list[Run] = dataclasses.field(default_factory=list)

    def serve(self) -> None:
        """Start the bucket."""
        answer = self._origin(
            {"do": "serve", "folder": str(self.home), "address": self.cluster.addresses[BUCKET_HOST]}
        )
        self.endpoint = answer["url"]

    def close(self) -> None:
        """Stop the bucket."""
        self.cluster.process(BUCKET_HOST, ORIGIN).close()

    def measure(
        self,
        size: Size,
        data: Data,
        arm: str,
        settings: Settings,
        repeat: int,
        *,
        compute_s: float = 0.0,
        is_trial: bool = False,
        known: Mapping[str, float] = MappingProxyType({}),
    ) -> Run:
        """Run one arm once; a failure makes the run void, with the reason.

        Args:
            size: the part.
            data: its samples.
            arm: one of the part, or one of `ALONE`.
            settings: of the arm.
            repeat: number of the repeat.
            compute_s: seconds of compute per sample.
            is_trial: a run of the grid, with another seed; it is not recorded.
            known: values of the run that are known before it, such as predictions.
        """
        run = Run(size.part, arm, repeat, size.hosts, size.data_bytes)
        seed = self.seed + is_trial
        try:
            with tempfile.TemporaryDirectory(prefix="foresee-bench-", dir=self.home.parent) as scratch:
                tasks = [
                    self._task(size, data, arm, settings, compute_s, seed, rank, scratch)
                    for rank in range(1 if arm in ALONE else size.hosts)
                ]
                results, counted = self._run(size, tasks)
            run.values = {**known, **{f"{SETTING}{name}": n for name, n in settings.items()}}
            if results[0].epochs:
                run.values |= measures.values_of(size, results, counted, tasks[0].read) | {
                    "compute_s": compute_s
                }
                orders = [
                    [
                        ids[: task.read]
                        for ids in proof.orders(
                            task.samples, ranks=task.ranks, rank=task.rank, seed=task.seed, epochs=task.epochs
                        )
                    ]
                    for task in tasks
                ]
                run.void = proof.void(
                    [result.epochs for result in results], orders, data.crcs, size.sample_bytes
                )
            else:
                run.values |= results[0].values
        except (ProcessFailed, OSError) as error:
            run.void = str(error)
            # The other ranks wait for the failed one, or are in another state.
            self.cluster.drop(RANK)
        run.machine = {**self.about, "content": data.content, "load": os.getloadavg(), "time": time.time()}
        self._report(run, is_trial=is_trial)
        return run

    def _task(
        self,
        size: Size,
        data: Data,
        arm: str,
        settings: Settings,
        compute_s: float,
        seed: int,
        rank: int,
        scratch: str,
    ) -> Task:
        return Task(
            arm=arm,
            place=data.place(self.endpoint),
            samples=size.samples,
            sample_bytes=size.sample_bytes,
            batch=size.batch,
            epochs=size.epochs,
            seed=seed,
            rank=rank,
            ranks=size.ranks,
            compute_s=compute_s,
            cache_bytes=size.cache_bytes,
            window=size.window,
            read=size.native_samples if arm in ALONE else size.read_of_epoch(arm),
            scratch=scratch,
            settings=settings,
        )

    def _run(self, size: Size, tasks: Sequence[Task]) -> tuple[list[Result], dict[str, Any]]:
        """Run the ranks of one run; return their results, and the counters of the proxy."""
        ranks = [self._rank(task) for task in tasks]
        for process, task in zip(ranks, tasks, strict=True):
            process.send({"do": "open", "task": task.to_json()})
        self._answers(ranks)
        self._origin({"do": "begin", "latency_ms": size.latency_ms})
        for process in ranks:
            process.send({"do": "run"})
        results = [Result.from_json(answer) for answer in self._answers(ranks)]
        return results, self._origin({"do": "counters"})

    def _rank(self, task: Task) -> Process:
        """Return the process of a rank. Arms with worker processes have their own, as threads must not cross a fork."""
        number = NUMBERS[task.arm] if task.settings.get("workers") else 0
        if task.arm in PEERS and not PEERS_PYTHON.exists():
            raise ProcessFailed(f"{PEERS_PYTHON.relative_to(ROOT)} is missing: run `make bench-setup`")
        if task.arm in PEERS and not number:
            number = NO_WORKERS_OF_PEERS
        host = f"r{task.rank}"
        sockets = self.sockets / host
        sockets.mkdir(exist_ok=True)
        return self.cluster.process(
            host,
            RANK,
            number,
            python=str(PEERS_PYTHON) if task.arm in PEERS else sys.executable,
            environment={"XDG_RUNTIME_DIR": str(sockets)},
        )

    def _answers(self, processes: Sequence[Process]) -> list[dict[str, Any]]:
        deadline = time.monotonic() + self.timeout_s
        return [process.answer(deadline) for process in processes]

    def _origin(self, command: Mapping[str, Any]) -> dict[str, Any]:
        process = self.cluster.process(BUCKET_HOST, ORIGIN)
        process.send(command)
        return process.answer(time.monotonic() + self.timeout_s)

    def _report(self, run: Run, *, is_trial: bool) -> None:
        if not is_trial:
            self.runs.append(run)
            if self.save:
                runs.write(self.save, run)
        shown = ("gets_per_s", "read_s", "waited_s", "step_s", "seconds", "hit_over_dict_us")
        settings = " ".join(
            f"{name.removeprefix(SETTING)}={n:g}"
            for name, n in run.values.items()
            if name.startswith(SETTING)
        )
        result = ", ".join(f"{name} {run.values[name]:.4g}" for name in shown if name in run.values)
        show(f"{run.part:<16} {run.arm:<16} {settings:<40} {f'void: {run.void}' if run.void else result}")


@contextlib.contextmanager
def hosts(ranks: int, logs: Path) -> Iterator[tuple[Cluster, str]]:
    """Create the hosts of the bucket and of the ranks; yield them and their kind: `namespaces`, or why there are none."""
    names = [BUCKET_HOST, *(f"r{rank}" for rank in range(ranks))]
    with cluster_or_processes(names, logs, PROGRAMS) as made:
        yield made
