# SPDX-License-Identifier: Apache-2.0
"""Copies to and from CUDA devices, on streams of their own; the host never waits for a device.

Gradients must not be captured into a CUDA graph: a replay runs no hook.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from foresee.errors import ConfigError

__all__ = ["CudaCopies"]

#: Smaller memory is not pinned: locking its pages would cost more than it saves.
_PINNED_MIN = 64 << 10


@dataclass
class _CudaCopy:
    host: torch.Tensor
    done: torch.cuda.Event

    def wait(self) -> None:
        self.done.synchronize()


class CudaCopies:
    """Copies to and from all CUDA devices of this process, on two streams per device."""

    def __init__(self) -> None:
        self._out: dict[torch.device, torch.cuda.Stream] = {}
        self._in: dict[torch.device, torch.cuda.Stream] = {}
        self._locked: dict[int, bool] = {}
        """Whether the pages of a receive buffer are locked, by its address."""

    def to_host(self, tensor: torch.Tensor) -> _CudaCopy:
        """Copy after the work that is queued on the present stream.

        Raises:
            ConfigError: during capture of a CUDA graph.
        """
        device = tensor.device
        current = torch.cuda.current_stream(device)
        if torch.cuda.is_current_stream_capturing():
            raise ConfigError(
                "gradients are being captured into a CUDA graph, whose replays run no hooks; train without graphs, "
                "or capture forward passes only"
            )
        stream = self._stream(self._out, device)
        # torch does not reuse this memory before the copy is complete.
        host = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, pin_memory=True)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            host.copy_(tensor, non_blocking=True)
            done = stream.record_event()
        tensor.record_stream(stream)
        return _CudaCopy(host, done)

    def to_device(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Copy concurrently with the present stream; work that is queued on it from here on waits for the copy."""
        self._lock(host)
        stream, current = self._stream(self._in, device), torch.cuda.current_stream(device)
        with torch.cuda.stream(stream):
            made = torch.empty_strided(host.shape, host.stride(), dtype=host.dtype, device=device)
            made.copy_(host, non_blocking=True)
        current.wait_stream(stream)
        made.record_stream(current)
        return made

    def record_reads(self) -> Callable[[], None]:
        """Return a function that waits for the copies to all devices."""
        events = [stream.record_event() for stream in self._in.values()]

        def wait() -> None:
            for event in events:
                event.synchronize()

        return wait

    def close(self) -> None:
        """Unlock pages before their memory is freed."""
        runtime = torch.cuda.cudart()
        for stream in self._in.values():
            stream.synchronize()
        for address, locked in self._locked.items():
            if locked:
                with contextlib.suppress(RuntimeError):
                    runtime.cudaHostUnregister(address)
        self._locked.clear()

    def _lock(self, host: torch.Tensor) -> None:
        """Lock the pages of a receive buffer; otherwise the host waits for each copy from it."""
        address, nbytes = host.data_ptr(), host.numel() * host.element_size()
        if nbytes >= _PINNED_MIN and address not in self._locked:
            # If pages cannot be locked, copies are correct and slower.
            self._locked[address] = int(torch.cuda.cudart().cudaHostRegister(address, nbytes, 0)) == 0

    @staticmethod
    def _stream(streams: dict[torch.device, torch.cuda.Stream], device: torch.device) -> torch.cuda.Stream:
        if device not in streams:
            streams[device] = torch.cuda.Stream(device)
        return streams[device]
