# SPDX-License-Identifier: Apache-2.0
"""The rounds of one model and its optimizers: gradients leave in backward, updates land before the next use.

Apart from hooks, plan and exchange, which it ties together: this file alone knows in which state a tensor is.
Refuses whatever would train on wrong numbers: a gradient computed from a parameter whose update had not landed,
a parameter edited between ``step()`` and its update, a second gradient for one step.

A round in the overlapping mode: each gradient is pushed by its hook and replaced by a stand-in; ``step()`` only
notes the settings of the optimizer (``arm``); before a module runs, what it needs is waited for and stepped
(``wait``). Two rules keep the servers at two slots per packet: everything pending is finished before the next
``round_end``, and a rank that did not push a tensor waits at its wait point all the same.

Of several optimizers the first that is stepped after a backward ends the round, for all parameters; the others step
with the averages of that round. Where there are several, or a parameter is in none, its average is put into ``p.grad``
when it is received, as a stock backward leaves it.

Some rounds are barriers: ``step()`` waits for everything, puts the averages into ``p.grad`` and calls the user's
own step. So is the first, in which uses are profiled, and every round while the optimizer has step hooks.
With ``overlap="backward"`` all rounds are, at the end of ``backward()``.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from foresee.errors import Closed, ConfigError
from foresee.torch._exchange import Exchange, TensorSpec
from foresee.torch.gradients import _errors
from foresee.torch.gradients._agreement import DIFFERS, Agreement, Described, compare
from foresee.torch.gradients._buffers import Buffers
from foresee.torch.gradients._clip import Clip
from foresee.torch.gradients._courier import Courier
from foresee.torch.gradients._first_use import FirstUse, unwatched
from foresee.torch.gradients._hooks import GradientHook
from foresee.torch.gradients._initial import share
from foresee.torch.gradients._optimizers import Stepper, quiet, steppers
from foresee.torch.gradients._plan import DEVICES, Entry, Plan
from foresee.torch.gradients._separable import drawn, evaluates_once
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
    recover: bool
    debug: bool

    @property
    def compared(self) -> dict[str, object]:
        """Those that have to be equal on all ranks, by the names of the arguments."""
        return {"overlap": self.overlap, "buffers": self.buffers, "recover": self.recover}


class Rounds:
    """The state machine; owned by the model and its optimizers, referred to weakly by all hooks."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        exchange: Exchange,
        plan: Plan,
        clip: Clip,
        options: Options,
        courier: Courier,
        timeline: Timeline | None = None,
    ) -> None:
        self.model = model
        self.optimizers = list(optimizers)
        self._steppers = steppers(optimizers)
        for stepper in self._steppers:
            stepper.drawn = drawn(stepper.optimizer)
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
        # A later backward may add to the gradients that one of several optimizers steps on: averages stay in ``grad``.
        self._several = len(self._steppers) > 1
        self._buffers = Buffers(exchange, courier)
        self._pending = 0
        # Whether this rank has gradients of which no round has ended: pushed ones, or ones that no_sync() kept here.
        self._fresh = False
        self._barrier = options.overlap == "forward"
        self._graph_task = self._newest_task = -1
        self._exposed_s = 0.0
        self._exposed_before_s = 0.0
        self._described = Described(self._steppers, plan, {**clip.arguments, **options.compared})
        self.agreement = Agreement(exchange, self._described)
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
        self._end_plan()
        share(self._exchange, self._plan.constant(self.model), self._specs())
        compare(self._exchange, self._described.lines(weights=False))
        self._begin_plan()
        if self._options.overlap == "forward":
            self._profile.start()
            if self._check is not None:
                self._check.start()

    # What the user's loop does, in its order.

    def gradient(self, entry: Entry, parameter: torch.Tensor) -> None:
        """A gradient is complete. Never blocks; runs on autograd's threads."""
        gradient = parameter.grad
        if gradient is None or not self._open:
            return
        if self._silent:
            self._fresh = True
            return
        if entry.pending:
            if entry.armed:
                raise _errors.used_early(entry.name)
            # No optimizer has a step due, so the value was right; the average of the last round comes first.
            self.wait([entry])
            gradient = parameter.grad
            assert gradient is not None, "autograd has put it there"
        if entry.pushed == self._round:
            raise _errors.second_gradient(entry.name)
        self._push(entry, gradient)
        parameter.grad = entry.taken
        self._points.pushed(entry)
        if self._options.overlap == "backward":
            self._await_end(entry)

    def evaluate(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Any:
        """Evaluate a closure of ``step()``, as every optimizer does that evaluates it once: before anything else."""
        base = next(one.base for one in self._steppers if one.optimizer is optimizer)
        if not evaluates_once(optimizer, base):
            raise _errors.closure(base.__name__)
        with torch.enable_grad():
            return closure()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """What ``optimizer.step()`` becomes."""
        with self._lock:
            self._check_open()
            stepper = next(one for one in self._steppers if one.optimizer is optimizer)
            overlaps = self._options.overlap == "forward"
            ends = self._round == 0 or stepper.round == self._round - 1 or self._fresh
            if ends:
                self._end_round(stepper)
            stepper.round = self._round - 1
            stepper.steps += 1
            if overlaps:
                self._step(stepper, ended=ends)
            else:
                stepper.step_whole()
            self._hook_thawed()
            if overlaps and ends:
                self._look_again()
            self.wait([entry for entry in self._points.at_step if entry.armed or entry.place is None])
            if overlaps and ends and self._check is None:
                self._watch.stepped(self._round, [entry for entry in self._plan.gradients if entry.armed])

    def _step(self, stepper: Stepper, *, ended: bool) -> None:
        """Have the optimizer's parameters updated when their averages are received, or now if that is not possible."""
        own = stepper.entries
        pending = [entry for entry in own if entry.pending]
        # What has been received, or kept from an earlier backward, is in ``grad`` for a whole step alone.
        whole = len(pending) < len(own) or any(_is_there(entry.tensor.grad) for entry in own)
        if whole or stepper.has_step_hooks:
            self._land(self._with_all_for_clip(pending), at_once=ended)
            stepper.step_whole()
        else:
            stepper.arm()
        if torch.is_autocast_cache_enabled() and any(map(torch.is_autocast_enabled, DEVICES)):
            # The region outlives this step: casts of the old values must not serve the next forward pass.
            torch.clear_autocast_cache()

    def wait(self, entries: Sequence[Entry]) -> None:
        """Before a module runs: land and step what it needs. Idempotent."""
        if not self._pending:
            return
        with self._lock:
            needed = [entry for entry in entries if entry.pending]
            self._land(self._with_all_for_clip(needed), with_landed=True)

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

    @contextlib.contextmanager
    def converted(self) -> Iterator[None]:
        """The model is moved or converted inside, with its gradients: it has no stand-ins of rounds that have ended."""
        ended = [
            entry
            for entry in self._plan.gradients
            if entry.pushed < self._round and is_taken(entry.tensor.grad)
        ]
        for entry in ended:
            entry.tensor.grad = None
        try:
            yield
        finally:
            for entry in ended:
                # A tensor that was converted takes no stand-in of its old form.
                with contextlib.suppress(RuntimeError):
                    entry.tensor.grad = entry.taken

    def flush(self) -> None:
        """Land and step everything, so that the model and the optimizer are as after a stock step."""
        if self._pending or self.agreement.pending:
            with self._lock:
                self.wait(self._plan.entries)
                self._compare()

    def enter_forward(self) -> None:
        """The root's forward pass begins, on this thread."""
        check_forward(self.model)
        self._forward_thread = threading.get_ident()
        # What its optimizer did not step is used where no hook is; its average comes before its next gradient.
        self.wait(self._points.at_step)
        if self.agreement.pending:
            with self._lock:
                self._compare()

    def leave_forward(self) -> None:
        """It is over, or raised."""
        self._forward_thread = 0

    @property
    def in_forward(self) -> bool:
        """Whether this thread is in the root's forward pass, where wait points see to every use that was profiled."""
        return self._forward_thread == threading.get_ident()

    def cleared(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """``zero_grad()`` was called, of an optimizer or of the model: averages of others' gradients are not wanted."""
        for entry in self._plan.entries:
            if optimizer is None or (
                entry.place is not None and self.optimizers[entry.place[0]] is optimizer
            ):
                entry.due = False

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
            faults = self._plan.extend(self.model, self.optimizers, buffers=self._options.buffers)
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
        self._exchange.agree(self._specs())
        self._courier.broadcast([(entry.spec, entry.tensor) for entry in entries])
        self._begin_plan()
        for stepper in self._steppers:
            stepper.entries = [entry for entry in self._plan.entries if stepper.owns(entry)]
        for entry in entries:
            # The exchange wrote behind torch's back; autograd must not trust what it saved of the old values.
            torch.autograd.graph.increment_version(entry.tensor)
            if entry.taken is None:
                self._buffers.adopt(entry)
        self._hook_thawed()

    def _specs(self) -> list[TensorSpec]:
        specs = self._plan.specs
        return [*specs, self.agreement.spec(len(specs))] if self.agreement.active else specs

    # Whether ranks agree.

    def _compare(self) -> None:
        """Look at what ranks sent of their settings; if they differ, say where. All ranks come here, or none."""
        if not self.agreement.pending:
            return
        with self._quiet():
            if not self.agreement.differs(lambda ids: self._courier.wait(ids, self._check_open)):
                return
            if self._fresh:
                # Gradients of another round are in flight, so this one ends without words.
                raise ConfigError(DIFFERS)
            self._land(self._with_all_for_clip([entry for entry in self._plan.entries if entry.pending]))
            self._end_plan()
            compare(self._exchange, self._described.lines())
            self._begin_plan()

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
        thawed = self._plan.thawed()
        if thawed is not None:
            raise _errors.thawed(thawed)

    def _close_round(self, stepper: Stepper | None = None) -> None:
        """Push what no hook pushed, and say what is absent. ``stepper``: whose step ends the round, if one's does."""
        absent = []
        self._buffers.choose_sender()
        for entry in self._plan.entries:
            if entry.pushed == self._round:
                continue
            pushed = self._buffers.push(entry, self._round) if entry.taken is None else self._push_late(entry)
            if not pushed:
                absent.append(entry.spec.id)
                elsewhere = entry.taken is not None and (stepper is None or not stepper.owns(entry))
                entry.due = elsewhere and entry.tensor.grad is None
        absent += self.agreement.push()
        self._courier.round_end(self._round, absent)
        if stepper is not None:
            stepper.round = self._round
        self._round += 1
        self._fresh = False
        for entry in self._plan.entries:
            entry.note()
        self._pending = len(self._plan.entries)
        # What is waited for from here on is this round's, in whichever mode.
        self._exposed_before_s = self._exposed_s
        if self._timeline is not None:
            self._timeline.round_ended()

    def _push_late(self, entry: Entry) -> bool:
        """A gradient that the last backward did not touch: of ``no_sync()`` alone, just thawed, or set by hand."""
        gradient = entry.tensor.grad
        # After a backward that did not reach it, its average of an earlier one is still right and needs no exchange.
        if gradient is None or entry.untouched(gradient):
            return False
        if is_taken(gradient):
            raise _errors.taken(entry.name)
        self._push(entry, gradient)
        entry.tensor.grad = entry.taken
        return True

    def _push(self, entry: Entry, gradient: torch.Tensor) -> None:
        sent = entry.as_planned(gradient)
        entry.pushed = self._round
        self._fresh = True
        self._courier.push(entry.spec, sent)

    def _finish(self) -> None:
        """Rule one: what is pending from the last round is finished before this one ends."""
        self.flush()
        if not self._pending:
            self._clip.round_done()

    def _with_all_for_clip(self, pending: list[Entry]) -> list[Entry]:
        """``pending``, and everything else that is, where clipping needs all averages at once."""
        if pending and self._clip.needs_all:
            return [entry for entry in self._plan.entries if entry.pending]
        return pending

    def _with_landed(self, needed: list[Entry]) -> list[Entry]:
        """``needed``, and what is used later and has landed too: one step for all takes less time than several.

        Where uses are checked each update lands at its own wait point: what is found does not depend on the network.
        """
        if len(needed) == self._pending or self._watch.running or self._check is not None:
            return needed
        chosen = {entry.spec.id for entry in needed}
        later = [entry for entry in self._plan.by_use if entry.armed and entry.spec.id not in chosen]
        return needed + later[: self._courier.landed([entry.spec.id for entry in later])]

    def _land(self, entries: list[Entry], *, at_once: bool = False, with_landed: bool = False) -> None:
        """Wait for ``entries``; step those whose optimizer was, with its settings then; keep the others' averages.

        ``at_once``: the round ended just now, and the loop has not run since. ``with_landed``: others that have landed,
        too.
        """
        if not entries:
            return
        self._wait_for(entries)
        if with_landed:
            entries = self._with_landed(entries)
        entries.sort(key=lambda entry: entry.spec.id)
        with self._quiet():
            used = []
            for entry in entries:
                if entry.taken is None:
                    self._buffers.take(entry)
                elif self._exchange.used(entry.spec.id):
                    used.append(entry)
                elif is_taken(entry.tensor.grad):
                    entry.put(None)
            for entry in used:
                if entry.armed and (entry.was_edited or self._watch.edited(entry)):
                    raise _errors.modified(entry.name)
            kept = [entry.tensor.grad for entry in used]
            averages = [self._courier.average(entry.spec, entry.tensor.device) for entry in used]
            try:
                for entry, average in zip(used, averages, strict=True):
                    entry.tensor.grad = average
                self._clip.apply(used)
                for entry in entries:
                    entry.pending = False
                self._pending -= len(entries)
                for stepper in self._steppers:
                    self._update(stepper, [entry for entry in used if entry.armed and stepper.owns(entry)])
            finally:
                for entry, gradient in zip(used, kept, strict=True):
                    entry.tensor.grad = gradient
            for entry, average in zip(used, averages, strict=True):
                if self._several or not entry.armed:
                    entry.receive(average, at_once=at_once)
        for entry in entries:
            entry.armed = entry.due = False

    def _update(self, stepper: Stepper, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        began = time.monotonic_ns()
        stepper.step_some({id(entry.tensor) for entry in entries})
        if self._timeline is not None:
            self._timeline.stepped([entry.name for entry in entries], began, time.monotonic_ns())

    def _end_of_backward(self) -> None:
        """Autograd calls this when a backward in which something was pushed is over."""
        self._graph_task = -1
        with self._lock:
            self._end_round()

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

    def _end_round(self, stepper: Stepper | None = None) -> None:
        """End a round. Everything is received at once where all rounds are barriers, and in those that are."""
        if self._options.overlap == "forward":
            self._finish()
            foreign = self._plan.foreign(self.optimizers)
            if foreign is not None:
                raise _errors.unplanned(foreign)
        self._close_round(stepper)
        if self._options.overlap == "backward" or self._barrier:
            self._land(list(self._plan.entries), at_once=True)
            self._barrier = False
            self._compare()

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
                self._exchange.agree(self._specs())
                self._begin_plan()
        elif self._watch.added_to(self._profile.modules):
            self._points.place(self._plan, self._profile, self._round - 1)
        elif self._points.something_new:
            self._profile.start()

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Run as a stock step would, and be seen by no profile."""
        with unwatched(), quiet():
            yield

    def _check_use(self, entry: Entry, module: torch.nn.Module | None) -> None:
        """Of ``debug=True``: every use of every tensor comes by here."""
        if entry.armed:
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


def _is_there(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and not is_taken(gradient)
