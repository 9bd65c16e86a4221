# SPDX-License-Identifier: Apache-2.0
"""The calls of a training loop, and what each does to the rounds of one model and its optimizers.

In the overlapping mode a hook pushes each gradient and leaves a placeholder. ``step()`` only copies the settings of the
optimizer. Before a module runs, its averages are received and its parameters updated. Of several optimizers, the first
step after a backward ends the round for all parameters; the others step with the averages of that round.

In a barrier, ``step()`` waits for everything, puts the averages into ``p.grad`` and calls the user's own step. The
first round is one, since uses are profiled in it, and so is every round while the optimizer has step hooks. With
``overlap="backward"`` all rounds are barriers, at the end of ``backward()``.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch

from foresee.errors import ConfigError
from foresee.torch._rank_group import RankGroup
from foresee.torch.gradients import _errors
from foresee.torch.gradients._agreement import SETTINGS_DIFFER, PlanAgreement, SettingsDescription
from foresee.torch.gradients._buffers import Buffers
from foresee.torch.gradients._clip import Clip
from foresee.torch.gradients._hooks import Hook
from foresee.torch.gradients._placeholder import is_placeholder
from foresee.torch.gradients._plan import DEVICES, Entry, Plan
from foresee.torch.gradients._pushes import Pushes
from foresee.torch.gradients._round_state import RoundState
from foresee.torch.gradients._separable import evaluates_once, find_generators
from foresee.torch.gradients._steps import Stepper
from foresee.torch.gradients._timeline import Timeline
from foresee.torch.gradients._transfer import Transfer
from foresee.torch.gradients._updates import Updates, isolated
from foresee.torch.gradients._uses import Uses
from foresee.torch.gradients._wrappers import check_forward

__all__ = ["Synchronizer"]


class Synchronizer:
    """Synchronizes one model. The model and its optimizers own it; hooks refer to it weakly."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        group: RankGroup,
        plan: Plan,
        clip: Clip,
        transfer: Transfer,
        timeline: Timeline | None,
        *,
        overlap: Literal["forward", "backward"],
        buffers: bool,
        recover: bool,
        debug: bool,
    ) -> None:
        self.model = model
        self.optimizers = list(optimizers)
        self.group = group
        self.plan = plan
        self._is_overlapping = overlap == "forward"
        self.rounds: RoundState[Entry] = RoundState(
            plan.entries, overlap=self._is_overlapping, optimizers=len(self.optimizers)
        )
        self._sends_buffers = buffers
        self._clip = clip
        self._transfer = transfer
        self._timeline = timeline
        self._steppers = [Stepper(one, number, find_generators(one)) for number, one in enumerate(optimizers)]
        own_buffers = Buffers(group.exchange, transfer)
        arguments = {**clip.arguments, "overlap": overlap, "buffers": buffers, "recover": recover}
        description = SettingsDescription(self._steppers, plan, self.rounds, arguments)
        self._agreement = PlanAgreement(group, plan, transfer, own_buffers, description, timeline)
        self.check = self._agreement.check
        self._uses = Uses(self, model, plan, debug=debug)
        self._pushes = Pushes(self.rounds, transfer, own_buffers, self.check, timeline)
        self._updates = Updates(
            plan,
            self.rounds,
            group.exchange,
            transfer,
            own_buffers,
            clip,
            self._steppers,
            self._uses,
            timeline,
        )
        # Guards everything that receives and steps: a checkpoint thread may flush during a forward pass.
        self._lock = threading.RLock()
        self._forward_thread = 0
        self._ignoring_reads = 0
        self._handles: list[Any] = []
        weakref.finalize(self, group.close).atexit = False

    def start(self) -> None:
        """Agree with the other ranks, copy rank 0's values, and profile the first step. Collective."""
        self._adopt(self.plan.entries)
        self._agreement.share(self.model, self.rounds.number)
        if self._is_overlapping:
            self._uses.start()

    # Calls of the user's loop, in its order.

    def enter_forward(self, entries: Sequence[Entry]) -> None:
        """Begin the root's forward pass on this thread, and receive what it needs."""
        check_forward(self.model)
        self._forward_thread = threading.get_ident()
        # Tensors without a hook: an average that no step used is due before the next gradient.
        self.wait(self._uses.points.step_waits)
        if self.check.is_pending:
            with self._lock:
                self._compare()
        if torch.is_grad_enabled():
            self.wait_point(entries)
        else:
            # Evaluations may take unprofiled paths, such as the fast path of TransformerEncoderLayer.
            self.flush()

    def leave_forward(self) -> None:
        """End the root's forward pass, which returned or raised."""
        self._forward_thread = 0

    @property
    def is_in_forward(self) -> bool:
        """Whether this thread is in the root's forward pass, where wait points cover the profiled uses."""
        return self._forward_thread == threading.get_ident()

    def wait_point(self, entries: Sequence[Entry]) -> None:
        """``wait`` before a module runs in a forward pass with gradients."""
        self._uses.watch.mark_wait_point()
        self.wait(entries)

    def wait(self, entries: Sequence[Entry]) -> None:
        """Receive and update the pending ``entries``."""
        if self.rounds.pending_count:
            with self._lock:
                self._updates.receive(entries, ahead=True)

    def push_gradient(self, entry: Entry) -> None:
        """Push a complete gradient. Never blocks; runs on autograd's threads."""
        gradient = entry.tensor.grad
        if gradient is None or not self.rounds.accepts_gradient(entry):
            return
        if entry.is_pending:
            # No deferred update, so the value was right. The average of the last round is received first.
            self.wait([entry])
            gradient = entry.tensor.grad
            assert gradient is not None, "set by autograd"
        self.rounds.check_first(entry)
        self._pushes.push(entry, gradient)
        self._uses.points.record_gradient(entry)
        if not self._is_overlapping:
            task = torch._C._current_graph_task_id()  # noqa: SLF001
            if self.rounds.begin_backward(task, entry):
                engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001
                engine.queue_callback(self._end_backward)

    def evaluate(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Any:
        """Evaluate a closure of ``step()`` before anything else, if the optimizer evaluates it exactly once."""
        base = self._find_stepper(optimizer).base
        if not evaluates_once(optimizer, base):
            raise _errors.closure(base.__name__)
        with torch.enable_grad():
            return closure()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Run ``optimizer.step()``."""
        with self._lock:
            self.rounds.check_open()
            stepper = self._find_stepper(optimizer)
            ends_round = self.rounds.ends_round(stepper.number)
            if ends_round:
                self._end_round(stepper.number)
            self.rounds.record_step(stepper.number)
            if self._is_overlapping:
                self._step(stepper, ended=ends_round)
            else:
                stepper.step_whole()
            self._hook_gradients()
            if self._is_overlapping and ends_round and self._uses.end_step(self.rounds.number - 1):
                self._agreement.update_classes(self.rounds.number)
            self.wait(
                [
                    one
                    for one in self._uses.points.step_waits
                    if one.has_deferred_update or one.param_group is None
                ]
            )
            if self._is_overlapping and ends_round:
                self._uses.begin_step(self.rounds.number)

    def clear_due(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Handle ``zero_grad()`` of an optimizer or the model: averages of others' gradients stay out of ``grad``."""
        self.rounds.clear_due(None if optimizer is None else self._find_stepper(optimizer).number)

    # Calls at any time.

    def flush(self) -> None:
        """Receive and update everything, so that the model and the optimizers are as after a stock step."""
        if self.rounds.pending_count or self.check.is_pending:
            with self._lock:
                self.wait(self.plan.entries)
                self._compare()

    @property
    def is_watching_reads(self) -> bool:
        """Whether reads of tensors from their modules have to be reported to ``read``."""
        return bool(self.rounds.pending_count or self._uses.watch.is_running) and not self._ignoring_reads

    def read(self, entries: Sequence[Entry]) -> None:
        """Receive and update tensors that are read from their module."""
        for entry in entries:
            self._uses.watch.record_read(entry)
        if any(entry.is_pending for entry in entries):
            self.wait(entries)

    @contextlib.contextmanager
    def ignore_reads(self) -> Iterator[None]:
        """Receive nothing in this context, which lists tensors without their values."""
        self._ignoring_reads += 1
        try:
            yield
        finally:
            self._ignoring_reads -= 1

    @contextlib.contextmanager
    def remove_placeholders(self) -> Iterator[None]:
        """Remove placeholders of earlier rounds while the model is moved or converted with its gradients."""
        ended = [
            entry
            for entry in self.plan.gradients
            if entry.pushed_round < self.rounds.number and is_placeholder(entry.tensor.grad)
        ]
        for entry in ended:
            entry.tensor.grad = None
        try:
            yield
        finally:
            for entry in ended:
                # A converted tensor refuses a placeholder of its old form.
                with contextlib.suppress(RuntimeError):
                    entry.tensor.grad = entry.placeholder

    def extend(self) -> None:
        """Add a new parameter group to the plan. Collective."""
        with self._lock:
            self.flush()
            late = self.rounds.find_pushed_gradient()
            if late is not None:
                raise _errors.late_group(late.name)
            known = len(self.plan.entries)
            faults = self.plan.extend(self.model, self.optimizers, buffers=self._sends_buffers)
            if faults:
                raise ConfigError(faults)
            self._adopt(self.plan.entries[known:])
            if self._is_overlapping:
                self.rounds.is_barrier_due = True
                self._uses.extend()

    def stats(self) -> Mapping[str, float]:
        """Return counters of the exchange, and the exposed time."""
        exposed_s = self._updates.exposed_s
        return {
            **self.group.exchange.stats(),
            "rounds": self.rounds.number,
            "exposed_s": exposed_s,
            "exposed_last_round_s": exposed_s - self._updates.exposed_before_s,
        }

    def close(self) -> None:
        """Finish what is in flight, leave the exchange, and remove the hooks."""
        if not self.rounds.is_open:
            return
        try:
            self.flush()
        finally:
            self.rounds.is_open = False
            self._uses.stop()
            for handle in self._handles:
                handle.remove()
            for entry in self.plan.gradients:
                if is_placeholder(entry.tensor.grad):
                    entry.tensor.grad = None
            if self._timeline is not None:
                self._timeline.close()
            self.group.close()
            self._transfer.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave None in a copy or a file of the model."""
        return type(None), ()

    # Under the lock, or at the start, except ``_hook_gradients`` and ``_find_stepper``.

    def _adopt(self, entries: Sequence[Entry]) -> None:
        """Agree on the plan, copy rank 0's values of ``entries``, and hook them."""
        self._agreement.adopt(entries, self.rounds.number)
        for stepper in self._steppers:
            stepper.entries = [one for one in self.plan.entries if one.is_owned_by(stepper.number)]
        self._hook_gradients()

    def _hook_gradients(self) -> None:
        """Hook parameters that require gradients and have no hook: new and unfrozen ones."""
        for entry in self.plan.gradients:
            if not entry.has_hook and entry.tensor.requires_grad:
                hook = Hook(self.push_gradient, entry)
                self._handles.append(entry.tensor.register_post_accumulate_grad_hook(hook))
                entry.has_hook = True
        unfrozen = self.plan.find_unfrozen()
        if unfrozen is not None:
            raise _errors.unfrozen(unfrozen)

    def _end_backward(self) -> None:
        """End a backward pass that pushed gradients; called by autograd."""
        self.rounds.end_backward()
        with self._lock:
            self._end_round(None)

    def _end_round(self, stepped: int | None) -> None:
        """End a round, and receive everything if it is a barrier."""
        if self._is_overlapping:
            # The last round is received before this one ends.
            self.flush()
            if not self.rounds.pending_count:
                self._clip.end_round()
            unplanned = self.plan.find_unplanned(self.optimizers)
            if unplanned is not None:
                raise _errors.unplanned(unplanned)
        self._pushes.end_round(stepped)
        self._updates.exposed_before_s = self._updates.exposed_s
        if self.rounds.is_barrier:
            self._updates.receive(self.plan.entries, at_once=True)
            self.rounds.is_barrier_due = False
            self._compare()

    def _step(self, stepper: Stepper, *, ended: bool) -> None:
        """Defer the updates of the optimizer's parameters to the receipt of their averages, or step now if needed."""
        own = stepper.entries
        pending = [entry for entry in own if entry.is_pending]
        # Averages that were received, or left from an earlier backward, are in ``grad`` only for a whole step.
        gradients = (entry.tensor.grad for entry in own)
        is_whole = len(pending) < len(own) or any(
            gradient is not None and not is_placeholder(gradient) for gradient in gradients
        )
        if is_whole or stepper.has_step_hooks:
            self._updates.receive(pending, at_once=ended)
            stepper.step_whole()
        else:
            stepper.copy_settings()
            self.rounds.defer_updates(own)
        if torch.is_autocast_cache_enabled() and any(map(torch.is_autocast_enabled, DEVICES)):
            # The autocast region outlives this step, and the next forward pass must not use casts of old values.
            torch.clear_autocast_cache()

    def _compare(self) -> None:
        """Compare the settings of all ranks, and raise an error with the first difference. All ranks do, or none."""
        if not self.check.is_pending:
            return
        with isolated():
            if not self.check.differs(lambda ids: self._transfer.wait(ids, self.rounds.check_open)):
                return
            if self.rounds.has_gradients:
                # Gradients of another round are in flight, so descriptions cannot be exchanged.
                raise ConfigError(SETTINGS_DIFFER)
            self._updates.receive(self.plan.entries)
            self._agreement.compare(self.rounds.number)

    def _find_stepper(self, optimizer: torch.optim.Optimizer) -> Stepper:
        return next(one for one in self._steppers if one.optimizer is optimizer)
