# SPDX-License-Identifier: Apache-2.0
"""The state of a synchronized model's rounds: what was pushed, received and stepped of each tensor.

It decides what a call of the training loop means, and raises where that would train on wrong numbers. It is pure, so
that orders of calls are tested without tensors or threads. A tensor is pushed at most once per round, and everything of
a round is received before the next one ends: the servers rely on that with two slots per packet.
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
    """State of one tensor of the plan in the present round."""

    name: str
    """As errors show it."""
    param_group: tuple[int, int] | None = None
    """Numbers of its optimizer and of its group there; None for buffers and parameters of no optimizer."""
    is_buffer: bool = False
    pushed_round: int = -1
    """The last round in which this rank pushed it."""
    is_pending: bool = False
    """Whether an average may be in flight."""
    has_deferred_update: bool = False
    """Whether its optimizer was stepped in this round: the parameter is updated when the average is received."""
    is_due: bool = False
    """Whether this rank had no gradient, and ``grad`` has to get the average of the others'."""

    def is_owned_by(self, optimizer: int | None) -> bool:
        """Whether it is a parameter of the optimizer with this number."""
        return self.param_group is not None and self.param_group[0] == optimizer


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
        """Number of the present round, from 0."""
        self.pending_count = 0
        """Number of pending tensors."""
        self.has_gradients = False
        """Whether this rank has gradients of no ended round: pushed, or accumulated under ``no_sync()``."""
        self.is_open = True
        self.is_barrier_due = overlap
        """Whether the next round is a barrier, as the first one, in which uses are profiled."""
        self.steps = [0] * optimizers
        """Number of steps by optimizer."""
        self.tensors = tensors
        self._is_overlapping = overlap
        self._pause_depth = 0
        # By optimizer, the last round whose averages it used.
        self._used_round = [-1] * optimizers
        self._backward = self._newest_backward = -1

    # Backward.

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Accumulate the gradients of this context on this rank."""
        self._pause_depth += 1
        try:
            yield
        finally:
            self._pause_depth -= 1

    def accepts_gradient(self, tensor: Tensor) -> bool:
        """Whether the complete gradient of ``tensor`` has to be pushed now.

        Raises:
            GradientMisuse: it was computed from a value whose update is pending.
        """
        if not self.is_open:
            return False
        if self._pause_depth:
            self.has_gradients = True
            return False
        if tensor.is_pending and tensor.has_deferred_update:
            raise _errors.used_early(tensor.name)
        return True

    def check_first(self, tensor: Tensor) -> None:
        """Refuse a second gradient in one round.

        Raises:
            GradientMisuse: ``tensor`` was pushed in this round.
        """
        if tensor.pushed_round == self.number:
            raise _errors.second_gradient(tensor.name)

    def record_push(self, tensor: Tensor) -> None:
        """Note that ``tensor`` is pushed in this round."""
        tensor.pushed_round = self.number
        self.has_gradients = True

    def begin_backward(self, number: int, tensor: Tensor) -> bool:
        """Note a gradient of the backward pass with this number; returns whether it is the first of the pass.

        Raises:
            GradientMisuse: the pass runs within another one.
        """
        if self._backward == number:
            return False
        # Passes are numbered at their start. An inner pass ends first, so the outer one's lower number comes later.
        if self._backward >= 0 or number < self._newest_backward:
            raise _errors.reentrant(tensor.name)
        self._backward = self._newest_backward = number
        return True

    def end_backward(self) -> None:
        """End the backward pass."""
        self._backward = -1

    # The end of a round, and steps.

    def ends_round(self, optimizer: int) -> bool:
        """Whether a step of this optimizer ends the round: no other optimizer's step has since the last backward."""
        return self.number == 0 or self._used_round[optimizer] == self.number - 1 or self.has_gradients

    def find_unpushed(self) -> list[Tensor]:
        """Return the tensors that this rank has not pushed in this round."""
        return [tensor for tensor in self.tensors if tensor.pushed_round != self.number]

    def find_pushed_gradient(self) -> Tensor | None:
        """Return a gradient that was pushed in this round, if there is one."""
        return next(
            (one for one in self.tensors if not one.is_buffer and one.pushed_round == self.number), None
        )

    def record_absent(self, tensor: Tensor, stepped: int | None, *, has_gradient: bool) -> None:
        """Note that no gradient is pushed in the round that a step of ``stepped`` ends, or no step."""
        tensor.is_due = not tensor.is_owned_by(stepped) and not has_gradient

    def end_round(self, stepped: int | None) -> None:
        """End the round: everything is pending. ``stepped``: the optimizer whose step ends it, if one's does."""
        if stepped is not None:
            self._used_round[stepped] = self.number
        self.number += 1
        self.has_gradients = False
        for tensor in self.tensors:
            tensor.is_pending = True
        self.pending_count = len(self.tensors)

    @property
    def is_barrier(self) -> bool:
        """Whether the round that just ended is received at once."""
        return not self._is_overlapping or self.is_barrier_due

    def record_step(self, optimizer: int) -> None:
        """Note a step of this optimizer, with the averages of the last round that ended."""
        self._used_round[optimizer] = self.number - 1
        self.steps[optimizer] += 1

    def defer_updates(self, tensors: Sequence[Tensor]) -> None:
        """Note a step of their optimizer: each is updated when its average is received."""
        for tensor in tensors:
            tensor.has_deferred_update = True

    # Averages.

    def select_pending(self, tensors: Sequence[Tensor], *, all_at_once: bool) -> list[Tensor]:
        """Return the pending ones of ``tensors``; ``all_at_once``: all pending ones, if one of these is."""
        pending = [tensor for tensor in tensors if tensor.is_pending]
        return [one for one in self.tensors if one.is_pending] if pending and all_at_once else pending

    def record_received(self, tensors: Sequence[Tensor]) -> None:
        """Note that their averages, or the lack of one, are known."""
        for tensor in tensors:
            tensor.is_pending = False
        self.pending_count -= len(tensors)

    def record_updated(self, tensors: Sequence[Tensor]) -> None:
        """Note that their optimizers and ``grad`` have the averages of this round."""
        for tensor in tensors:
            tensor.has_deferred_update = tensor.is_due = False

    def clear_due(self, optimizer: int | None = None) -> None:
        """Keep averages of others' gradients out of ``grad``, for the parameters of one optimizer or all."""
        for tensor in self.tensors:
            if optimizer is None or tensor.is_owned_by(optimizer):
                tensor.is_due = False

    def check_open(self) -> None:
        """Refuse to continue after ``close()``.

        Raises:
            Closed: the rounds were closed.
        """
        if not self.is_open:
            raise Closed("this model's gradients are no longer synchronized: optimizer.close() was called")
