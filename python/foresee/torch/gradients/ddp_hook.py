# SPDX-License-Identifier: Apache-2.0
"""``ft.ddp_hook``: torch's DistributedDataParallel, with our exchange in place of its all-reduce.

DDP has its own loop: a bucket is a tensor, its index is its class, and the overlap is with backward alone. It is one
line, with any optimizer, stock clipping and ``GradScaler``. Backward never blocks in the hook: a thread waits.

    state = ft.DdpState(servers="10.0.0.1:7000")
    ddp.register_comm_hook(state, ft.ddp_hook)

DDP forms its buckets anew after the first step, so the plan is keyed by (index, size) and agreed on again when an
unknown bucket comes. Averages are sums in rank order, divided once; DDP's own bits differ, with its bucket sizes too.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from foresee.errors import Closed, ConfigError
from foresee.torch._exchange import GradientExchange, TensorSpec
from foresee.torch.gradients import _settings
from foresee.torch.gradients._agreement import compare
from foresee.torch.gradients._plan import DEVICES
from foresee.torch.gradients._servers import START_TIMEOUT_S, TIMEOUT_S, open_group, server_faults
from foresee.torch.gradients._tracing import Tracing, timeline_faults
from foresee.torch.gradients._transfer import Transfer, transfer_for

__all__ = ["DdpState", "ddp_hook"]

_Key = tuple[int, int, torch.dtype]
#: How often a backward pass that waits checks for ``close()``, in seconds.
_POLL_S = 0.1


class Bucket(Protocol):
    """What is used of ``torch.distributed.GradBucket``."""

    def index(self) -> int:
        """Position in this backward pass, from 0."""

    def buffer(self) -> torch.Tensor:
        """Gradients, flat."""

    def is_last(self) -> bool:
        """Whether the backward pass ends with it."""


@dataclass(eq=False)
class _Backward:
    """The buckets of one backward pass."""

    pushed: dict[int, torch.futures.Future[torch.Tensor]] = field(default_factory=dict)
    """Of the plan, by id; in flight."""
    deferred: list[tuple[_Key, torch.Tensor, torch.futures.Future[torch.Tensor]]] = field(
        default_factory=list
    )
    """Unknown to the plan: they are pushed when the ranks have agreed."""
    complete_s: float = 0.0
    """When the hook got its last bucket: from then on nothing hides what is in flight."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set when all of its averages were received, or failed to be."""


