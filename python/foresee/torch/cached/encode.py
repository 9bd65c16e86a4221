# SPDX-License-Identifier: Apache-2.0
"""Samples as flat bytes: a schema, numbers and buffers, without pickle unless it is allowed.

Layout: u32 length of the schema, u32 count of words; the words, i64 each; the schema; buffers at multiples of 16
bytes. The schema has what samples of one dataset have in common: structure, types, dtypes and keys. Words have the
rest: numbers, shapes and places of buffers. So one decoder per schema is made once, and a sample costs a few
microseconds.

Decoded arrays and tensors are views of the given bytes, each of its own range.
"""

from __future__ import annotations

import ast
import functools
import io
import pickle
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from foresee.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    Take = Callable[[], int]
    Decoder = Callable[[bytearray, Take], Any]

ENCODING = 1
"""Version of the layout. Samples on the disk that have another one are not read."""
_HEADER = struct.Struct("<II")
_DOUBLE = struct.Struct("<d")
_WORD = struct.Struct("<q")
_ALIGN = 16
_DECODERS_MAX = 4096
_WORD_MAX = 2**63
# Dtypes that NumPy does not have travel as numbers of their size.
_CARRIERS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.int16),
    4: np.dtype(np.int32),
    8: np.dtype(np.int64),
}
_KEYS = (str, int, bool, bytes, type(None))
_REMEDY = (
    "return tensors, arrays, images, numbers, bytes, str, None, or tuples, lists and dicts of them, or pass "
    "allow_pickle=True"
)


def encode(value: Any, *, allow_pickle: bool = False) -> bytes:
    """Return ``value`` as bytes.

    Args:
        value: a tensor of the CPU, an array without objects, an image of PIL, a number, bytes, str, None, or a tuple,
            list or dict of them, of exactly these types.
        allow_pickle: pickle everything else.

    Raises:
        ConfigError: it is none of these; the message has its type and place.
    """
    encoder = _Encoder(allow_pickle=allow_pickle)
    try:
        schema = repr(encoder.schema(value, "")).encode("utf-8", "surrogatepass")
    except RecursionError:
        raise ConfigError("the sample is nested too deeply, or contains itself") from None
    return encoder.bytes(schema)


def decode(data: bytearray) -> Any:
    """Return the value of ``encode``. Its tensors and arrays refer to ``data``."""
    length, count = _HEADER.unpack_from(data)
    start = 8 + 8 * count
    take = iter(struct.unpack_from(f"<{count}q", data, 8)).__next__
    return _decoder(bytes(data[start : start + length]))(data, take)


