# SPDX-License-Identifier: Apache-2.0
"""The model trace, ``model.json``: sizes and times of the gradients of one model on one host.

It has, for each parameter tensor in order of first use, its bytes and its backward, forward and update times, and free
facts about the measurement. ``docs/formats/model-trace.md`` describes the format. Each fault names the tensor and the
field; unknown keys are refused.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

from foresee._schema import files
from foresee.errors import ConfigError
from foresee.network.model import Step

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FORMAT", "VERSION", "Fact", "ModelTrace", "Tensor", "dumps", "loads", "read", "write"]

FORMAT = "foresee-model-trace"
VERSION = 1

Fact = str | int | float | bool

_MAX_BYTES = 2**52
_MAX_FILE_BYTES = 256 * 2**20
_MAX_FAULTS = 20
_FILE_KEYS = ("format", "version", "model", "facts", "tensors")
_TENSOR_KEYS = ("name", "bytes", "order", "backward", "forward", "update")
_TIMES = ("backward", "forward", "update")


@dataclass(frozen=True)
class Tensor:
    """One parameter tensor of a model."""

    name: str
    """Name in the model; not empty, unique."""
    bytes: int
    """Bytes of its gradient on the wire, one way; 0 to 2**52."""
    backward: float
    """Seconds from the gradient of the tensor used next until this one's is ready; finite, 0 or more."""
    forward: float
    """Seconds of its part of the forward pass; finite, 0 or more."""
    update: float = 0.0
    """Seconds of the optimizer's update; finite, 0 or more."""


@dataclass(frozen=True)
class ModelTrace:
    """Bytes and times of a model's gradients.

    Raises:
        ConfigError: a name is empty or repeated, a number is outside its range, there is no tensor, or a fact is no
            text, number or truth value. All faults at once.

    >>> trace = ModelTrace("tiny", (Tensor("w", 8, 0.2, 0.1), Tensor("b", 4, 0.1, 0.1)), {"batch": 3})
    >>> loads(dumps(trace)) == trace
    True
    >>> trace.step().oracle
    0.5
    """

    model: str
    """Name of the model; not empty."""
    tensors: tuple[Tensor, ...]
    """In order of first use by the forward pass."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """Facts about the measurement, such as ``batch``, ``device``, ``date``. Only ``batch``, samples per rank and step,
    is used in computations.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", tuple(self.tensors))
        object.__setattr__(self, "facts", dict(self.facts))
        faults = list(_faults(self))
        if faults:
            raise ConfigError(_limited(faults))

    def step(self) -> Step:
        """Return the step whose layers are the tensors.

        Raises:
            ConfigError: the sum of all times is below a picosecond, or that of all bytes exceeds 2**52.
        """
        return Step(
            [tensor.bytes for tensor in self.tensors],
            backward=[float(tensor.backward) for tensor in self.tensors],
            forward=[float(tensor.forward) for tensor in self.tensors],
            update=[float(tensor.update) for tensor in self.tensors],
            names=[tensor.name for tensor in self.tensors],
        )

    @property
    def batch(self) -> int | None:
        """The fact ``batch`` if it is a number of samples, else None."""
        batch = self.facts.get("batch")
        return batch if _is_whole(batch) and 1 <= batch < 2**32 else None


def read(path: str | os.PathLike[str]) -> ModelTrace:
    """Read a model trace.

    Raises:
        ConfigError: not a model trace, of another version, or with faults: all of them, each with the file, the
            tensor and the field.
        OSError: the file cannot be read.
    """
    content = files.read(path, _MAX_FILE_BYTES)
    return files.named(path, lambda: loads(content))


def write(trace: ModelTrace, path: str | os.PathLike[str]) -> None:
    """Write ``trace`` to ``path``: to a temporary file next to it, which is renamed.

    Raises:
        OSError: the file cannot be written.
    """
    files.write(path, dumps(trace))


def dumps(trace: ModelTrace) -> str:
    """Return the text of the file, a line per fact and per tensor, with exact numbers."""
    tensors = (
        {key: order if key == "order" else getattr(tensor, key) for key in _TENSOR_KEYS}
        for order, tensor in enumerate(trace.tensors)
    )
    head = (("format", FORMAT), ("version", VERSION), ("model", trace.model))
    lines = [f"  {_json(key)}: {_json(value)}," for key, value in head]
    lines += ['  "facts": {']
    lines += _with_commas(f"    {_json(key)}: {_json(value)}" for key, value in trace.facts.items())
    lines += ["  },", '  "tensors": [']
    lines += _with_commas(f"    {_json(tensor)}" for tensor in tensors)
    lines += ["  ]"]
    return "\n".join(["{", *lines, "}", ""])


