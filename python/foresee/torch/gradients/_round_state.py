# SPDX-License-Identifier: Apache-2.0
"""The state of a synchronized model's rounds, without torch: what of each tensor was pushed, received and stepped.

It answers what a call of the training loop means and raises where that would train on wrong numbers; ``_synchronizer``
and the files below it move the tensors. It is pure so that orders of calls are tested without tensors or threads. A
tensor is pushed at most once per round, and everything of a round is received before the next one ends: two slots per
packet in the servers rely on that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from foresee.errors import Closed
from foresee.torch.gradients import _errors

__all__ = ["RoundState", "TensorState"]


@dataclass(eq=False, kw_only=True)
class TensorState:
    """Where one tensor of the plan is in the present round."""

    name: str
    """As errors show it."""
    place: tuple[int, int] | None = None
    """Number of its optimizer and of its parameter group there; None for buffers and parameters of no optimizer."""
    is_buffer: bool = False
    pushed: int = -1
    """The last round in which this rank pushed it."""
    pending: bool = False
    """Whether an average may be in flight that has not been received yet."""
    armed: bool = False
    """Whether its optimizer was stepped in this round: the parameter is updated when the average is received."""
    due: bool = False
    """Whether this rank had no gradient, and is to have the average of the others' in ``grad``."""

    def is_owned_by(self, optimizer: int | None) -> bool:
        """Whether it is a parameter of the optimizer with this number."""
        return self.place is not None and self.place[0] == optimizer


Tensor = TypeVar("Tensor", bound=TensorState)


class RoundState(Generic[Tensor]):
    """The rounds of one model and its optimizers.

    Args:
        tensors: of the plan, by id; may grow while nothing is pushed.
        overlap: whether updates may be received after ``step()``; otherwise every round is a barrier.
        optimizers: how many there are.
    """

    def __init__(self, tensors: Sequence[Tensor], *, overlap: bool, optimizers: int) -> None:
        self.number = 0
        """Of the present round, from 0: how many this rank has ended."""
        self.pending = 0
        """How many tensors are pending."""
        self.has_gradients = False
        """Whether this rank has gradients of which no round has ended: pushed, or accumulated under ``no_sync()``."""
        self.is_open = True
        self.barrier_due = overlap
        """Whether the next round is a barrier, as the first is, in which uses are profiled."""
        self.steps = [0] * optimizers
        """By optimizer, how often it was stepped."""
        self._tensors = tensors
        self._overlap = overlap
        self._paused = 0
        # By optimizer, the last round whose averages it used.
        self._used = [-1] * optimizers
        self._backward = self._newest_backward = -1

    # Backward.

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Gradients computed inside are accumulated on this rank."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def accepts_gradient(self, tensor: Tensor) -> bool:
        """Whether the gradient of ``tensor``, which is complete, is to be pushed now.

        Raises:
            GradientMisuse: it was computed from a value whose update is pending.
        """
        if not self.is_open:
            return False
        if self._paused:
            self.has_gradients = True
            return False
        if tensor.pending and tensor.armed:
            raise _errors.used_early(tensor.name)
        return True

    def check_first(self, tensor: Tensor) -> None:
        """Refuse a second gradient in one round.

        Raises:
            GradientMisuse: ``tensor`` was pushed in this round.
        """
        if tensor.pushed == self.number:
            raise _errors.second_gradient(tensor.name)

    def record_push(self, tensor: Tensor) -> None:
        """``tensor`` is pushed in this round."""
        tensor.pushed = self.number
        self.has_gradients = True

    def begin_backward(self, number: int, tensor: Tensor) -> bool:
        """Note that ``tensor`` got its gradient in the backward pass with this number; whether it is the pass's first.

        Raises:
            GradientMisuse: the pass runs inside of another one.
        """
        if self._backward == number:
            return False
        # Passes are numbered as they begin. One inside of another ends first, so the outer one's number comes late.
        if self._backward >= 0 or number < self._newest_backward:
            raise _errors.reentrant(tensor.name)
        self._backward = self._newest_backward = number
        return True

    def end_backward(self) -> None:
        """The backward pass is over."""
        self._backward = -1

    # The end of a round, and steps.

    def ends_round(self, optimizer: int) -> bool:
        """Whether a step of this optimizer ends the round: no other optimizer's has since the last backward."""
        return self.number == 0 or self._used[optimizer] == self.number - 1 or self.has_gradients

    def unpushed(self) -> list[Tensor]:
        """What this rank has not pushed in this round."""
        return [tensor for tensor in self._tensors if tensor.pushed != self.number]

    def first_pushed(self) -> Tensor | None:
        """A gradient that was pushed in this round, if there is one."""
        return next((one for one in self._tensors if not one.is_buffer and one.pushed == self.number), None)

    def record_absent(self, tensor: Tensor, stepped: int | None, *, has_gradient: bool) -> None:
        """This rank has no gradient of ``tensor`` in this round, which a step of ``stepped`` ends, or no step."""
        tensor.due = not tensor.is_owned_by(stepped) and not has_gradient

    def end_round(self, stepped: int | None) -> None:
        """End the round: everything is pending. ``stepped``: the optimizer whose step ends it, if one's does."""
        if stepped is not None:
            self._used[stepped] = self.number
        self.number += 1
        self.has_gradients = False
        for tensor in self._tensors:
            tensor.pending = True
        self.pending = len(self._tensors)

    @property
    def is_barrier(self) -> bool:
        """Whether the round that ended just now is received at once."""
        return not self._overlap or self.barrier_due

    def record_step(self, optimizer: int) -> None:
        """This optimizer is stepped, with the averages of the last round that ended."""
        self._used[optimizer] = self.number - 1
        self.steps[optimizer] += 1

    def arm(self, tensors: Sequence[Tensor]) -> None:
        """Their optimizer was stepped: each is updated when its average is received."""
        for tensor in tensors:
            tensor.armed = True

    # Averages.

    def select_pending(self, tensors: Sequence[Tensor], *, all_at_once: bool) -> list[Tensor]:
        """Those of ``tensors`` that are pending; ``all_at_once``: all that are, if one of these is."""
        pending = [tensor for tensor in tensors if tensor.pending]
        return [one for one in self._tensors if one.pending] if pending and all_at_once else pending

    def record_received(self, tensors: Sequence[Tensor]) -> None:
        """Their averages, or that there are none, are known."""
        for tensor in tensors:
            tensor.pending = False
        self.pending -= len(tensors)

    def record_updated(self, tensors: Sequence[Tensor]) -> None:
        """Their optimizers and ``grad`` have what they are to have of this round."""
        for tensor in tensors:
            tensor.armed = tensor.due = False

    def clear_due(self, optimizer: int | None = None) -> None:
        """Averages of others' gradients are not wanted in ``grad``, of one optimizer's parameters or of all."""
        for tensor in self._tensors:
            if optimizer is None or tensor.is_owned_by(optimizer):
                tensor.due = False

    def check_open(self) -> None:
        """Refuse to go on after ``close()``.

        Raises:
            Closed: the rounds were closed.
        """
        if not self.is_open:
            raise Closed("this model's gradients are no longer synchronized: optimizer.close() was called")
