# SPDX-License-Identifier: Apache-2.0
"""Values at the start of tensors that no round carries: frozen parameters, and buffers that are not sent.

All ranks begin with rank 0's, as under DistributedDataParallel. Digests are compared first, so tensors that are equal
on all ranks are not sent.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from foresee.torch._exchange import TensorSpec
from foresee.torch._rank_group import RankGroup
from foresee.torch.gradients import _settings
from foresee.torch.gradients._plan import WIRE_DTYPES, plain

__all__ = ["Named", "share"]

Named = tuple[str, torch.Tensor]
# Bytes that are copied to CPU memory and sent at once.
_CHUNK = 64 << 20
_DIGEST = 16


def share(group: RankGroup, tensors: Sequence[Named], plan: Sequence[TensorSpec]) -> None:
    """Give all ranks the first rank's values of ``tensors``, bit by bit. Collective; ``plan`` holds before and after.

    Raises:
        ConfigError: ranks differ in a name, dtype or shape.
    """
    values = [(name, _distinct(tensor)) for name, tensor in _readable(tensors)]
    world = group.exchange.world
    if world == 1 or not values:
        return
    specs = [_spec(id_, name, value) for id_, (name, value) in enumerate(values)]
    group.agree(specs)
    names = {id(value): name for name, value in values}
    own = _settings.digest(_settings.state_lines([], names, [value for _, value in values]))
    digests = group.gather(own, dict.fromkeys(range(world), _DIGEST))
    for part in _parts(specs) if len(set(digests.values())) > 1 else ():
        copies = [values[spec.id][1].detach().to("cpu", copy=True).contiguous() for spec in part]
        group.broadcast(list(zip(part, copies, strict=True)))
        for spec, copy in zip(part, copies, strict=True):
            value = values[spec.id][1]
            with torch.inference_mode(value.is_inference()), torch.no_grad():
                value.copy_(copy)
    group.agree(plan)


def _readable(tensors: Sequence[Named]) -> Iterator[Named]:
    """Those whose values can be read and written as memory; a warning names others that have values."""
    for name, tensor in tensors:
        if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)) or tensor.is_meta:
            continue
        if plain(tensor) and tensor.layout == torch.strided and not tensor.is_quantized:
            if tensor.numel():
                yield name, tensor
            continue
        what = type(tensor).__name__ if not plain(tensor) else f"of {tensor.dtype}, {tensor.layout}"
        warnings.warn(
            f"{name} is {what}, which has no plain memory: rank 0's values are not copied to the other ranks, so load "
            "the same on every rank",
            stacklevel=6,
        )


def _distinct(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of an expanded tensor that have memory of their own."""
    value = tensor.detach()
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0 and value.shape[dimension] > 1:
            value = value.narrow(dimension, 0, 1)
    return value


def _spec(id_: int, name: str, value: torch.Tensor) -> TensorSpec:
    nbytes = value.numel() * value.element_size()
    dtype, shape = value.dtype, tuple(value.shape)
    if dtype not in WIRE_DTYPES:
        # As words of a dtype that servers know; the name has what differs.
        name = f"{name} ({str(dtype).removeprefix('torch.')} {shape})"
        dtype, shape = torch.int32, (-(-nbytes // 4),)
    strides = torch.empty(shape, device="meta").stride()
    return TensorSpec(id_, name, "gradient", dtype, shape, tuple(strides), nbytes, 0)


def _parts(specs: Sequence[TensorSpec]) -> Iterator[list[TensorSpec]]:
    part: list[TensorSpec] = []
    for spec in specs:
        if part and sum(one.nbytes for one in part) + spec.nbytes > _CHUNK:
            yield part
            part = []
        part.append(spec)
    yield part
