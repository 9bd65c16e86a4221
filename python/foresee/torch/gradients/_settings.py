# SPDX-License-Identifier: Apache-2.0
"""Descriptions of what has to be equal on all ranks: settings, the optimizers' state and the weights.

A description is a list of lines, each with a remedy; the first line that differs names the difference. The digest of a
tensor is two sums of its memory as integers, computed on its device.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = [
    "Line",
    "describe_settings",
    "describe_state",
    "digest",
    "encode",
    "find_difference",
    "fingerprint",
]

#: The setting, its value, and the consequence of a difference with the remedy.
Line = tuple[str, str, str]

# Words that are digested at once: 32 MiB.
_CHUNK = 1 << 22
# Tensors of more elements are shown as a digest.
_SHOWN = 16
_DRIFT = "so weights would drift apart"
_SAME = f"{_DRIFT}; give every rank the same"
_LOAD = f"{_DRIFT}; load the same checkpoint on every rank, before synchronize()"
_COUNT = f"{_DRIFT}; step each optimizer as often on every rank"
# Arguments that do not change what is computed.
_OTHER_REMEDIES = {
    "recover": "so not every rank would wait for a lost server's replacement; give every rank the same"
}


def describe_settings(
    optimizers: Sequence[torch.optim.Optimizer], arguments: Mapping[str, object], counts: Mapping[str, int]
) -> list[Line]:
    """Describe the arguments of ``synchronize``, the counts, and every setting of every optimizer."""
    lines = [(f"{name}=", repr(value), _OTHER_REMEDIES.get(name, _SAME)) for name, value in arguments.items()]
    lines += [(name, str(count), _COUNT) for name, count in counts.items()]
    for number, optimizer in enumerate(optimizers):
        place = "" if len(optimizers) == 1 else f"optimizers[{number}]."
        lines.append((f"{place}class", _plain_name(optimizer), _SAME))
        lines += [
            (f"{place}{key}", _shown(value), _SAME)
            for key, value in optimizer.__dict__.items()
            if not key.startswith("_") and isinstance(value, (bool, int, float, str, type(None)))
        ]
        for i, group in enumerate(optimizer.param_groups):
            where = f"{place}param_groups[{i}]"
            lines.append((f"parameters in {where}", str(len(group["params"])), _SAME))
            lines += [
                (f"{where}[{key!r}]", _shown(value), _SAME)
                for key, value in sorted(group.items())
                if key not in ("params", "param_names")
            ]
    return lines


def describe_state(
    optimizers: Sequence[torch.optim.Optimizer],
    names: Mapping[int, str],
    weights: Sequence[torch.Tensor] = (),
) -> list[Line]:
    """Describe the state of every parameter, and the values of ``weights``. ``names``: by ``id()``."""
    lines = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = names.get(id(parameter), "a parameter")
                state = optimizer.state.get(parameter, {})
                lines += [
                    (f"state {key!r} of {name}", _shown(value), _LOAD)
                    for key, value in sorted(state.items(), key=lambda item: str(item[0]))
                ]
    lines += [(f"weight {names.get(id(one), '')}", _shown(one, short=False), _LOAD) for one in weights]
    return lines


def digest(lines: Sequence[Line]) -> bytes:
    """Return 16 bytes that are equal where the lines are."""
    return hashlib.blake2b(encode(lines), digest_size=16).digest()


def encode(lines: Sequence[Line]) -> bytes:
    """Return the lines as bytes."""
    return json.dumps(lines).encode()


def find_difference(mine: bytes, theirs: bytes) -> tuple[str, str | None, str | None, str] | None:
    """Return the first setting that differs, both values (None if missing), and the remedy."""
    one, other = ({line[0]: line for line in json.loads(text)} for text in (mine, theirs))
    for key, line in {**one, **other}.items():
        a, b = one.get(key), other.get(key)
        if a is None or b is None or a[1] != b[1]:
            return key, None if a is None else a[1], None if b is None else b[1], line[2]
    return None


def fingerprint(optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """Return a text that changes with the settings of all groups, without reading a device; cheap."""
    return repr(
        [
            [(key, _cheap(value)) for key, value in group.items() if key not in ("params", "param_names")]
            for optimizer in optimizers
            for group in optimizer.param_groups
        ]
    )


def _plain_name(optimizer: torch.optim.Optimizer) -> str:
    # The user's class, also of a synchronized optimizer.
    base = next(one for one in type(optimizer).__mro__ if not one.__name__.startswith("Synchronized"))
    return base.__qualname__


def _cheap(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist() if value.device.type == "cpu" and value.numel() <= _SHOWN else None
    return value if isinstance(value, (bool, int, float, str, tuple, list, type(None))) else None


def _shown(value: Any, *, short: bool = True) -> str:
    if isinstance(value, torch.Tensor):
        if short and value.numel() <= _SHOWN and value.layout == torch.strided:
            return f"{value.dtype} {value.tolist()}"
        return f"{value.dtype} {tuple(value.shape)} with digest {_tensor_digest(value)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_shown(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(_shown, value)) + ")"
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)
    return f"a {type(value).__qualname__}"


def _tensor_digest(tensor: torch.Tensor) -> str:
    """Return two wrapping 64-bit sums over the memory, one of them weighted by position."""
    if tensor.layout != torch.strided or not tensor.numel():
        return "of nothing"
    memory = tensor.detach().contiguous().view(-1).view(torch.uint8)
    total = weighted = 0
    for start in range(0, memory.numel(), 8 * _CHUNK):
        part = memory[start : start + 8 * _CHUNK]
        if part.numel() % 8:
            part = torch.nn.functional.pad(part, (0, 8 - part.numel() % 8))
        words = part.clone().view(torch.int64)
        place = torch.arange(1, words.numel() + 1, device=words.device)
        total += int(words.sum())
        weighted += int((words * place).sum()) + start * int(words.sum())
    return f"{total % (1 << 64):016x}{weighted % (1 << 64):016x}"
