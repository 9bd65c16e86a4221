# SPDX-License-Identifier: Apache-2.0
"""The tensors of a model and its optimizers that are exchanged: their names, ids, shapes and classes.

Ids follow the order of registration, which is the same on every rank; classes follow the order of first use, which need
not be. Every tensor of a plan is one dense piece of memory, of the CPU or of a CUDA device. A plan changes a few times
in a run; what changes every step is in ``_round_state``.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from foresee.torch._exchange import TensorSpec
from foresee.torch.gradients import _errors
from foresee.torch.gradients._placeholder import GradPlaceholder, is_placeholder
from foresee.torch.gradients._reads import own
from foresee.torch.gradients._round_state import TensorState

if TYPE_CHECKING:
    from foresee.torch.gradients._first_use import FirstUse

__all__ = ["DEVICES", "WIRE_DTYPES", "Entry", "Plan", "dense", "form", "in_strides", "plain", "same_memory"]

#: What the servers can sum, and what can be copied.
WIRE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64)
_SUMMABLE = WIRE_DTYPES[:4]
#: Kinds of devices whose memory gradients travel from.
DEVICES = ("cpu", "cuda")
# Classes are one octet: a scheduler finds the first of 256 in a few instructions.
_CLASSES = 256


@dataclass(eq=False, kw_only=True)
class Entry(TensorState):
    """One tensor of the plan: its memory, and its state in the present round."""

    spec: TensorSpec
    tensor: torch.Tensor
    placeholder: GradPlaceholder | None = None
    """For its gradient while that is in flight; None for a buffer."""
    version: int = 0
    """The tensor's version counter when it became pending."""
    address: int = 0
    """Of its memory then: an assignment to ``data`` leaves the counter alone."""
    hooked: bool = False
    """Whether a gradient hook is in place; a frozen parameter has none until it is unfrozen."""
    given: tuple[Any, int] | None = None
    """Weak reference to the average that was put into ``grad``, and its version: what needs no second exchange."""
    owner: tuple[torch.nn.Module, str] | None = None
    """Of a buffer: its module and name there; code like ``self.mean = 0.9 * self.mean`` replaces the tensor."""

    def refresh(self) -> bool:
        """Of a buffer: take the tensor that its module has now; False if it has none of the planned form."""
        assert self.owner is not None
        module, key = self.owner
        tensor = module._buffers.get(key)  # noqa: SLF001
        if tensor is None or (tuple(tensor.shape), tensor.dtype) != (self.spec.shape, self.spec.dtype):
            return False
        self.tensor = tensor
        return True

    def put(self, average: torch.Tensor | None) -> None:
        """Give the parameter this average as its gradient, for its owner to keep."""
        self.tensor.grad = average
        self.given = None if average is None else (weakref.ref(average), average._version)  # noqa: SLF001

    def receive(self, average: torch.Tensor, *, at_once: bool) -> None:
        """Leave the average in ``grad`` as a stock backward would; ``zero_grad()`` since then has dropped it.

        A copy: the loop keeps its gradients, the exchange needs its memory for the next round.
        """
        gradient = self.tensor.grad
        if gradient is None:
            if at_once or self.due:
                self.put(average.clone())
        elif at_once or is_placeholder(gradient) or self.is_untouched(gradient):
            self.put(average.clone())
        elif self.due:
            gradient.add_(average)

    def record_version(self) -> None:
        """Note the version and the memory of the tensor, to see later edits."""
        self.version, self.address = self.tensor._version, self.tensor.data_ptr()  # noqa: SLF001

    @property
    def is_edited(self) -> bool:
        """Whether torch knows of an edit since ``record_version``."""
        return (self.tensor._version, self.tensor.data_ptr()) != (self.version, self.address)  # noqa: SLF001

    def as_planned(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient in the strides of the plan; a copy if it is not in them.

        Raises:
            GradientMisuse: it is not dense, or of another dtype or shape.
        """
        spec = self.spec
        if gradient.layout != torch.strided or not plain(gradient):
            what = str(gradient.layout) if gradient.layout != torch.strided else type(gradient).__name__
            raise _errors.no_memory(self.name, what)
        if gradient.dtype != spec.dtype or tuple(gradient.shape) != spec.shape:
            planned = form(spec.dtype, spec.shape)
            raise _errors.other_form(self.name, form(gradient.dtype, gradient.shape), planned)
        sent = gradient.detach()
        return sent if same_memory(sent, spec) else in_strides(spec, sent)

    def is_untouched(self, gradient: torch.Tensor) -> bool:
        """Whether ``gradient`` is the average that was put there, and nobody wrote to it since."""
        if self.given is None:
            return False
        average, version = self.given
        return average() is gradient and version == gradient._version  # noqa: SLF001


@dataclass(eq=False)
class Plan:
    """All entries, by id."""

    entries: list[Entry]
    by_parameter: dict[int, Entry] = field(init=False)
    """By ``id()`` of the tensor."""
    by_use: list[Entry] = field(init=False)
    """In the order of first use, as far as it is known."""
    frozen: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    """Parameters of no optimizer that need no gradient, by name: they are not in the plan."""

    def __post_init__(self) -> None:
        self.by_parameter = {id(entry.tensor): entry for entry in self.entries}
        self.by_use = list(self.entries)

    @property
    def gradients(self) -> list[Entry]:
        """Those of parameters."""
        return [entry for entry in self.entries if not entry.is_buffer]

    @property
    def unowned(self) -> list[Entry]:
        """Those of parameters that are in no optimizer."""
        return [entry for entry in self.gradients if entry.place is None]

    @property
    def buffers(self) -> list[Entry]:
        """Those that rank 0 sends."""
        return [entry for entry in self.entries if entry.is_buffer]

    @property
    def names(self) -> dict[int, str]:
        """Of parameters, by ``id()``."""
        return {id(entry.tensor): entry.name for entry in self.gradients}

    @property
    def specs(self) -> list[TensorSpec]:
        """What the ranks agree on."""
        return [entry.spec for entry in self.entries]

    @staticmethod
    def of(
        model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], *, buffers: bool
    ) -> tuple[Plan, list[str]]:
        """The plan of a model and its optimizers, classes in order of registration; and all that is wrong with it."""
        plan = Plan([])
        return plan, plan.extend(model, optimizers, buffers=buffers)

    def extend(
        self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], *, buffers: bool
    ) -> list[str]:
        """Add what is new, behind what is there; ids stay. Returns everything that is wrong with the new ones."""
        names = {id(tensor): name for name, tensor in model.named_parameters()}
        order = {key: i for i, key in enumerate(names)}
        places, faults = _places(optimizers, names)
        fresh: list[tuple[str, torch.Tensor, tuple[int, int] | None]] = [
            (name, parameter, place)
            for name, parameter, place in places
            if id(parameter) not in self.by_parameter
        ]
        owned = {id(parameter) for _, parameter, _ in places}
        self.frozen = []
        for name, one in model.named_parameters():
            if id(one) in owned or id(one) in self.by_parameter:
                continue
            if one.requires_grad:
                fresh.append((name, one, None))
            else:
                self.frozen.append((name, one))
        for _, parameter, place in places:
            if id(parameter) in self.by_parameter:
                self.by_parameter[id(parameter)].place = place
        # Ids by registration, so that a log reads like the model; what the model does not have comes last.
        fresh.sort(key=lambda one: order.get(id(one[1]), len(order)))
        for name, parameter, where in fresh:
            fault = _fault(name, "parameter", parameter, _SUMMABLE)
            if fault:
                without = "" if where else "; or, as it is in no optimizer, call requires_grad_(False) on it"
                faults.append(fault + without)
                continue
            self._add(
                Entry(
                    name=name,
                    place=where,
                    spec=self._spec(name, "gradient", parameter),
                    tensor=parameter,
                    placeholder=GradPlaceholder(parameter, name),
                )
            )
        owners = {
            id(buffer): (module, key)
            for module in model.modules()
            for key, buffer in own(module._buffers)  # noqa: SLF001
            if buffer is not None
        }
        known = {(id(entry.owner[0]), entry.owner[1]) for entry in self.entries if entry.owner is not None}
        for name, buffer in model.named_buffers() if buffers else ():
            module, key = owners[id(buffer)]
            # Masks and other constants of odd dtypes do not drift apart; whatever counts or averages is a number.
            if (id(module), key) in known or buffer.dtype not in WIRE_DTYPES:
                continue
            fault = _fault(name, "buffer", buffer, WIRE_DTYPES)
            if fault:
                faults.append(f"{fault}, or pass buffers=False")
                continue
            spec = self._spec(name, "buffer", buffer)
            self._add(Entry(name=name, is_buffer=True, spec=spec, tensor=buffer, owner=(module, key)))
        return faults + self._mixed()

    def _mixed(self) -> list[str]:
        """What is wrong with where the tensors are: some in CPU memory, some on a device."""
        kinds = {entry.tensor.device.type: entry for entry in self.entries}
        if len(kinds) < 2:
            return []
        places = " and ".join(f"{entry.name} on {entry.tensor.device}" for entry in kinds.values())
        return [f"{places}: all on the CPU, or all on CUDA devices; move the model, or pass buffers=False"]

    def order(self, profile: FirstUse, model: torch.nn.Module) -> None:
        """Give classes by first use; what was not seen is last, a buffer beside its module's first parameter."""
        place = {id_: i for i, id_ in enumerate(profile.order)}
        last = len(place)
        beside: dict[int, int] = {}
        for module in model.modules():
            registered = [one for _, one in own(module._parameters)]  # noqa: SLF001
            known = [self.by_parameter[id(one)] for one in registered if id(one) in self.by_parameter]
            first = min((place.get(entry.spec.id, last) for entry in known), default=last)
            for _, buffer in own(module._buffers):  # noqa: SLF001
                if buffer is not None:
                    beside.setdefault(id(buffer), first)
        ranks = [place.get(entry.spec.id, beside.get(id(entry.tensor), last)) for entry in self.entries]
        for entry, rank in zip(self.entries, ranks, strict=True):
            entry.spec = replace(entry.spec, priority=_class(rank, last + 1))
        self.by_use = [
            entry for _, entry in sorted(zip(ranks, self.entries, strict=True), key=lambda one: one[0])
        ]

    def foreign(self, optimizers: Sequence[torch.optim.Optimizer]) -> str | None:
        """A parameter that joined an optimizer, or left it, unannounced; None if all is as planned."""
        found = 0
        for number, optimizer in enumerate(optimizers):
            for i, group in enumerate(optimizer.param_groups):
                for j, parameter in enumerate(group["params"]):
                    entry = self.by_parameter.get(id(parameter))
                    if entry is None or entry.place != (number, i):
                        return entry.name if entry else _place_name(len(optimizers), number, i, j)
                    found += 1
        if found == sum(entry.place is not None for entry in self.entries):
            return None
        present = {
            id(parameter) for one in optimizers for group in one.param_groups for parameter in group["params"]
        }
        return next(entry.name for entry in self.entries if entry.place and id(entry.tensor) not in present)

    def unfrozen(self) -> str | None:
        """A parameter of no optimizer that was frozen when the plan was made, and requires a gradient now."""
        return next((name for name, parameter in self.frozen if parameter.requires_grad), None)

    def constant(self, model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
        """Parameters and buffers of the model that no round carries, by name."""
        tensors = [*model.named_parameters(), *model.named_buffers()]
        return [(name, tensor) for name, tensor in tensors if id(tensor) not in self.by_parameter]

    def _spec(self, name: str, kind: str, tensor: torch.Tensor) -> TensorSpec:
        return TensorSpec(
            id=len(self.entries),
            name=name,
            kind="gradient" if kind == "gradient" else "buffer",
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


def _places(
    optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str]
) -> tuple[list[tuple[str, torch.Tensor, tuple[int, int]]], list[str]]:
    """Name, tensor and place of every parameter of the optimizers; and which are in two of them."""
    places: dict[int, tuple[str, torch.Tensor, tuple[int, int]]] = {}
    faults = []
    for number, optimizer in enumerate(optimizers):
        for i, group in enumerate(optimizer.param_groups):
            for j, parameter in enumerate(group["params"]):
                name = names.get(id(parameter), _place_name(len(optimizers), number, i, j))
                if id(parameter) in places:
                    first = places[id(parameter)][2][0]
                    twice = f"optimizers {first} and {number}" if first != number else "the optimizer twice"
                    faults.append(f"{name} is in {twice}; leave it in one place")
                else:
                    places[id(parameter)] = name, parameter, (number, i)
    return list(places.values()), faults


def _place_name(optimizers: int, number: int, group: int, index: int) -> str:
    place = f"param_groups[{group}].params[{index}]"
    return place if optimizers == 1 else f"optimizers[{number}].{place}"


def form(dtype: torch.dtype, shape: Sequence[int]) -> str:
    """Dtype and shape, as errors show them."""
    return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"


def dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill one piece of memory, in any order of dimensions, each once."""
    if 0 in shape:
        return True
    expected = 1
    for stride, size in sorted((step, size) for size, step in zip(shape, strides, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def same_memory(gradient: torch.Tensor, spec: TensorSpec) -> bool:
    """Whether element by element the gradient lies as the plan says; strides of dimensions of 1 mean nothing."""
    mine, planned = gradient.stride(), spec.strides
    return gradient.numel() == 0 or all(
        size == 1 or step == other for size, step, other in zip(spec.shape, mine, planned, strict=True)
    )


def in_strides(spec: TensorSpec, tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor, in the strides of the plan, where the tensor is."""
    made = torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device=tensor.device)
    return made.copy_(tensor.detach())


def plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor's values are in memory of its own, rather than wherever a subclass keeps them."""
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _class(place: int, places: int) -> int:
    """Neighbours share a class where there are more places than classes."""
    return place if places <= _CLASSES else place * _CLASSES // places


def _fault(name: str, kind: str, tensor: torch.Tensor, dtypes: Iterable[torch.dtype]) -> str | None:
    what = f"{kind} {name}"
    if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
        return f"{what} has no shape yet; run one forward pass through the lazy module first"
    if not plain(tensor):
        return f"{what} is a {type(tensor).__name__}, which has no plain memory to send; use plain tensors"
    if tensor.layout != torch.strided:
        return f"{what} is {tensor.layout}; make it dense with to_dense()"
    if tensor.device.type not in DEVICES:
        return f"{what} is on {tensor.device}; gradients travel from memory of the CPU or of CUDA devices"
    if tensor.dtype not in dtypes:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        return f"{what} is {tensor.dtype}; one of {allowed}"
    if tensor.is_inference():
        return f"{what} was made under inference_mode(); make it outside, or clone() it"
    if not dense(tensor.shape, tensor.stride()):
        return (
            f"{what} of shape {tuple(tensor.shape)} has strides {tensor.stride()}, which leave gaps or overlap; "
            "make it a contiguous() copy"
        )
    return None
