# SPDX-License-Identifier: Apache-2.0
"""Initial values of tensors that no round sends: frozen parameters, and buffers that are not exchanged.

All ranks start with rank 0's values, as in DistributedDataParallel. Digests are compared first: nothing is sent if all
ranks have equal tensors.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from foresee.torch._exchange import TensorSpec
from foresee.torch._rank_group import RankGroup
from foresee.torch.gradients import _settings
from foresee.torch.gradients._plan import WIRE_DTYPES, describe_form, has_plain_memory

__all__ = ["Named", "share"]

Named = tuple[str, torch.Tensor]
# Bytes that are copied to CPU memory and sent at a time.
_CHUNK = 64 << 20
_DIGEST = 16


def share(group: RankGroup, tensors: Sequence[Named], plan: Sequence[TensorSpec]) -> None:
    """Copy the first rank's values of ``tensors`` to all ranks, bit by bit. Collective; ``plan`` applies before and
    after.

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
    own = _settings.digest(_settings.describe_state([], names, [value for _, value in values]))
    digests = group.gather(own, dict.fromkeys(range(world), _DIGEST))
    for chunk in _chunks(specs) if len(set(digests.values())) > 1 else ():
        copies = [values[spec.id][1].detach().to("cpu", copy=True).contiguous() for spec in chunk]
        group.broadcast(list(zip(chunk, copies, strict=True)))
        for spec, copy in zip(chunk, copies, strict=True):
            value = values[spec.id][1]
            with torch.inference_mode(value.is_inference()), torch.no_grad():
                value.copy_(copy)
    group.agree(plan)


def _readable(tensors: Sequence[Named]) -> Iterator[Named]:
    """Yield the tensors with plain memory; warn of others that have values."""
    for name, tensor in tensors:
        if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)) or tensor.is_meta:
            continue
        if has_plain_memory(tensor) and tensor.layout == torch.strided and not tensor.is_quantized:
            if tensor.numel():
                yield name, tensor
            continue
        what = (
            type(tensor).__name__ if not has_plain_memory(tensor) else f"of {tensor.dtype}, {tensor.layout}"
        )
        warnings.warn(
            f"{name} is {what}, which has no plain memory: rank 0's values are not copied to the other ranks, so load "
            "the same on every rank",
            stacklevel=6,
        )


def _distinct(tensor: torch.Tensor) -> torch.Tensor:
    """Return the distinct elements of an expanded tensor."""
    value = tensor.detach()
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0 and value.shape[dimension] > 1:
            value = value.narrow(dimension, 0, 1)
    return value


def _spec(id_: int, name: str, value: torch.Tensor) -> TensorSpec:
    nbytes = value.numel() * value.element_size()
    dtype, shape = value.dtype, tuple(value.shape)
    if dtype not in WIRE_DTYPES:
        # Sent as words of a dtype that servers know; the name has the true dtype and shape.
        name = f"{name} ({describe_form(dtype, shape)})"
        dtype, shape = torch.int32, (-(-nbytes // 4),)
    strides = torch.empty(shape, device="meta").stride()
    return TensorSpec(id_, name, "gradient", dtype, shape, tuple(strides), nbytes, 0)


def _chunks(specs: Sequence[TensorSpec]) -> Iterator[list[TensorSpec]]:
    chunk: list[TensorSpec] = []
    for spec in specs:
        if chunk and sum(one.nbytes for one in chunk) + spec.nbytes > _CHUNK:
            yield chunk
            chunk = []
        chunk.append(spec)
    yield chunk
