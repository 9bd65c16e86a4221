# SPDX-License-Identifier: Apache-2.0
"""Copies to and from CUDA devices, on streams of their own, without the host ever waiting for a device.

``_transfer`` decides what is copied when. Gradients may not be captured into a CUDA graph: a replay runs no hook.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from foresee.errors import ConfigError

__all__ = ["CudaCopies"]

#: Memory below this is copied as it is: to lock pages costs more than it brings.
_PINNED_MIN = 64 << 10


@dataclass
class _CudaCopy:
    host: torch.Tensor
    done: torch.cuda.Event

    def wait(self) -> None:
        self.done.synchronize()


class CudaCopies:
    """To and from all CUDA devices of this process; two streams for each that is used."""

    def __init__(self) -> None:
        self._out: dict[torch.device, torch.cuda.Stream] = {}
        self._in: dict[torch.device, torch.cuda.Stream] = {}
        self._locked: dict[int, bool] = {}
        """By first byte of a receive buffer: whether its pages are locked."""

    def to_host(self, tensor: torch.Tensor) -> _CudaCopy:
        """Behind what the present stream has been given so far.

        Raises:
            ConfigError: under capture of a CUDA graph.
        """
        device = tensor.device
        current = torch.cuda.current_stream(device)
        if torch.cuda.is_current_stream_capturing():
            raise ConfigError(
                "gradients are being captured into a CUDA graph, whose replays nobody hears of; train without graphs, "
                "or capture forward passes alone"
            )
        stream = self._stream(self._out, device)
        # torch keeps this memory from being used again before the copy is done.
        host = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, pin_memory=True)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            host.copy_(tensor, non_blocking=True)
            done = torch.cuda.Event()
            done.record(stream)
        tensor.record_stream(stream)
        return _CudaCopy(host, done)

    def to_device(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Beside what the present stream does; what it is given from here on comes after the copy."""
        self._lock(host)
        stream, current = self._stream(self._in, device), torch.cuda.current_stream(device)
        with torch.cuda.stream(stream):
            made = torch.empty_strided(host.shape, host.stride(), dtype=host.dtype, device=device)
            made.copy_(host, non_blocking=True)
        current.wait_stream(stream)
        made.record_stream(current)
        return made

    def record_reads(self) -> Callable[[], None]:
        """Of all devices."""
        events = []
        for stream in self._in.values():
            event = torch.cuda.Event()
            event.record(stream)
            events.append(event)

        def wait() -> None:
            for event in events:
                event.synchronize()

        return wait

    def close(self) -> None:
        """Unlock pages; they are about to be given back."""
        runtime = torch.cuda.cudart()
        for stream in self._in.values():
            stream.synchronize()
        for address, locked in self._locked.items():
            if locked:
                with contextlib.suppress(RuntimeError):
                    runtime.cudaHostUnregister(address)
        self._locked.clear()

    def _lock(self, host: torch.Tensor) -> None:
        """Lock the pages of a receive buffer: without, the host waits for each copy from there."""
        address, nbytes = host.data_ptr(), host.numel() * host.element_size()
        if nbytes >= _PINNED_MIN and address not in self._locked:
            # Where pages cannot be locked, copies are right and slower.
            self._locked[address] = int(torch.cuda.cudart().cudaHostRegister(address, nbytes, 0)) == 0

    @staticmethod
    def _stream(streams: dict[torch.device, torch.cuda.Stream], device: torch.device) -> torch.cuda.Stream:
        if device not in streams:
            streams[device] = torch.cuda.Stream(device)
        return streams[device]
