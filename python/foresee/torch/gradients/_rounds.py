# SPDX-License-Identifier: Apache-2.0
"""The rounds of one model and optimizer: gradients leave in backward, updates land before the next use.

Apart from hooks, plan and exchange, which it ties together: this file alone knows in which state a tensor is.
Refuses whatever would train on wrong numbers: a gradient computed from a parameter whose update had not landed,
a parameter edited between ``step()`` and its update, a second gradient for one step.

A round in the overlapping mode: each gradient is pushed by its hook and replaced by a stand-in; ``step()`` only
notes the settings of the optimizer (``arm``); before a module runs, what it needs is waited for and stepped
(``wait``). Two rules keep the servers at two slots per packet: everything pending is finished before the next
``round_end``, and a rank that did not push a tensor waits at its wait point all the same.

Some rounds are barriers: ``step()`` waits for everything, puts the averages into ``p.grad`` and calls the user's
own step. So is the first, in which uses are profiled, and every round while the optimizer has step hooks.
With ``overlap="backward"`` all rounds are, at the end of ``backward()``.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils._python_dispatch import _disable_current_modes

from foresee.errors import Closed, ConfigError
from foresee.torch._exchange import Exchange
from foresee.torch.gradients import _errors
from foresee.torch.gradients._clip import Clip
from foresee.torch.gradients._courier import Courier
from foresee.torch.gradients._first_use import FirstUse
from foresee.torch.gradients._hooks import GradientHook
from foresee.torch.gradients._plan import DEVICES, Entry, Plan, in_strides, plain, same_memory
from foresee.torch.gradients._steps import Hyper, snapshot, step_some
from foresee.torch.gradients._taken import is_taken
from foresee.torch.gradients._timeline import Timeline
from foresee.torch.gradients._wait_points import WaitPoints
from foresee.torch.gradients._watch import Watch
from foresee.torch.gradients._wrappers import check_forward

__all__ = ["Options", "Rounds"]


@dataclass(frozen=True)
class Options:
    """What ``synchronize`` decided."""

    overlap: Literal["forward", "backward"]
    buffers: bool
    debug: bool


class Rounds:
    """The state machine; owned by the model and the optimizer, referred to weakly by all hooks."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        exchange: Exchange,
        plan: Plan,
        clip: Clip,
        options: Options,
        courier: Courier,
        timeline: Timeline | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._base = type(optimizer)
        self._exchange = exchange
        self._courier = courier
        self._plan = plan
        self._clip = clip
        self._options = options
        self._timeline = timeline
        self._round = 0
        self._silent = 0
        self._open = True
        # One for all that lands and steps: a checkpoint thread may flush while the loop is in a forward pass.
        self._lock = threading.RLock()
        self._forward_thread = 0
        self._hyper: Hyper = []
        # Of buffers, in the last round that ended.
        self._sender = 0
        self._pending = 0
        self._barrier = options.overlap == "forward"
        self._graph_task = self._newest_task = -1
        self._exchanged = False
        self._exposed_s = 0.0
        self._exposed_before_s = 0.0
        self._handles: list[Any] = []
        self._points = WaitPoints(self, model)
        self._profile = FirstUse(model, plan.entries)
        self._check = FirstUse(model, plan.entries, self._check_use) if options.debug else None
        self._unread = 0
        self._watch = Watch(model, plan.entries, self._check_use)
        weakref.finalize(self, exchange.close).atexit = False

    def start(self) -> None:
        """Agree with the other ranks, take over rank 0's values, and begin to listen. Collective."""
        self._adopt(self._plan.entries)
        if self._options.overlap == "forward":
            self._profile.start()
            if self._check is not None:
                self._check.start()

    # What the user's loop does, in its order.

    def gradient(self, entry: Entry, parameter: torch.Tensor) -> None:
        """A gradient is complete. Never blocks; runs on autograd's threads."""
        gradient = parameter.grad
        if self._silent or gradient is None or not self._open:
            return
        if entry.pending:
            raise _errors.used_early(entry.name)
        if entry.pushed == self._round:
            raise _errors.second_gradient(entry.name)
        self._push(entry, gradient)
        parameter.grad = entry.taken
        self._points.pushed(entry)
        if self._options.overlap == "backward":
            self._await_end(entry)

    def step(self) -> None:
        """What ``optimizer.step()`` becomes."""
        with self._lock:
            self._check_open()
            if self._options.overlap == "backward":
                if not self._exchanged:
                    self._end_round()
                self._exchanged = False
                self._hook_thawed()
                self._base.step(self.optimizer)
                return
            self._finish()
            foreign = self._plan.foreign(self.optimizer)
            if foreign is not None:
                raise _errors.unplanned(foreign)
            self._close_round()
            self._arm()
            if torch.is_autocast_cache_enabled() and any(map(torch.is_autocast_enabled, DEVICES)):
                # The region outlives this step: casts of the old values must not serve the next forward pass.
                torch.clear_autocast_cache()
            if self._barrier or self._has_step_hooks():
                self._step_whole()
                self._barrier = False
            self._hook_thawed()
            self._look_again()

    def wait(self, entries: Sequence[Entry]) -> None:
        """Before a module runs: land and step what it needs. Idempotent."""
        if not self._pending:
            return
        with self._lock:
            pending = [entry for entry in entries if entry.pending]
            if pending and self._clip.needs_all:
                pending = [entry for entry in self._plan.entries if entry.pending]
            if pending:
                self._land(pending)

    def wait_point(self, entries: Sequence[Entry]) -> None:
        """Before a module runs in a forward pass with gradients: ``wait``."""
        self._watch.point()
        self.wait(entries)

    @property
    def pending(self) -> bool:
        """Whether somebody has to hear of a tensor that is read: it may have to land first."""
        return bool(self._pending or self._watch.running) and not self._unread

    def entry_of(self, tensor: object) -> Entry | None:
        """The entry of a parameter; None if it has none."""
        return self._plan.by_parameter.get(id(tensor))

    def read(self, entries: Sequence[Entry | None]) -> None:
        """Tensors are read from their module: land and step them."""
        found = [entry for entry in entries if entry is not None]
        for entry in found:
            self._watch.read(entry)
        if any(entry.pending for entry in found):
            self.wait(found)

    @contextlib.contextmanager
    def unread(self) -> Iterator[None]:
        """Tensors are listed inside, and their values are not looked at."""
        self._unread += 1
        try:
            yield
        finally:
            self._unread -= 1

    def flush(self) -> None:
        """Land and step everything, so that the model and the optimizer are as after a stock step."""
        if self._pending:
            with self._lock:
                self.wait(self._plan.entries)

    def enter_forward(self) -> None:
        """The root's forward pass begins, on this thread."""
        check_forward(self.model)
        self._forward_thread = threading.get_ident()

    def leave_forward(self) -> None:
        """It is over, or raised."""
        self._forward_thread = 0

    @property
    def in_forward(self) -> bool:
        """Whether this thread is in the root's forward pass, where wait points see to every use that was profiled."""
        return self._forward_thread == threading.get_ident()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients computed inside stay local and are added up; the next backward outside pushes the sums."""
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    def extend(self) -> None:
        """The optimizer has a new parameter group: plan again. Collective."""
        with self._lock:
            self.flush()
            late = next((entry.name for entry in self._plan.gradients if entry.pushed == self._round), None)
            if late is not None:
                raise _errors.late_group(late)
            known = len(self._plan.entries)
            faults = self._plan.extend(self.model, self.optimizer, buffers=self._options.buffers)
            if faults:
                raise ConfigError(faults)
            self._adopt(self._plan.entries[known:])
            if self._options.overlap == "forward":
                self._barrier = True
                self._profile.watch(self._plan.entries)
                if self._check is not None:
                    self._check.watch(self._plan.entries)
                self._watch.watch(self._plan.entries)
                if not self._profile.running:
                    self._profile.start()

    def stats(self) -> Mapping[str, float]:
        """Of the exchange, and how long forward passes stood still for it."""
        return {
            **self._exchange.stats(),
            "rounds": self._round,
            "exposed_s": self._exposed_s,
            "exposed_last_round_s": self._exposed_s - self._exposed_before_s,
        }

    def close(self) -> None:
        """Finish what is under way and leave the exchange; hooks go, the model and the optimizer stay."""
        if not self._open:
            return
        try:
            self.flush()
        finally:
            self._open = False
            for profile in filter(None, (self._profile, self._check)):
                profile.stop()
            self._watch.stop()
            self._points.remove()
            for handle in self._handles:
                handle.remove()
            for entry in self._plan.gradients:
                if is_taken(entry.tensor.grad):
                    entry.tensor.grad = None
            if self._timeline is not None:
                self._timeline.close()
            self._exchange.close()
            self._courier.close()

    def __deepcopy__(self, memo: object) -> None:
        """A copy of the model is not synchronized."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Nor is one in a file."""
        return type(None), ()

    # Ends of rounds.

    def _adopt(self, entries: Sequence[Entry]) -> None:
        """Agree on the plan, copy rank 0's values of ``entries``, and hook them."""
        self._end_plan()
        self._exchange.agree(self._plan.specs)
        self._courier.broadcast([(entry.spec, entry.tensor) for entry in entries])
        self._begin_plan()
        for entry in entries:
            # The exchange wrote behind torch's back; autograd must not trust what it saved of the old values.
            torch.autograd.graph.increment_version(entry.tensor)
            if entry.taken is None:
                self._courier.remember(entry.spec, entry.tensor)
                if self._exchange.rank != self._sender:
                    self._courier.keep(entry.spec, entry.tensor)
        self._hook_thawed()

    def _end_plan(self) -> None:
        if self._timeline is not None:
            self._timeline.finish()

    def _begin_plan(self) -> None:
        if self._timeline is not None:
            self._timeline.planned(self._round)

    def _hook_thawed(self) -> None:
        """Hook parameters that require gradients and have no hook: new ones, and frozen ones that thawed."""
        for entry in self._plan.entries:
            if entry.taken is not None and not entry.hooked and entry.tensor.requires_grad:
                hook = GradientHook(self, entry)
                self._handles.append(entry.tensor.register_post_accumulate_grad_hook(hook))
                entry.hooked = True

    def _close_round(self) -> None:
        """Push what no hook pushed, and say what is absent."""
        absent = []
        self._choose_sender()
        for entry in self._plan.entries:
            if entry.pushed == self._round:
                continue
            if not (self._push_buffer(entry) if entry.taken is None else self._push_late(entry)):
                absent.append(entry.spec.id)
        self._courier.round_end(self._round, absent)
        self._round += 1
        # What is waited for from here on is this round's, in whichever mode.
        self._exposed_before_s = self._exposed_s
        if self._timeline is not None:
            self._timeline.round_ended()

    def _push_late(self, entry: Entry) -> bool:
        """A gradient that the last backward did not touch: of ``no_sync()`` alone, just thawed, or set by hand."""
        gradient = entry.tensor.grad
        # After a backward that did not reach it, its average of an earlier one is still right and needs no exchange.
        if gradient is None or (self._options.overlap == "backward" and entry.untouched(gradient)):
            return False
        if is_taken(gradient):
            raise _errors.taken(entry.name)
        self._push(entry, gradient)
        entry.tensor.grad = entry.taken
        return True

    def _choose_sender(self) -> None:
        """Buffers are sent by the first rank that is left; a new one knows not what the last one's ranks have."""
        first = self._exchange.first
        if first != self._sender:
            self._sender = first
            self._courier.forget()

    def _push_buffer(self, entry: Entry) -> bool:
        """The first rank sends a buffer that changed since it was last sent; constants never travel."""
        if not entry.refresh():
            raise _errors.buffer_form(entry.name, _form(entry.spec.dtype, entry.spec.shape))
        # The version counter would not tell: batch_norm writes its statistics without a trace.
        if self._exchange.rank != self._sender:
            return False
        # The next forward pass writes to the buffer while a copy travels.
        if not self._courier.push_changed(entry.spec, entry.tensor):
            return False
        entry.pushed = self._round
        return True

    def _push(self, entry: Entry, gradient: torch.Tensor) -> None:
        spec = entry.spec
        if gradient.layout != torch.strided or not plain(gradient):
            form = str(gradient.layout) if gradient.layout != torch.strided else type(gradient).__name__
            raise _errors.no_memory(entry.name, form)
        if gradient.dtype != spec.dtype or tuple(gradient.shape) != spec.shape:
            planned = _form(spec.dtype, spec.shape)
            raise _errors.other_form(entry.name, _form(gradient.dtype, gradient.shape), planned)
        sent = gradient.detach()
        if not same_memory(sent, spec):
            sent = in_strides(spec, sent)
        entry.pushed = self._round
        self._courier.push(spec, sent)

    def _arm(self) -> None:
        self._hyper = snapshot(self.optimizer)
        for entry in self._plan.entries:
            entry.pending = True
            entry.version = entry.tensor._version  # noqa: SLF001
            entry.place = entry.tensor.data_ptr()
        self._pending = len(self._plan.entries)

    def _finish(self) -> None:
        """Rule one: what is pending from the last round is finished before this one ends."""
        self.flush()
        if not self._pending:
            self._clip.round_done()

    def _land(self, entries: list[Entry]) -> None:
        """Wait for ``entries``, then step their parameters with the settings of the round's ``step()``."""
        self._wait_for(entries)
        entries.sort(key=lambda entry: entry.spec.id)
        with self._quiet():
            stepped = []
            for entry in entries:
                if entry.taken is None:
                    self._take_buffer(entry)
                elif self._exchange.used(entry.spec.id):
                    stepped.append(entry)
            for entry in stepped:
                same = (entry.tensor._version, entry.tensor.data_ptr()) == (entry.version, entry.place)  # noqa: SLF001
                if not same or self._watch.edited(entry):
                    raise _errors.modified(entry.name)
            kept = [entry.tensor.grad for entry in stepped]
            try:
                for entry in stepped:
                    entry.tensor.grad = self._average(entry)
                self._clip.apply(stepped)
                for entry in entries:
                    entry.pending = False
                self._pending -= len(entries)
                if stepped:
                    chosen = {id(entry.tensor) for entry in stepped}
                    began = time.monotonic_ns()
                    step_some(self.optimizer, self._base, self._hyper, chosen)
                    if self._timeline is not None:
                        names = [entry.name for entry in stepped]
                        self._timeline.stepped(names, began, time.monotonic_ns())
            finally:
                for entry, gradient in zip(stepped, kept, strict=True):
                    entry.tensor.grad = gradient

    def _step_whole(self) -> None:
        """A barrier: everything lands, then the user's own step runs, hooks and all."""
        self._restore()
        self._base.step(self.optimizer)

    def _restore(self) -> None:
        """Wait for everything and put the averages into ``p.grad``, as a stock backward leaves them."""
        self._wait_for(self._plan.entries)
        with self._quiet():
            for entry in self._plan.entries:
                if entry.taken is None:
                    self._take_buffer(entry)
                elif self._exchange.used(entry.spec.id):
                    # A copy: the loop keeps its gradients, the exchange needs its memory for the next round.
                    entry.put(self._average(entry).clone())
                elif is_taken(entry.tensor.grad):
                    entry.put(None)
                entry.pending = False
            self._pending = 0
            if self._options.overlap == "forward":
                self._clip.apply(
                    [entry for entry in self._plan.gradients if self._exchange.used(entry.spec.id)]
                )

    def _end_of_backward(self) -> None:
        """Autograd calls this when a backward in which something was pushed is over."""
        self._graph_task = -1
        with self._lock:
            self._end_round()
            self._exchanged = True

    def _await_end(self, entry: Entry) -> None:
        """Have autograd call back at the end of the backward pass in which ``entry`` got its gradient."""
        task = torch._C._current_graph_task_id()  # noqa: SLF001
        if self._graph_task == task:
            return
        # Passes are numbered as they begin. One inside of another ends first, so the outer one's number comes late.
        if self._graph_task >= 0 or task < self._newest_task:
            raise _errors.reentrant(entry.name)
        self._graph_task = self._newest_task = task
        engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001
        engine.queue_callback(self._end_of_backward)

    def _end_round(self) -> None:
        self._close_round()
        self._restore()

    def _take_buffer(self, entry: Entry) -> None:
        """As it landed; not if its sender was lost, of which nobody knows how much arrived: the next sends its own.

        One that was not sent is as it landed before, whatever this rank's forward pass made of it: where the sender did
        not come by, as in a branch, others may have. What was written to it since the round's end stays.
        """
        if self._exchange.rank == self._sender or self._exchange.first != self._sender:
            return
        if not entry.refresh():
            return
        if self._exchange.used(entry.spec.id):
            entry.tensor.copy_(self._average(entry))
            self._courier.keep(entry.spec, entry.tensor)
        elif not entry.pending or entry.tensor._version == entry.version:  # noqa: SLF001
            self._courier.restore(entry.spec, entry.tensor)

    def _average(self, entry: Entry) -> torch.Tensor:
        return self._courier.average(entry.spec, entry.tensor.device)

    def _wait_for(self, entries: Sequence[Entry]) -> None:
        began = time.perf_counter()
        try:
            self._courier.wait([entry.spec.id for entry in entries], self._check_open)
        finally:
            self._exposed_s += time.perf_counter() - began

    def _look_again(self) -> None:
        """Turn what was profiled into classes and wait points, or profile the next step if something new came up."""
        if self._profile.running:
            first = not self._points.placed
            self._profile.stop()
            self._points.place(self._plan, self._profile, self._round - 1)
            if first:
                self._plan.order(self._profile, self.model)
                self._end_plan()
                self._exchange.agree(self._plan.specs)
                self._begin_plan()
        elif self._watch.added_to(self._profile.modules):
            self._points.place(self._plan, self._profile, self._round - 1)
        elif self._points.something_new:
            self._profile.start()
        self.wait(self._points.at_step)
        if self._check is None:
            self._watch.stepped(self._round, [entry for entry in self._plan.gradients if entry.pending])

    def _has_step_hooks(self) -> bool:
        own = self.optimizer
        return bool(
            own._optimizer_step_pre_hooks  # noqa: SLF001
            or own._optimizer_step_post_hooks  # noqa: SLF001
            or torch_optimizer._global_optimizer_pre_hooks  # noqa: SLF001
            or torch_optimizer._global_optimizer_post_hooks  # noqa: SLF001
        )

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Run as a stock step would, wherever the forward pass is.

        State born in inference mode could never be updated; autocast would round inside of Muon; a dispatch mode such
        as that of selective checkpointing would expect to see the step again when it recomputes.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
            for kind in filter(torch.is_autocast_enabled, DEVICES):
                stack.enter_context(torch.autocast(kind, enabled=False))
            if torch._C._len_torch_dispatch_stack():  # noqa: SLF001
                stack.enter_context(_disable_current_modes())
            for profile in filter(None, (self._profile, self._check)):
                stack.enter_context(profile.paused())
            stack.enter_context(self._watch.paused())
            yield

    def _check_use(self, entry: Entry, module: torch.nn.Module | None) -> None:
        """Of ``debug=True``: every use of every tensor comes by here."""
        if entry.pending and entry.taken is not None:
            names = {one: name for name, one in self.model.named_modules()}
            where = (
                "outside of all modules"
                if module is None
                else f"in {names.get(module) or 'the model itself'}"
            )
            raise _errors.checked_use(entry.name, where)

    def _check_open(self) -> None:
        if not self._open:
            raise Closed("this model's gradients are no longer synchronized: optimizer.close() was called")


def _form(dtype: torch.dtype, shape: Sequence[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"
