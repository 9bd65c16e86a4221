# SPDX-License-Identifier: Apache-2.0
"""The calls of a training loop, in its order, and what each does to the rounds of one model and its optimizers.

A round in the overlapping mode: a hook pushes each gradient and leaves a placeholder; ``step()`` only copies the
settings of the optimizer; before a module runs, the averages that it needs are waited for and its parameters updated.
Of several optimizers the first that is stepped after a backward ends the round, for all parameters; the others step
with the averages of that round.

Some rounds are barriers: ``step()`` waits for everything, puts the averages into ``p.grad`` and calls the user's own
step. So is the first, in which uses are profiled, and every round while the optimizer has step hooks. With
``overlap="backward"`` all rounds are, at the end of ``backward()``.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from foresee.errors import ConfigError
from foresee.torch._rank_group import RankGroup
from foresee.torch.gradients import _errors
from foresee.torch.gradients._agreement import DIFFERS, Described, PlanAgreement
from foresee.torch.gradients._buffers import Buffers
from foresee.torch.gradients._clip import Clip
from foresee.torch.gradients._hooks import GradientHook
from foresee.torch.gradients._optimizers import Stepper, steppers
from foresee.torch.gradients._placeholder import is_placeholder
from foresee.torch.gradients._plan import DEVICES, Entry, Plan
from foresee.torch.gradients._pushes import Pushes
from foresee.torch.gradients._round_state import RoundState
from foresee.torch.gradients._separable import drawn, evaluates_once
from foresee.torch.gradients._timeline import Timeline
from foresee.torch.gradients._transfer import Transfer
from foresee.torch.gradients._updates import Updates, isolated
from foresee.torch.gradients._uses import Uses
from foresee.torch.gradients._wrappers import check_forward

__all__ = ["Options", "Synchronizer"]


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


class Synchronizer:
    """Owned by the model and its optimizers; all hooks refer to it weakly."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        group: RankGroup,
        plan: Plan,
        clip: Clip,
        options: Options,
        transfer: Transfer,
        timeline: Timeline | None = None,
    ) -> None:
        self.model = model
        self.optimizers = list(optimizers)
        self.group = group
        self.plan = plan
        self._overlaps = options.overlap == "forward"
        self.rounds: RoundState[Entry] = RoundState(
            plan.entries, overlap=self._overlaps, optimizers=len(self.optimizers)
        )
        self._options = options
        self._clip = clip
        self._transfer = transfer
        self._timeline = timeline
        self._steppers = steppers(optimizers)
        for stepper in self._steppers:
            stepper.drawn = drawn(stepper.optimizer)
        buffers = Buffers(group.exchange, transfer)
        arguments = {**clip.arguments, **options.compared}
        described = Described(self._steppers, plan, self.rounds, arguments)
        self._agreement = PlanAgreement(group, plan, transfer, buffers, described, timeline)
        self.check = self._agreement.check
        self._uses = Uses(self, model, plan, debug=options.debug)
        self._pushes = Pushes(plan, self.rounds, transfer, buffers, self.check, timeline)
        self._updates = Updates(
            plan, self.rounds, group.exchange, transfer, buffers, clip, self._steppers, self._uses, timeline
        )
        # One for all that receives and steps: a checkpoint thread may flush while the loop is in a forward pass.
        self._lock = threading.RLock()
        self._forward_thread = 0
        self._unread = 0
        self._handles: list[Any] = []
        weakref.finalize(self, group.close).atexit = False

    def start(self) -> None:
        """Agree with the other ranks, take over rank 0's values, and begin to watch the loop. Collective."""
        self._adopt(self.plan.entries)
        self._agreement.share(self.model, self.rounds.number)
        if self._overlaps:
            self._uses.start()

    # What the user's loop does, in its order.

    def enter_forward(self) -> None:
        """The root's forward pass begins, on this thread."""
        check_forward(self.model)
        self._forward_thread = threading.get_ident()
        # What its optimizer did not step is used where no hook is; its average comes before its next gradient.
        self.wait(self._uses.points.at_step)
        if self.check.pending:
            with self._lock:
                self._compare()

    def leave_forward(self) -> None:
        """It is over, or raised."""
        self._forward_thread = 0

    @property
    def in_forward(self) -> bool:
        """Whether this thread is in the root's forward pass, where wait points see to every use that was profiled."""
        return self._forward_thread == threading.get_ident()

    def wait_point(self, entries: Sequence[Entry]) -> None:
        """Before a module runs in a forward pass with gradients: ``wait``."""
        self._uses.watch.mark_wait_point()
        self.wait(entries)

    def wait(self, entries: Sequence[Entry]) -> None:
        """Before a module runs: receive and update what it needs. Idempotent."""
        if self.rounds.pending:
            with self._lock:
                self._updates.receive(entries, ahead=True)

    def push_gradient(self, entry: Entry, parameter: torch.Tensor) -> None:
        """A gradient is complete. Never blocks; runs on autograd's threads."""
        gradient = parameter.grad
        if gradient is None or not self.rounds.accepts_gradient(entry):
            return
        if entry.pending:
            # No optimizer has a step due, so the value was right; the average of the last round comes first.
            self.wait([entry])
            gradient = parameter.grad
            assert gradient is not None, "autograd has put it there"
        self.rounds.check_first(entry)
        self._pushes.push(entry, gradient)
        self._uses.points.record_gradient(entry)
        if not self._overlaps:
            task = torch._C._current_graph_task_id()  # noqa: SLF001
            if self.rounds.begin_backward(task, entry):
                engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001
                engine.queue_callback(self._end_backward)

    def evaluate(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Any:
        """Evaluate a closure of ``step()``, as every optimizer does that evaluates it once: before anything else."""
        base = self._stepper_of(optimizer).base
        if not evaluates_once(optimizer, base):
            raise _errors.closure(base.__name__)
        with torch.enable_grad():
            return closure()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """What ``optimizer.step()`` becomes."""
        with self._lock:
            self.rounds.check_open()
            stepper = self._stepper_of(optimizer)
            ends = self.rounds.ends_round(stepper.number)
            if ends:
                self._end_round(stepper.number)
            self.rounds.record_step(stepper.number)
            if self._overlaps:
                self._step(stepper, ended=ends)
            else:
                stepper.step_whole()
            self._hook_gradients()
            if self._overlaps and ends and self._uses.end_step(self.rounds.number - 1):
                self._agreement.update_classes(self.rounds.number)
            self.wait([one for one in self._uses.points.at_step if one.armed or one.place is None])
            if self._overlaps and ends:
                self._uses.begin_step(self.rounds.number)

    def clear_due(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """``zero_grad()`` was called, of an optimizer or of the model: averages of others' gradients are not wanted."""
        if optimizer is None:
            self.rounds.clear_due()
        for number, one in enumerate(self.optimizers):
            if one is optimizer:
                self.rounds.clear_due(number)

    # What may happen at any time.

    def flush(self) -> None:
        """Receive and update everything, so that the model and the optimizer are as after a stock step."""
        if self.rounds.pending or self.check.pending:
            with self._lock:
                self.wait(self.plan.entries)
                self._compare()

    @property
    def watches_reads(self) -> bool:
        """Whether a tensor that is read from its module may have to be received first, or is of interest."""
        return bool(self.rounds.pending or self._uses.watch.running) and not self._unread

    def read(self, entries: Sequence[Entry]) -> None:
        """Tensors are read from their module: receive and update them."""
        for entry in entries:
            self._uses.watch.record_read(entry)
        if any(entry.pending for entry in entries):
            self.wait(entries)

    @contextlib.contextmanager
    def without_reads(self) -> Iterator[None]:
        """Tensors are listed inside, and their values are not looked at."""
        self._unread += 1
        try:
            yield
        finally:
            self._unread -= 1

    @contextlib.contextmanager
    def converting(self) -> Iterator[None]:
        """The model is moved or converted inside, with its gradients: placeholders of earlier rounds are taken out."""
        ended = [
            entry
            for entry in self.plan.gradients
            if entry.pushed < self.rounds.number and is_placeholder(entry.tensor.grad)
        ]
        for entry in ended:
            entry.tensor.grad = None
        try:
            yield
        finally:
            for entry in ended:
                # A tensor that was converted takes no placeholder of its old form.
                with contextlib.suppress(RuntimeError):
                    entry.tensor.grad = entry.placeholder

    def extend(self) -> None:
        """The optimizer has a new parameter group: plan again. Collective."""
        with self._lock:
            self.flush()
            late = self.rounds.first_pushed()
            if late is not None:
                raise _errors.late_group(late.name)
            known = len(self.plan.entries)
            faults = self.plan.extend(self.model, self.optimizers, buffers=self._options.buffers)
            if faults:
                raise ConfigError(faults)
            self._adopt(self.plan.entries[known:])
            if self._overlaps:
                self.rounds.barrier_due = True
                self._uses.extend()

    def stats(self) -> Mapping[str, float]:
        """Of the exchange, and how long forward passes stood still for it."""
        exposed_s = self._updates.exposed_s
        return {
            **self.group.exchange.stats(),
            "rounds": self.rounds.number,
            "exposed_s": exposed_s,
            "exposed_last_round_s": exposed_s - self._updates.exposed_before_s,
        }

    def close(self) -> None:
        """Finish what is in flight and leave the exchange; hooks go, the model and the optimizer stay."""
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

    def __deepcopy__(self, memo: object) -> None:
        """A copy of the model is not synchronized."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Nor is one in a file."""
        return type(None), ()

    # Parts of the above; all but ``_hook_gradients`` and ``_stepper_of`` under the lock, or at the start.

    def _adopt(self, entries: Sequence[Entry]) -> None:
        """Agree on the plan, copy rank 0's values of ``entries``, and hook them."""
        self._agreement.adopt(entries, self.rounds.number)
        for stepper in self._steppers:
            stepper.entries = [one for one in self.plan.entries if one.is_owned_by(stepper.number)]
        self._hook_gradients()

    def _hook_gradients(self) -> None:
        """Hook parameters that require gradients and have no hook: new ones, and frozen ones that were unfrozen."""
        for entry in self.plan.gradients:
            if not entry.hooked and entry.tensor.requires_grad:
                hook = GradientHook(self, entry)
                self._handles.append(entry.tensor.register_post_accumulate_grad_hook(hook))
                entry.hooked = True
        unfrozen = self.plan.unfrozen()
        if unfrozen is not None:
            raise _errors.unfrozen(unfrozen)

    def _end_backward(self) -> None:
        """Autograd calls this when a backward in which something was pushed is over."""
        self.rounds.end_backward()
        with self._lock:
            self._end_round(None)

    def _end_round(self, stepped: int | None) -> None:
        """End a round. Everything is received at once where all rounds are barriers, and in those that are."""
        if self._overlaps:
            # What is pending from the last round is received before this one ends.
            self.flush()
            if not self.rounds.pending:
                self._clip.round_done()
            foreign = self.plan.foreign(self.optimizers)
            if foreign is not None:
                raise _errors.unplanned(foreign)
        self._pushes.end_round(stepped)
        self._updates.end_round()
        if self.rounds.is_barrier:
            self._updates.receive(self.plan.entries, at_once=True)
            self.rounds.barrier_due = False
            self._compare()

    def _step(self, stepper: Stepper, *, ended: bool) -> None:
        """Have the optimizer's parameters updated when their averages are received, or now if that is not possible."""
        own = stepper.entries
        pending = [entry for entry in own if entry.pending]
        # What was received, or left from an earlier backward, is in ``grad`` for a whole step alone.
        whole = len(pending) < len(own) or any(_has_gradient(entry) for entry in own)
        if whole or stepper.has_step_hooks:
            self._updates.receive(pending, at_once=ended)
            stepper.step_whole()
        else:
            stepper.copy_settings()
            self.rounds.arm(own)
        if torch.is_autocast_cache_enabled() and any(map(torch.is_autocast_enabled, DEVICES)):
            # The region outlives this step: casts of the old values must not serve the next forward pass.
            torch.clear_autocast_cache()

    def _compare(self) -> None:
        """See whether ranks sent the same settings; if not, raise and say where. All ranks come here, or none."""
        if not self.check.pending:
            return
        with isolated():
            if not self.check.differs(lambda ids: self._transfer.wait(ids, self.rounds.check_open)):
                return
            if self.rounds.has_gradients:
                # Gradients of another round are in flight, so this one ends without words.
                raise ConfigError(DIFFERS)
            self._updates.receive(self.plan.entries)
            self._agreement.compare(self.rounds.number)

    def _stepper_of(self, optimizer: torch.optim.Optimizer) -> Stepper:
        return next(one for one in self._steppers if one.optimizer is optimizer)


def _has_gradient(entry: Entry) -> bool:
    return entry.tensor.grad is not None and not is_placeholder(entry.tensor.grad)
