# SPDX-License-Identifier: Apache-2.0
"""``ft.trace_model``: times of a model's tensors in backward, forward and update, without a network.

A copy of the model runs, and torch's random generators are restored, also those of CUDA devices. Each time stamp waits
for the devices, so that work is timed and not its submission.
"""

from __future__ import annotations

import copy
import datetime as dt
import functools
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from foresee.errors import ConfigError
from foresee.network import trace
from foresee.network.trace import ModelTrace
from foresee.torch.gradients._plan import Entry, Plan
from foresee.torch.gradients._separable import is_separable
from foresee.torch.gradients._steps import copy_settings, original_step, step_subset
from foresee.torch.gradients._use_profile import UseProfile, find_tensors

__all__ = ["trace_model"]

_Seconds = dict[int, list[float]]


def trace_model(
    model: torch.nn.Module,
    batch: Any,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = 10,
    warmup: int = 2,
    path: str | os.PathLike[str] | None = None,
) -> ModelTrace:
    """Measure one training step, tensor by tensor.

    Forward and update times belong to wait points: the time of a module counts for the last tensor that it needs, since
    it cannot begin before that one. The time before the first wait point counts for the first. The backward time of a
    tensor is that between the previous gradient and its own. All are medians. On CUDA devices every time includes the
    wait for the device, so layers do not overlap as in training.

    Args:
        model: run as a copy, in the mode it is in.
        batch: a tensor, or a tuple or dict of arguments, of one rank's size.
        loss: from the model's output to a scalar. Default: the output if it is a scalar, its ``loss`` if it has one,
            else the mean of squares of its tensors, which costs next to nothing.
        optimizer: over the model's parameters; None leaves update times at 0.
        steps: measured steps, 1 or more.
        warmup: steps before them, 0 or more.
        path: where to write the trace, for ``foresee network``; None: nowhere.

    Returns:
        The tensors with a gradient, in order of first use, and facts about the measurement.
        ``foresee.network.trace.write`` writes it; its ``step()`` is the input of ``foresee.network.model``.

    Raises:
        ConfigError: arguments out of range, or no gradient at all.
        OSError: the file cannot be written.

    >>> import torch, foresee.torch as ft
    >>> trace = ft.trace_model(torch.nn.Linear(8, 2), torch.ones(4, 8), steps=1)
    >>> [(tensor.name, tensor.bytes) for tensor in trace.tensors], trace.batch
    ([('weight', 64), ('bias', 8)], 4)
    """
    if steps < 1 or warmup < 0:
        raise ConfigError(f"steps={steps!r}, warmup={warmup!r}; 1 or more, and 0 or more")
    devices = _find_devices((*model.parameters(), *model.buffers(), *find_tensors(batch)))
    with torch.random.fork_rng([device.index for device in devices]):
        # Together, so that the copied optimizer has the copied parameters.
        model_copy, optimizer_copy = copy.deepcopy((model, optimizer))
        measured = _measure(model_copy, optimizer_copy, batch, loss or _default_loss, steps, warmup, devices)
    facts: dict[str, trace.Fact] = {
        "device": str(next(model.parameters()).device),
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "torch": torch.__version__,
        "steps": steps,
    }
    samples = next((tensor.shape[0] for tensor in find_tensors(batch) if tensor.dim() > 0), None)
    if samples is not None:
        facts = {"batch": samples, **facts}
    made = ModelTrace(type(model).__name__, tuple(measured), facts)
    if path is not None:
        trace.write(made, os.path.expanduser(path))
    return made


def _measure(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    batch: Any,
    loss: Callable[[Any], torch.Tensor],
    steps: int,
    warmup: int,
    devices: Sequence[torch.device],
) -> list[trace.Tensor]:
    planned = optimizer or torch.optim.SGD(model.parameters())
    plan, faults = Plan.build(model, [planned], buffers=False)
    if faults:
        raise ConfigError(faults)
    points = _find_points(model, plan, lambda: loss(_call(model, batch)).backward())
    if not points:
        raise ConfigError("no parameter got a gradient from this batch and loss; is requires_grad off?")
    clock = _Clock(points, devices)
    handles = list(clock.install_hooks())
    try:
        for number in range(warmup + steps):
            if number == warmup:
                clock.reset()
            planned.zero_grad()
            clock.start_forward()
            value = loss(_call(model, batch))
            clock.start_backward()
            value.backward()
            if optimizer is not None:
                clock.update(optimizer)
    finally:
        for handle in handles:
            handle.remove()
    return [
        trace.Tensor(
            entry.name,
            entry.spec.nbytes,
            backward=_median(clock.backward, entry),
            forward=_median(clock.forward, entry),
            update=_median(clock.updates, entry),
        )
        for _, group in points
        for entry in group
    ]