def loads(text: str | bytes) -> ModelTrace:
    """Parse the text of a model trace.

    Raises:
        ConfigError: as :func:`read`, without the file's name.
    """
    try:
        content = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"no JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{_kind(content)} instead of an object; this is no model trace")
    if content.get("format") != FORMAT:
        raise ConfigError(
            f"format is {_shown(content.get('format'))}, not {FORMAT!r}; this is no model trace"
        )
    version = content.get("version")
    if not _is_whole(version) or version != VERSION:
        raise ConfigError(
            f"version is {_shown(version)}; this program reads version {VERSION}: measure the trace again, or install "
            "the release that wrote it"
        )
    faults = _key_faults("the file", content, _FILE_KEYS)
    if faults:
        raise ConfigError(faults)
    model, facts, listed = content["model"], content["facts"], content["tensors"]
    if not isinstance(facts, dict):
        faults.append(f"facts is {_kind(facts)}; an object expected")
    if not isinstance(listed, list):
        faults.append(f"tensors is {_kind(listed)}; a list expected")
    if faults:
        raise ConfigError(faults)
    return ModelTrace(model, _parse_tensors(listed), facts)


def _parse_tensors(listed: list[Any]) -> tuple[Tensor, ...]:
    """Return tensors by their ``order``; ``ModelTrace`` checks their other values."""
    faults: list[str] = []
    by_order: dict[int, Tensor] = {}
    for at, entry in enumerate(listed):
        if not isinstance(entry, dict):
            faults.append(f"tensor {at}: {_kind(entry)}; an object expected")
            continue
        where = _where(entry.get("name"), at)
        key_faults = _key_faults(where, entry, _TENSOR_KEYS)
        if key_faults:
            faults += key_faults
            continue
        order = entry["order"]
        if not _is_whole(order) or not 0 <= order < len(listed):
            faults.append(
                f"{where}: order is {_shown(order)}; a whole number from 0 to {len(listed) - 1} expected"
            )
        elif order in by_order:
            faults.append(
                f"{where}: order is {order}, as of tensor {_shown(by_order[order].name)}; each comes once"
            )
        else:
            by_order[order] = Tensor(**{key: entry[key] for key in _TENSOR_KEYS if key != "order"})
    if faults:
        raise ConfigError(_limited(faults))
    return tuple(by_order[order] for order in sorted(by_order))


def _faults(trace: ModelTrace) -> Iterator[str]:
    if not _is_name(trace.model):
        yield f"model is {_shown(trace.model)}; a name expected, printable and not empty"
    facts: Mapping[str, object] = trace.facts  # values of a file may have other types
    for key, value in facts.items():
        if not _is_name(key):
            yield f"fact {_shown(key)}: a name expected, printable and not empty"
        elif not isinstance(value, (str, bool, int, float)):
            yield f"fact {_shown(key)} is {_kind(value)}; a text, a number or a truth value expected"
        elif isinstance(value, str) and not value.isprintable():
            yield f"fact {_shown(key)} is {_shown(value)}; one line of printable text expected"
        elif isinstance(value, float) and not math.isfinite(value):
            yield f"fact {_shown(key)} is {value}; a finite number expected"
    if not trace.tensors:
        yield "tensors is empty; a model has at least one"
    names: set[str] = set()
    for at, tensor in enumerate(trace.tensors):
        where = _where(tensor.name, at)
        if not _is_name(tensor.name):
            yield f"{where}: name is {_shown(tensor.name)}; a text expected, printable and not empty"
        elif tensor.name in names:
            yield f"{where}: the name stands twice; each tensor once"
        else:
            names.add(tensor.name)
        if not _is_whole(tensor.bytes) or not 0 <= tensor.bytes <= _MAX_BYTES:
            yield f"{where}: bytes is {_shown(tensor.bytes)}; a whole number from 0 to 2**52 expected"
        for key in _TIMES:
            value = getattr(tensor, key)
            if not _is_seconds(value):
                yield f"{where}: {key} is {_shown(value)}; seconds expected, finite and 0 or more"


def _key_faults(where: str, entry: dict[str, Any], known: tuple[str, ...]) -> list[str]:
    missing = [f"{where}: {key} is missing" for key in known if key not in entry]
    return missing + [
        f"{where}: {_shown(key)} is no key of this format; known are {', '.join(known)}"
        for key in entry
        if key not in known
    ]


def _where(name: object, at: int) -> str:
    return f"tensor {_shown(name)}" if isinstance(name, str) and name else f"tensor {at}"


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != "" and value.isprintable()


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_seconds(value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value)) and value >= 0
    except OverflowError:
        return False


def _limited(faults: list[str]) -> list[str]:
    """Return the first faults and the number of others."""
    more = len(faults) - _MAX_FAULTS
    return faults[:_MAX_FAULTS] + ([f"and {more} more"] if more > 0 else [])


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object without repeated keys, of which ``json`` would silently use the last."""
    entry: dict[str, Any] = {}
    for key, value in pairs:
        if key in entry:
            where = f"tensor {_shown(entry['name'])}" if "name" in entry else "the file"
            raise ConfigError(f"{where}: {_shown(key)} stands twice in one object")
        entry[key] = value
    return entry


def _refuse_constant(word: str) -> float:
    raise ConfigError(f"{word} stands where a number is expected; write what was measured")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _with_commas(lines: Iterator[str]) -> list[str]:
    every = list(lines)
    return [*(f"{line}," for line in every[:-1]), *every[-1:]]


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(
        type(value), "a number" if isinstance(value, (int, float)) else f"a {type(value).__name__}"
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