class _Encoder:
    """Words and buffers of one sample."""

    def __init__(self, *, allow_pickle: bool) -> None:
        self._allow_pickle = allow_pickle
        self._words: list[int] = []
        self._buffers: list[bytes] = []
        self._places: list[int] = []

    def schema(self, value: Any, path: str) -> tuple[Any, ...]:
        """Add a value; return its schema. ``path``: its place in the sample."""
        kind = type(value)
        if value is None:
            return ("none",)
        if kind is bool or (kind is int and -_WORD_MAX <= value < _WORD_MAX):
            self._words.append(int(value))
            return (kind.__name__,)
        if kind is int:
            self._add(str(value).encode())
            return ("long",)
        if kind is float or kind is complex:
            parts = (value,) if kind is float else (value.real, value.imag)
            self._words += [_WORD.unpack(_DOUBLE.pack(part))[0] for part in parts]
            return (kind.__name__,)
        if kind is str or kind is bytes or kind is bytearray:
            self._add(value.encode("utf-8", "surrogatepass") if kind is str else bytes(value))
            return (kind.__name__,)
        if kind is tuple or kind is list:
            return (kind.__name__, *(self.schema(each, f"{path}[{i}]") for i, each in enumerate(value)))
        if kind is dict and all(_is_key(key) for key in value):
            fields = [(key, self.schema(each, f"{path}[{key!r}]")) for key, each in value.items()]
            return ("dict", *fields)
        return self._object(value, path)

    def _object(self, value: Any, path: str) -> tuple[Any, ...]:
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu":
                raise ConfigError(
                    f"{_place(path)} is a tensor on {value.device}; the dataset has to return tensors of the CPU"
                )
            if type(value) is torch.Tensor and value.layout is torch.strided and not value.is_quantized:
                return self._tensor(value, path)
        elif (type(value) is np.ndarray or isinstance(value, np.generic)) and _is_plain(value.dtype):
            return self._array(value)
        elif _is_picture(value):
            width, height = value.size
            self._words += [width, height]
            self._add(value.tobytes())
            return ("picture", value.mode, self.schema(dict(value.info), f"{path}.info"))
        if not self._allow_pickle:
            raise ConfigError(f"{_place(path)} is of type {_name(value)}; {_REMEDY}")
        self._add(_pickled(value, path))
        return ("pickle",)

    def _tensor(self, value: torch.Tensor, path: str) -> tuple[Any, ...]:
        if value.requires_grad:
            raise ConfigError(f"{_place(path)} is a tensor that requires gradients; return tensor.detach()")
        axes = _axes(value.stride())
        flat = value.resolve_conj().resolve_neg().permute(axes).contiguous()
        self._add(flat.reshape(-1).view(torch.uint8).numpy().tobytes() if flat.numel() else b"", sized=False)
        self._words += flat.shape
        return ("tensor", str(value.dtype).removeprefix("torch."), value.dim(), _unless_sorted(axes))

    def _array(self, value: Any) -> tuple[Any, ...]:
        descr = np.lib.format.dtype_to_descr(value.dtype)
        if isinstance(value, np.generic):
            self._add(np.asarray(value).tobytes(), sized=False)
            return ("scalar", descr)
        axes = _axes(value.strides)
        flat = value.transpose(axes)
        self._add(flat.tobytes(), sized=False)
        self._words += flat.shape
        return ("array", descr, value.ndim, _unless_sorted(axes), bool(value.flags.writeable))

    def _add(self, data: bytes, *, sized: bool = True) -> None:
        """Add a buffer: the word of its place, and with ``sized`` that of its length."""
        self._places.append(len(self._words))
        self._buffers.append(data)
        self._words.append(0)
        if sized:
            self._words.append(len(data))

    def bytes(self, schema: bytes) -> bytes:
        """Return all parts together."""
        end = 8 + 8 * len(self._words) + len(schema)
        parts = [_HEADER.pack(len(schema), len(self._words)), b"", schema]
        for place, data in zip(self._places, self._buffers, strict=True):
            padding = -end % _ALIGN
            self._words[place] = end + padding
            parts += [bytes(padding), data]
            end += padding + len(data)
        parts[1] = struct.pack(f"<{len(self._words)}q", *self._words)
        return b"".join(parts)


def _place(path: str) -> str:
    return f"the sample's value {path}" if path else "the sample"


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _is_key(key: object) -> bool:
    return type(key) in _KEYS or (type(key) is tuple and all(map(_is_key, key)))


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether the description of the dtype, as in ``.npy`` files, has all of it."""
    if dtype.hasobject:
        return False
    return np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype)) == dtype


def _is_picture(value: Any) -> bool:
    image = sys.modules.get("PIL.Image")
    return image is not None and type(value) is image.Image and value.palette is None


def _axes(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes from the slowest to the fastest, so that ``channels_last`` and Fortran order are preserved."""
    return tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))