#: Modules in order of their first use of a tensor, each with the tensors first used there; None: outside of modules.
_Points = list[tuple[torch.nn.Module | None, list[Entry]]]


def _find_points(model: torch.nn.Module, plan: Plan, step: Callable[[], None]) -> _Points:
    profile = UseProfile(model, plan.entries)
    profile.start()
    try:
        step()
    finally:
        profile.stop()
    trained = {entry.spec.id: entry for entry in plan.entries if entry.tensor.grad is not None}
    seen = [id_ for id_ in profile.order if id_ in trained]
    points: dict[torch.nn.Module | None, list[Entry]] = {}
    for id_ in (*seen, *(id_ for id_ in trained if id_ not in profile.modules)):
        module = profile.modules.get(id_, [None])[0]
        points.setdefault(module, []).append(trained[id_])
    return list(points.items())


class _Clock:
    """Seconds by tensor, of each measured step."""

    def __init__(self, points: _Points, devices: Sequence[torch.device]) -> None:
        self._points = points
        self._devices = devices
        self._reached: set[int] = set()
        self._last = 0.0
        self._current = 0
        self._is_forward = False
        self.reset()

    def reset(self) -> None:
        """Drop the times of the warm-up."""
        self.backward: _Seconds = {}
        self.forward: _Seconds = {}
        self.updates: _Seconds = {}

    def install_hooks(self) -> Iterator[Any]:
        """Install hooks on modules and parameters; yields their handles."""
        for number, (module, group) in enumerate(self._points):
            if module is not None:
                yield module.register_forward_pre_hook(
                    lambda *_, number=number: self._enter(number), prepend=True
                )
            for entry in group:
                yield entry.tensor.register_post_accumulate_grad_hook(
                    lambda _, entry=entry: self._record_gradient(entry)
                )

    def start_forward(self) -> None:
        """Start the forward pass."""
        self._reached = set()
        self._is_forward = True
        self._current = 0
        self._last = self._now()

    def start_backward(self) -> None:
        """End forward and loss."""
        self._end_point()
        self._is_forward = False

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Step by wait points, or as a whole if the optimizer needs that."""
        settings, base = copy_settings(optimizer), type(optimizer)
        if not is_separable(optimizer):
            self._time_step(self._points[0][1], lambda: original_step(base)(optimizer))
            return
        for _, group in self._points:
            chosen = {id(entry.tensor) for entry in group}
            self._time_step(group, functools.partial(step_subset, optimizer, base, settings, chosen))

    def _time_step(self, group: Sequence[Entry], step: Callable[[], None]) -> None:
        began = self._now()
        with torch.no_grad():
            step()
        self.updates.setdefault(group[-1].spec.id, []).append(self._now() - began)

    def _enter(self, number: int) -> None:
        # A module that runs twice waits once, and recomputation in backward counts as backward.
        if not self._is_forward or number in self._reached:
            return
        if self._reached:
            self._end_point()
        self._reached.add(number)
        self._current = number

    def _end_point(self) -> None:
        """Count the time since the last wait point for that one."""
        now = self._now()
        last = self._points[self._current][1][-1]
        self.forward.setdefault(last.spec.id, []).append(now - self._last)
        self._last = now

    def _record_gradient(self, entry: Entry) -> None:
        now = self._now()
        self.backward.setdefault(entry.spec.id, []).append(now - self._last)
        self._last = now

    def _now(self) -> float:
        """Return seconds, after all devices have finished."""
        for device in self._devices:
            torch.cuda.synchronize(device)
        return time.perf_counter()


def _median(seconds: Mapping[int, list[float]], entry: Entry) -> float:
    return statistics.median(seconds.get(entry.spec.id, [0.0]))


def _find_devices(tensors: Iterable[torch.Tensor]) -> list[torch.device]:
    """Return the CUDA devices of the tensors, each once."""
    return sorted({one.device for one in tensors if one.device.type == "cuda"}, key=lambda one: one.index)


def _call(model: torch.nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def _default_loss(output: Any) -> torch.Tensor:
    found = getattr(output, "loss", None)
    if isinstance(found, torch.Tensor):
        return found
    if isinstance(output, torch.Tensor) and output.dim() == 0:
        return output
    tensors = [tensor for tensor in find_tensors(output) if tensor.is_floating_point()]
    if not tensors:
        raise ConfigError(f"the model's output, a {type(output).__name__}, has no float tensor; pass loss=")
    return torch.stack([tensor.float().square().mean() for tensor in tensors]).sum()
