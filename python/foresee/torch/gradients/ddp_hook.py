# SPDX-License-Identifier: Apache-2.0
"""``ft.ddp_hook``: DistributedDataParallel with Foresee's exchange in place of the all-reduce.

    state = ft.DdpState(servers="10.0.0.1:7000")
    ddp.register_comm_hook(state, ft.ddp_hook)

A bucket is one tensor of the plan, and its index is its class. The exchange overlaps with backward alone; a thread
waits for averages, so the hook never blocks. It works with any optimizer, stock clipping and ``GradScaler``. DDP
rebuilds its buckets after the first step, so the plan has a tensor per (index, size, dtype), and ranks agree again on
an unknown one. Averages are sums in rank order, divided once; the bits of DDP itself differ, and depend on its bucket
sizes.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from foresee.errors import Closed, ConfigError
from foresee.torch._exchange import GradientExchange, TensorSpec
from foresee.torch.gradients import _settings
from foresee.torch.gradients._agreement import compare_lines
from foresee.torch.gradients._plan import DEVICES
from foresee.torch.gradients._servers import START_TIMEOUT_S, TIMEOUT_S, ServerArguments
from foresee.torch.gradients._tracing import Tracing, find_timeline_faults
from foresee.torch.gradients._transfer import Transfer, transfer_for

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

__all__ = ["DdpState", "ddp_hook"]

_Key = tuple[int, int, torch.dtype]
#: Seconds between two checks for ``close()`` during a wait of backward.
_POLL_S = 0.1


@dataclass(eq=False)
class _Backward:
    """The buckets of one backward pass."""

    pushed: dict[int, torch.futures.Future[torch.Tensor]] = field(default_factory=dict)
    """Buckets in flight, by id in the plan."""
    deferred: list[tuple[_Key, torch.Tensor, torch.futures.Future[torch.Tensor]]] = field(
        default_factory=list
    )
    """Buckets that are not in the plan yet: pushed once the ranks have agreed."""
    complete_s: float = 0.0
    """Time of the last bucket: from then on, communication is exposed."""
    finished: threading.Event = field(default_factory=threading.Event)
    """Set when all averages were received, or the exchange failed."""


class DdpState:
    """State of ``ddp_hook`` between buckets: one per DistributedDataParallel.

    Args:
        servers: as in ``synchronize``, like the other arguments. Buckets are copied to recover, since DDP reuses their
            memory. The waits in ``timeline`` are those after the last bucket, which backward does not hide.

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
        arguments = ServerArguments(
            servers=servers,
            comm_dtype=comm_dtype,
            on_rank_loss=on_rank_loss,
            recover=recover,
            timeout=timeout,
            start_timeout=start_timeout,
            secret_file=secret_file,
            hierarchical=hierarchical,
        )
        faults = arguments.find_faults() + find_timeline_faults(timeline, servers)
        if faults:
            raise ConfigError(faults)
        tracing = Tracing(timeline)
        self._group = arguments.open_group(tracing.events)
        self._timeline = tracing.open_timeline(self._group)
        # Compared with the first plan, which has the other arguments that must be equal.
        self._compared = _settings.describe_settings([], {"recover": recover}, {})
        # Made for the device of the first bucket, which is that of all others.
        self._transfer: Transfer | None = None
        self._device = torch.device("cpu")
        self._specs: list[TensorSpec] = []
        self._ids: dict[_Key, int] = {}
        self._round = 0
        # Start of the present exposed time; of the thread alone.
        self._exposed_since_s = 0.0
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
        """Return counters of the exchange, and the exposed time.

        ``exposed_s``: seconds from the last bucket of a backward pass until all of its averages are received. On a CUDA
        device it counts from the host's last bucket, when the device may still compute.
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

    def push(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Push a bucket, or defer it until it is in the plan; the future receives its average."""
        if self._failure is not None:
            raise self._failure
        # DDP writes averages, and the next gradients, into a bucket that the exchange may still read: it gets a copy.
        gradients = bucket.buffer().detach()
        if gradients.device.type not in DEVICES:
            raise ConfigError(
                f"bucket {bucket.index()} is on {gradients.device}; gradients are sent from memory of the CPU or of "
                "CUDA devices"
            )
        future: torch.futures.Future[torch.Tensor]
        if gradients.device.type == "cpu":
            gradients, future = gradients.clone(), torch.futures.Future()
        else:
            # The transfer copies a device's bucket. DDP waits for the average in its own streams.
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
                # Before DDP's own callback, which would turn every error of a future into a RuntimeError.
                engine.queue_callback(functools.partial(self._wait_for, backward))
        return future

    def _wait_for(self, backward: _Backward) -> None:
        """Wait for a backward pass to finish, and raise the error that ended the exchange."""
        while not backward.finished.wait(_POLL_S):
            self._check()
        self._check()

    def finish(self, backward: _Backward) -> None:
        """End the round of a backward pass and complete its futures. On the thread."""
        waiting = dict(backward.pushed)
        futures = [*backward.pushed.values(), *(future for _, _, future in backward.deferred)]
        self._exposed_since_s = backward.complete_s
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
            backward.finished.set()

    def _end_round(self, waiting: Mapping[int, torch.futures.Future[torch.Tensor]]) -> None:
        """End a round in which ``waiting`` were pushed."""
        transfer = self._transfer
        assert transfer is not None, "a bucket came before"
        transfer.end_round()
        self._round += 1
        if self._timeline is not None:
            self._timeline.end_round()
        # Wait for all averages before the first future completes: DDP may then push buckets of an earlier layout again.
        transfer.wait([spec.id for spec in self._specs], self._check)
        # Counted before backward continues, so that ``stats()`` after it includes this round.
        now = time.perf_counter()
        self._exposed_last_round_s = now - self._exposed_since_s
        self._exposed_s += self._exposed_last_round_s
        self._exposed_since_s = now
        for id_, future in waiting.items():
            # DDP copies the average into the bucket before the next backward, when the exchange may reuse its memory.
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
            compare_lines(self._group, self._compared)
            self._compared = []
        if self._timeline is not None:
            self._timeline.begin_plan(self._round)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


def ddp_hook(state: DdpState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over all ranks; for ``DistributedDataParallel.register_comm_hook``.

    Never blocks. The future's value is valid until this bucket's next backward.
    """
    return state.push(bucket)


# DDP compares annotations with its own types; here they are strings.
ddp_hook.__annotations__.clear()


def _finish_all(state: weakref.ref[DdpState], jobs: queue.SimpleQueue[_Backward | None]) -> None:
    """Finish backward passes; holds the state only meanwhile, so that one that is dropped can be collected."""
    while (backward := jobs.get()) is not None:
        alive = state()
        if alive is None:
            return
        alive.finish(backward)
        del alive, backward