def _unless_sorted(axes: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if axes == tuple(range(len(axes))) else axes


class _Pickler(pickle.Pickler):
    """A pickler that refuses tensors of other devices."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            raise ConfigError(
                f"the sample has a tensor on {value.device}; the dataset has to return tensors of the CPU"
            )
        return NotImplemented


def _pickled(value: object, path: str) -> bytes:
    out = io.BytesIO()
    try:
        _Pickler(out, protocol=5).dump(value)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{_place(path)} is of type {_name(value)}, which cannot be pickled ({type(error).__name__}: {error}); "
            "return values of other types"
        ) from error
    return out.getvalue()


# ---- decoders, one per schema


@functools.lru_cache(_DECODERS_MAX)
def _decoder(schema: bytes) -> Decoder:
    return _compile(ast.literal_eval(schema.decode("utf-8", "surrogatepass")))


def _compile(schema: tuple[Any, ...]) -> Decoder:
    kind, *rest = schema
    if kind in ("tuple", "list"):
        parts = [_compile(each) for each in rest]
        if kind == "list":
            return lambda data, take: [part(data, take) for part in parts]
        return lambda data, take: tuple([part(data, take) for part in parts])
    if kind == "dict":
        fields = [(key, _compile(each)) for key, each in rest]
        return lambda data, take: {key: part(data, take) for key, part in fields}
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    return _OBJECTS[kind](*rest)


def _float(take: Take) -> float:
    number: float = _DOUBLE.unpack(_WORD.pack(take()))[0]
    return number


def _buffer(data: bytearray, take: Take) -> bytes:
    start, length = take(), take()
    return bytes(memoryview(data)[start : start + length])


_SIMPLE: dict[str, Decoder] = {
    "none": lambda _data, _take: None,
    "bool": lambda _data, take: bool(take()),
    "int": lambda _data, take: take(),
    "long": lambda data, take: int(_buffer(data, take)),
    "float": lambda _data, take: _float(take),
    "complex": lambda _data, take: complex(_float(take), _float(take)),
    "str": lambda data, take: _buffer(data, take).decode("utf-8", "surrogatepass"),
    "bytes": _buffer,
    "bytearray": lambda data, take: bytearray(_buffer(data, take)),
    "pickle": lambda data, take: pickle.loads(_buffer(data, take)),
}


def _array_decoder(descr: Any, dimensions: int, axes: tuple[int, ...] | None, is_writable: bool) -> Decoder:
    read = _flat_decoder(np.lib.format.descr_to_dtype(descr), dimensions)
    inverse = None if axes is None else np.argsort(axes)

    def array(data: bytearray, take: Take) -> Any:
        value = read(data, take)
        if inverse is not None:
            value = value.transpose(inverse)
        if not is_writable:
            value.flags.writeable = False
        return value

    return array


def _tensor_decoder(name: str, dimensions: int, axes: tuple[int, ...] | None) -> Decoder:
    dtype: torch.dtype = getattr(torch, name)
    try:
        carrier, is_carried = torch.empty(0, dtype=dtype).numpy().dtype, False
    except TypeError:
        carrier, is_carried = _CARRIERS[dtype.itemsize], True
    read = _flat_decoder(carrier, dimensions)
    inverse = None if axes is None else np.argsort(axes).tolist()
    from_numpy = torch.from_numpy

    def tensor(data: bytearray, take: Take) -> torch.Tensor:
        value = from_numpy(read(data, take))
        if is_carried:
            value = value.view(dtype)
        return value if inverse is None else value.permute(inverse)

    return tensor


def _flat_decoder(dtype: np.dtype[Any], dimensions: int) -> Decoder:
    array, places = np.ndarray, range(dimensions)

    def flat(data: bytearray, take: Take) -> Any:
        start = take()
        return array([take() for _ in places], dtype, data, start)

    return flat


def _scalar_decoder(descr: Any) -> Decoder:
    read = _flat_decoder(np.lib.format.descr_to_dtype(descr), 0)
    return lambda data, take: read(data, take)[()]


def _picture_decoder(mode: str, info: tuple[Any, ...]) -> Decoder:
    read_info = _compile(info)

    def picture(data: bytearray, take: Take) -> Any:
        from PIL import Image

        width, height = take(), take()
        value = Image.frombytes(mode, (width, height), _buffer(data, take))
        value.info = read_info(data, take)
        return value

    return picture


_OBJECTS: dict[str, Callable[..., Decoder]] = {
    "array": _array_decoder,
    "tensor": _tensor_decoder,
    "scalar": _scalar_decoder,
    "picture": _picture_decoder,
}
