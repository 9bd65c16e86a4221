# SPDX-License-Identifier: Apache-2.0
"""Messages between the training process and its workers: framed pickles, and descriptors.

Small data go over the socket, bytes through shared memory. Tensors and arrays are buffers outside of the pickle, so a
batch is copied once on each side. Both ends are the same program on one node, so there is no versioned format.
"""

from __future__ import annotations

import io
import pickle
import socket
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from foresee import _native
from foresee._loading import packages
from foresee._loading.data_source import Source
from foresee.torch.data.dataset import PortableSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from foresee._loading.batch import Bytes

_LENGTH = struct.Struct("<Q")
_DESCRIPTORS_MAX = 4
_MESSAGE_MAX = 2**40


def send(channel: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one message with descriptors."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    head = _LENGTH.pack(len(data))
    if descriptors:
        socket.send_fds(channel, [head], list(descriptors))
        head = b""
    channel.sendall(head + data)


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """Receive a message, with its descriptors under ``descriptors``; None when the other end is closed."""
    try:
        start, descriptors, _, _ = socket.recv_fds(
            channel, _LENGTH.size, _DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        return None
    rest = _exactly(channel, _LENGTH.size - len(start)) if start else None
    if rest is None:
        return None
    (length,) = _LENGTH.unpack(start + rest)
    if length > _MESSAGE_MAX:
        raise ConnectionError(f"a message of {length} bytes: the other end is no Foresee worker")
    body = _exactly(channel, length)
    if body is None:
        return None
    message: dict[str, Any] = pickle.loads(body)
    message["descriptors"] = descriptors
    return message


def _exactly(channel: socket.socket, count: int) -> bytearray | None:
    data = bytearray(count)
    view, have = memoryview(data), 0
    while have < count:
        try:
            got = channel.recv_into(view[have:])
        except ConnectionResetError:
            return None
        if got == 0:
            return None
        have += got
    return data


def dump(value: object, *, out_of_band: bool = False) -> tuple[bytes, list[Bytes]]:
    """Pickle ``value``, with code by value where it has no importable name.

    ``out_of_band``: exclude the bytes of tensors and arrays from the pickle, and return them as buffers.
    """
    file = io.BytesIO()
    buffers: list[Bytes] = []

    def take(buffer: pickle.PickleBuffer) -> bool:
        try:
            buffers.append(np.frombuffer(buffer.raw(), dtype=np.uint8))
        except BufferError:
            return True
        return False

    _Pickler(file, take if out_of_band else None).dump(value)
    return file.getvalue(), buffers


def load(data: bytes, *, buffers: Sequence[Bytes] = (), index: int | None = None) -> Any:
    """Unpickle the result of ``dump``; ``index``: descriptor of the index file."""
    return _Unpickler(io.BytesIO(data), buffers, index).load()


class _Pickler(packages.cloudpickle().Pickler):  # type: ignore[misc] # untyped
    def __init__(self, file: io.BytesIO, take: Callable[[pickle.PickleBuffer], bool] | None) -> None:
        super().__init__(file, protocol=5, buffer_callback=take)
        self._out_of_band = take is not None

    def persistent_id(self, value: object) -> tuple[str, Mapping[str, str]] | None:
        # The index is sent as a descriptor, shared by all workers, not as bytes.
        return (value.source.uri, value.source.options) if isinstance(value, PortableSource) else None

    def reducer_override(self, value: Any) -> Any:
        if self._out_of_band and type(value) is torch.Tensor and _plain(value):
            flat = value.detach().contiguous().reshape(-1)
            raw: Any = flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)
            return _tensor, (pickle.PickleBuffer(raw.data), value.dtype, tuple(value.shape))
        return super().reducer_override(value)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, buffers: Sequence[Bytes], index: int | None) -> None:
        super().__init__(file, buffers=buffers)
        self._index = index

    def persistent_load(self, place: tuple[str, Mapping[str, str]]) -> PortableSource:
        if self._index is None:
            raise pickle.UnpicklingError("an index outside of a worker")
        uri, options = place
        file = f"/proc/self/fd/{self._index}"
        return PortableSource(Source(_native.Index.open(file), uri, options, file))


def _plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _tensor(raw: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not len(raw):
        return torch.empty(shape, dtype=dtype)
    # The tensor behind the array, if there is one, so that torch knows whether its memory is pinned.
    owner = raw.base if isinstance(raw, np.ndarray) else None
    flat = owner if isinstance(owner, torch.Tensor) else torch.from_numpy(np.asarray(raw, dtype=np.uint8))
    return flat.view(dtype).reshape(shape)