class DdpState:
    """State of ``ddp_hook`` between buckets: one per DistributedDataParallel.

    Args:
        servers: as for ``synchronize``; likewise ``comm_dtype``, ``on_rank_loss``, ``recover``, ``timeout``,
            ``start_timeout``, ``secret_file``, ``hierarchical`` and ``timeline``, whose waits are those of buckets
            after the last one was computed: the time that backward does not hide. Buckets are copied to recover: DDP
            uses their memory again.

    Raises:
        ConfigError: every wrong argument at once.
    """

    def __init__(
        self,
        *,
        servers: str | Sequence[str] | GradientExchange,
        comm_dtype: Literal["f32", "f16", "bf16"] | None = None,
        on_rank_loss: Literal["raise", "continue"] = "raise",
        recover: bool = True,
        timeout: float = TIMEOUT_S,
        start_timeout: float = START_TIMEOUT_S,
        secret_file: str | None = None,
        hierarchical: bool = True,
        timeline: str | None = None,
    ) -> None:
        faults = server_faults(
            servers,
            comm_dtype=comm_dtype,
            on_rank_loss=on_rank_loss,
            recover=recover,
            timeout=timeout,
            start_timeout=start_timeout,
            secret_file=secret_file,
            hierarchical=hierarchical,
        )
        faults += timeline_faults(timeline, servers)
        if faults:
            raise ConfigError(faults)
        tracing = Tracing(timeline)
        self._group = open_group(
            servers,
            comm_dtype=comm_dtype,
            on_rank_loss=on_rank_loss,
            recover=recover,
            timeout=timeout,
            start_timeout=start_timeout,
            secret_file=secret_file,
            hierarchical=hierarchical,
            timeline=tracing.events,
        )
        self._timeline = tracing.of(self._group)
        # With the first plan; the plan itself has the other arguments that have to be equal.
        self._compared = _settings.described([], {"recover": recover}, {})
        # For where the first bucket is, and all others.
        self._transfer: Transfer | None = None
        self._device = torch.device("cpu")
        self._specs: list[TensorSpec] = []
        self._ids: dict[_Key, int] = {}
        self._round = 0
        # Since when the backward pass that is waited for is exposed, or its last round; of the thread alone.
        self._since_s = 0.0
        self._exposed_s = self._exposed_last_round_s = 0.0
        self._backward = _Backward()
        self._failure: BaseException | None = None
        self._jobs: queue.SimpleQueue[_Backward | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_finish_all, args=(weakref.ref(self), self._jobs), name="foresee-ddp", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def stats(self) -> Mapping[str, float]:
        """Counters of the exchange, and how long averages were exposed.

        ``exposed_s``: seconds from the last bucket of a backward pass until all of its averages are received, which is
        what DDP waits for. On a CUDA device it counts from the host's last bucket, when the device may still compute.
        """
        return {
            **self._group.exchange.stats(),
            "rounds": self._round,
            "exposed_s": self._exposed_s,
            "exposed_last_round_s": self._exposed_last_round_s,
        }

    def close(self) -> None:
        """Leave the exchange. A backward pass afterwards raises."""
        self._failure = self._failure or Closed("this DdpState was closed")
        self._jobs.put(None)
        self._group.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        if self._transfer is not None:
            self._transfer.close()
        if self._timeline is not None:
            self._timeline.close()

    def push(self, bucket: Bucket) -> torch.futures.Future[torch.Tensor]:
        """Push a bucket, or set it aside until the plan knows it; its average comes with the future."""
        if self._failure is not None:
            raise self._failure
        # DDP writes averages, and the next gradients, into a bucket that the exchange may still read: it gets a copy.
        gradients = bucket.buffer().detach()
        if gradients.device.type not in DEVICES:
            raise ConfigError(
                f"bucket {bucket.index()} is on {gradients.device}; gradients travel from memory of the CPU or of CUDA "
                "devices"
            )
        future: torch.futures.Future[torch.Tensor]
        if gradients.device.type == "cpu":
            gradients, future = gradients.clone(), torch.futures.Future()
        else:
            # A device's bucket is pushed as a copy, made before the average is there; DDP waits for it in its streams.
            future = torch.futures.Future(devices=[gradients.device])
        if self._transfer is None:
            self._transfer, self._device = transfer_for(self._group.exchange, [gradients]), gradients.device
        key = (bucket.index(), gradients.numel(), gradients.dtype)
        id_ = self._ids.get(key)
        if id_ is None:
            self._backward.deferred.append((key, gradients, future))
        else:
            self._transfer.push(self._specs[id_], gradients)
            self._backward.pushed[id_] = future
        if bucket.is_last():
            backward, self._backward = self._backward, _Backward()
            backward.complete_s = time.perf_counter()
            self._jobs.put(backward)
            if torch._C._current_graph_task_id() >= 0:  # noqa: SLF001 - as DDP calls it
                engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001
                # Before DDP's own: it would make a RuntimeError of whatever a future failed with.
                engine.queue_callback(functools.partial(self._await, backward))
        return future

    def _await(self, backward: _Backward) -> None:
        """At the end of a backward pass, where DDP waits next: raise what ended the exchange, as it is."""
        while not backward.over.wait(_POLL_S):
            self._check()
        self._check()

    def finish(self, backward: _Backward) -> None:
        """Finish a backward pass: end the round, hand out the averages. On the thread."""
        waiting = dict(backward.pushed)
        futures = [*backward.pushed.values(), *(future for _, _, future in backward.deferred)]
        self._since_s = backward.complete_s
        try:
            if waiting or not backward.deferred:
                self._end_round(waiting)
            if backward.deferred:
                self._agree([key for key, _, _ in backward.deferred])
                assert self._transfer is not None, "a bucket came before"
                for key, sent, future in backward.deferred:
                    self._transfer.push(self._specs[self._ids[key]], sent)
                    waiting[self._ids[key]] = future
                self._end_round({self._ids[key]: future for key, _, future in backward.deferred})
        except BaseException as error:  # noqa: BLE001 - it is raised again where backward waits
            self._failure = error
            for future in futures:
                if not future.done():
                    future.set_exception(error)  # type: ignore[arg-type]
        finally:
            backward.over.set()

    def _end_round(self, waiting: Mapping[int, torch.futures.Future[torch.Tensor]]) -> None:
        """End a round in which ``waiting`` were pushed."""
        transfer = self._transfer
        assert transfer is not None, "a bucket came before"
        transfer.end_round()
        self._round += 1
        if self._timeline is not None:
            self._timeline.end_round()
        # All before any: with its last average DDP goes on, and may push the buckets of an earlier layout again.
        transfer.wait([spec.id for spec in self._specs], self._check)
        # Before backward goes on, so that ``stats()`` after it counts this round.
        now = time.perf_counter()
        self._exposed_last_round_s = now - self._since_s
        self._exposed_s += self._exposed_last_round_s
        self._since_s = now
        for id_, future in waiting.items():
            # DDP copies it into the bucket before the next backward, so the exchange may have its memory back then.
            future.set_result(transfer.average(self._specs[id_], self._device))

    def _agree(self, keys: Sequence[_Key]) -> None:
        for index, numel, dtype in keys:
            id_ = self._ids[index, numel, dtype] = len(self._specs)
            nbytes = numel * dtype.itemsize
            name = f"bucket {index} of {nbytes} bytes"
            self._specs.append(
                TensorSpec(id_, name, "bucket", dtype, (numel,), (1,), nbytes, min(index, 255))
            )
        if self._timeline is not None:
            self._timeline.finish()
        self._group.agree(self._specs)
        if self._compared:
            compare(self._group, self._compared)
            self._compared = []
        if self._timeline is not None:
            self._timeline.begin_plan(self._round)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


def ddp_hook(state: DdpState, bucket: Bucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over all ranks; give it to ``DistributedDataParallel.register_comm_hook``.

    Never blocks. The future's value is valid until this bucket's next backward.
    """
    return state.push(bucket)


# DDP compares annotations with its own types, and these are strings here.
ddp_hook.__annotations__.clear()


def _finish_all(state: weakref.ref[DdpState], jobs: queue.SimpleQueue[_Backward | None]) -> None:
    """Body of the thread: holds the state only while there is work, so that a dropped one can go."""
    while (backward := jobs.get()) is not None:
        alive = state()
        if alive is None:
            return
        alive.finish(backward)
        del alive, backward
