# SPDX-License-Identifier: Apache-2.0
"""The exchanged tensors of a model and its optimizers: their names, ids, shapes and classes.

Ids follow the order of registration, which is the same on every rank; classes follow the order of first use, which may
differ. Every tensor is one dense piece of memory, of the CPU or of a CUDA device. ``_round_state`` has what changes in
every step.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from foresee.torch._exchange import TensorSpec
from foresee.torch.gradients import _errors
from foresee.torch.gradients._placeholder import GradPlaceholder, is_placeholder
from foresee.torch.gradients._reads import raw_items
from foresee.torch.gradients._round_state import TensorState

if TYPE_CHECKING:
    from foresee.torch.gradients._use_profile import UseProfile

__all__ = [
    "DEVICES",
    "WIRE_DTYPES",
    "Entry",
    "Plan",
    "copy_in_strides",
    "describe_form",
    "has_plain_memory",
    "has_planned_strides",
]

#: Dtypes that the exchange can copy; it can sum the first four.
WIRE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64)
_SUMMABLE = WIRE_DTYPES[:4]
#: Kinds of devices that gradients are sent from.
DEVICES = ("cpu", "cuda")
# A class is one byte: a scheduler finds the first of 256 in a few instructions.
_CLASSES = 256


@dataclass(eq=False, kw_only=True)
class Entry(TensorState):
    """One tensor of the plan: its memory, and its state in the present round."""

    spec: TensorSpec
    tensor: torch.Tensor
    placeholder: GradPlaceholder | None = None
    """In ``grad`` while the gradient is in flight; None for a buffer."""
    version: int = 0
    """The tensor's version counter when it became pending."""
    address: int = 0
    """Its memory then: an assignment to ``data`` does not raise the counter."""
    has_hook: bool = False
    """Whether it has a gradient hook; a frozen parameter has none until it is unfrozen."""
    average: tuple[Any, int] | None = None
    """Weak reference to the average in ``grad``, and its version: unchanged, it needs no second exchange."""
    owner: tuple[torch.nn.Module, str] | None = None
    """Module of a buffer and its name there; code like ``self.mean = 0.9 * self.mean`` replaces the tensor."""

    def refresh(self) -> bool:
        """Take the present tensor of a buffer from its module; False if it has none of the planned form."""
        assert self.owner is not None
        module, key = self.owner
        tensor = module._buffers.get(key)  # noqa: SLF001
        if tensor is None or (tuple(tensor.shape), tensor.dtype) != (self.spec.shape, self.spec.dtype):
            return False
        self.tensor = tensor
        return True

    def set_average(self, average: torch.Tensor | None) -> None:
        """Make the average the gradient of the parameter."""
        self.tensor.grad = average
        self.average = None if average is None else (weakref.ref(average), average._version)  # noqa: SLF001

    def receive(self, average: torch.Tensor, *, at_once: bool) -> None:
        """Leave a copy of the average in ``grad`` as a stock backward would, unless ``zero_grad()`` followed."""
        gradient = self.tensor.grad
        if gradient is None:
            if at_once or self.is_due:
                self.set_average(average.clone())
        elif at_once or is_placeholder(gradient) or self.is_untouched(gradient):
            self.set_average(average.clone())
        elif self.is_due:
            gradient.add_(average)

    def record_version(self) -> None:
        """Note the version and the memory of the tensor, to detect later edits."""
        self.version, self.address = self.tensor._version, self.tensor.data_ptr()  # noqa: SLF001

    @property
    def is_edited(self) -> bool:
        """Whether torch knows of an edit since ``record_version``."""
        return (self.tensor._version, self.tensor.data_ptr()) != (self.version, self.address)  # noqa: SLF001

    def to_planned(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient in the strides of the plan; a copy if it has others.

        Raises:
            GradientMisuse: it is not dense, or of another dtype or shape.
        """
        spec = self.spec
        if gradient.layout != torch.strided or not has_plain_memory(gradient):
            what = str(gradient.layout) if gradient.layout != torch.strided else type(gradient).__name__
            raise _errors.no_memory(self.name, what)
        if gradient.dtype != spec.dtype or gradient.shape != spec.shape:
            planned = describe_form(spec.dtype, spec.shape)
            raise _errors.other_form(self.name, describe_form(gradient.dtype, gradient.shape), planned)
        sent = gradient.detach()
        return sent if has_planned_strides(sent, spec) else copy_in_strides(spec, sent)

    def is_untouched(self, gradient: torch.Tensor) -> bool:
        """Whether ``gradient`` is the average from ``set_average``, unchanged."""
        if self.average is None:
            return False
        average, version = self.average
        return average() is gradient and version == gradient._version  # noqa: SLF001


@dataclass(eq=False)
class Plan:
    """All entries, by id."""

    entries: list[Entry] = field(default_factory=list)
    by_parameter: dict[int, Entry] = field(default_factory=dict)
    """Entries by ``id()`` of the tensor."""
    by_use: list[Entry] = field(default_factory=list)
    """Entries in the order of first use, as far as it is known."""
    frozen: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    """Parameters that need no gradient and are in no optimizer nor in the plan, with names."""

    @property
    def gradients(self) -> list[Entry]:
        """The entries of parameters."""
        return [entry for entry in self.entries if not entry.is_buffer]

    @property
    def names(self) -> dict[int, str]:
        """Names of parameters by ``id()``."""
        return {id(entry.tensor): entry.name for entry in self.gradients}

    @staticmethod
    def build(
        model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], *, buffers: bool
    ) -> tuple[Plan, list[str]]:
        """Build the plan, with classes in order of registration; returns it and all faults."""
        plan = Plan()
        return plan, plan.extend(model, optimizers, buffers=buffers)

    def extend(
        self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], *, buffers: bool
    ) -> list[str]:
        """Append new tensors, whose faults are returned; ids stay."""
        names = {id(tensor): name for name, tensor in model.named_parameters()}
        order = {key: i for i, key in enumerate(names)}
        grouped, faults = _find_parameters(optimizers, names)
        fresh: list[tuple[str, torch.Tensor, tuple[int, int] | None]] = []
        for name, parameter, group in grouped:
            if id(parameter) in self.by_parameter:
                self.by_parameter[id(parameter)].param_group = group
            else:
                fresh.append((name, parameter, group))
        owned = {id(parameter) for _, parameter, _ in grouped}
        self.frozen = []
        for name, one in model.named_parameters():
            if id(one) in owned or id(one) in self.by_parameter:
                continue
            if one.requires_grad:
                fresh.append((name, one, None))
            else:
                self.frozen.append((name, one))
        # Ids by registration, as in the model; parameters that the model does not have come last.
        fresh.sort(key=lambda one: order.get(id(one[1]), len(order)))
        for name, parameter, param_group in fresh:
            fault = _fault(name, "parameter", parameter, _SUMMABLE)
            if fault:
                without = (
                    "" if param_group else "; or, as it is in no optimizer, call requires_grad_(False) on it"
                )
                faults.append(fault + without)
                continue
            self._add(
                Entry(
                    name=name,
                    param_group=param_group,
                    spec=self._spec(name, parameter),
                    tensor=parameter,
                    placeholder=GradPlaceholder(parameter, name),
                )
            )
        owners = {
            id(buffer): (module, key)
            for module in model.modules()
            for key, buffer in raw_items(module._buffers)  # noqa: SLF001
            if buffer is not None
        }
        known = {(id(entry.owner[0]), entry.owner[1]) for entry in self.entries if entry.owner is not None}
        for name, buffer in model.named_buffers() if buffers else ():
            module, key = owners[id(buffer)]
            # Counters and averages have a wire dtype. Masks and other constants do not drift apart.
            if (id(module), key) in known or buffer.dtype not in WIRE_DTYPES:
                continue
            fault = _fault(name, "buffer", buffer, WIRE_DTYPES)
            if fault:
                faults.append(f"{fault}, or pass buffers=False")
                continue
            spec = self._spec(name, buffer, kind="buffer")
            self._add(Entry(name=name, is_buffer=True, spec=spec, tensor=buffer, owner=(module, key)))
        return faults + self._find_mixed_devices()

    def _find_mixed_devices(self) -> list[str]:
        """Return a fault if some tensors are in CPU memory and others on a device."""
        kinds = {entry.tensor.device.type: entry for entry in self.entries}
        if len(kinds) < 2:
            return []
        places = " and ".join(f"{entry.name} on {entry.tensor.device}" for entry in kinds.values())
        return [f"{places}: all on the CPU, or all on CUDA devices; move the model, or pass buffers=False"]

    def set_classes(self, profile: UseProfile, model: torch.nn.Module) -> None:
        """Set classes by first use. A buffer comes with its module's first parameter, an unused tensor last."""
        positions = {id_: i for i, id_ in enumerate(profile.order)}
        last = len(positions)
        of_buffers: dict[int, int] = {}
        for module in model.modules():
            registered = [one for _, one in raw_items(module._parameters)]  # noqa: SLF001
            known = [self.by_parameter[id(one)] for one in registered if id(one) in self.by_parameter]
            first = min((positions.get(entry.spec.id, last) for entry in known), default=last)
            for _, buffer in raw_items(module._buffers):  # noqa: SLF001
                if buffer is not None:
                    of_buffers.setdefault(id(buffer), first)
        uses = [
            positions.get(entry.spec.id, of_buffers.get(id(entry.tensor), last)) for entry in self.entries
        ]
        for entry, use in zip(self.entries, uses, strict=True):
            # Neighbours share a class if there are more uses than classes.
            class_ = use if last < _CLASSES else use * _CLASSES // (last + 1)
            entry.spec = replace(entry.spec, priority=class_)
        self.by_use = sorted(self.entries, key=lambda entry: uses[entry.spec.id])

    def find_unplanned(self, optimizers: Sequence[torch.optim.Optimizer]) -> str | None:
        """Return the name of a parameter that joined or left an optimizer without a new plan."""
        present = set()
        for number, optimizer in enumerate(optimizers):
            for i, group in enumerate(optimizer.param_groups):
                for j, parameter in enumerate(group["params"]):
                    entry = self.by_parameter.get(id(parameter))
                    if entry is None or entry.param_group != (number, i):
                        return entry.name if entry else _group_name(len(optimizers), number, i, j)
                    present.add(entry.spec.id)
        missing = (one.name for one in self.entries if one.param_group and one.spec.id not in present)
        return next(missing, None)

    def find_unfrozen(self) -> str | None:
        """Return the name of a parameter in ``frozen`` that requires a gradient now."""
        return next((name for name, parameter in self.frozen if parameter.requires_grad), None)

    def list_constants(self, model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
        """Return the parameters and buffers that no round sends, with names."""
        tensors = [*model.named_parameters(), *model.named_buffers()]
        return [(name, tensor) for name, tensor in tensors if id(tensor) not in self.by_parameter]

    def _spec(
        self, name: str, tensor: torch.Tensor, kind: Literal["gradient", "buffer"] = "gradient"
    ) -> TensorSpec:
        return TensorSpec(
            id=len(self.entries),
            name=name,
            kind=kind,
            dtype=tensor.dtype,
            shape=tuple(tensor.shape),
            strides=tuple(tensor.stride()),
            nbytes=tensor.numel() * tensor.element_size(),
            priority=min(len(self.entries), _CLASSES - 1),
        )

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.by_use.append(entry)
        self.by_parameter[id(entry.tensor)] = entry


def _find_parameters(
    optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str]
) -> tuple[list[tuple[str, torch.Tensor, tuple[int, int]]], list[str]]:
    """Return name, tensor and group of every parameter of the optimizers; and those in two of them as faults."""
    found: dict[int, tuple[str, torch.Tensor, tuple[int, int]]] = {}
    faults = []
    for number, optimizer in enumerate(optimizers):
        for i, group in enumerate(optimizer.param_groups):
            for j, parameter in enumerate(group["params"]):
                name = names.get(id(parameter), _group_name(len(optimizers), number, i, j))
                if id(parameter) in found:
                    first = found[id(parameter)][2][0]
                    twice = f"optimizers {first} and {number}" if first != number else "the optimizer twice"
                    faults.append(f"{name} is in {twice}; leave it in one place")
                else:
                    found[id(parameter)] = name, parameter, (number, i)
    return list(found.values()), faults


def _group_name(optimizers: int, number: int, group: int, index: int) -> str:
    name = f"param_groups[{group}].params[{index}]"
    return name if optimizers == 1 else f"optimizers[{number}].{name}"


def describe_form(dtype: torch.dtype, shape: Sequence[int]) -> str:
    """Return dtype and shape for an error."""
    return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill one piece of memory, each once, in any order of dimensions."""
    if 0 in shape:
        return True
    expected = 1
    for stride, size in sorted((step, size) for size, step in zip(shape, strides, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def has_planned_strides(gradient: torch.Tensor, spec: TensorSpec) -> bool:
    """Whether the gradient has the strides of the plan; those of dimensions of size 1 are ignored."""
    mine, planned = gradient.stride(), spec.strides
    # Nearly always equal, and this runs for each gradient.
    return (
        mine == planned
        or gradient.numel() == 0
        or all(
            size == 1 or step == other for size, step, other in zip(spec.shape, mine, planned, strict=True)
        )
    )


def copy_in_strides(spec: TensorSpec, tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of the tensor on its device, in the strides of the plan."""
    made = torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device=tensor.device)
    return made.copy_(tensor.detach())


def has_plain_memory(tensor: torch.Tensor) -> bool:
    """Whether the tensor's values are in its own memory; a subclass may store them elsewhere."""
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _fault(name: str, kind: str, tensor: torch.Tensor, dtypes: Iterable[torch.dtype]) -> str | None:
    what = f"{kind} {name}"
    if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
        return f"{what} has no shape yet; run one forward pass through the lazy module first"
    if not has_plain_memory(tensor):
        return f"{what} is a {type(tensor).__name__}, which has no plain memory to send; use plain tensors"
    if tensor.layout != torch.strided:
        return f"{what} is {tensor.layout}; make it dense with to_dense()"
    if tensor.device.type not in DEVICES:
        return f"{what} is on {tensor.device}; gradients are sent from memory of the CPU or of CUDA devices"
    if tensor.dtype not in dtypes:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        return f"{what} is {tensor.dtype}; one of {allowed}"
    if tensor.is_inference():
        return f"{what} was made under inference_mode(); make it outside, or clone() it"
    if not _is_dense(tensor.shape, tensor.stride()):
        return (
            f"{what} of shape {tuple(tensor.shape)} has strides {tensor.stride()}, which leave gaps or overlap; "
            "make it a contiguous() copy"
        )
    return None
