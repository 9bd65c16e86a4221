# SPDX-License-Identifier: Apache-2.0
"""Which calls of a training loop push, end a round, wait or raise, without tensors."""

from __future__ import annotations

import pytest

from foresee.errors import Closed
from foresee.torch.gradients._errors import GradientMisuse
from foresee.torch.gradients._round_state import RoundState, TensorState

State = RoundState[TensorState]


def parameters(*places: tuple[int, int] | None) -> list[TensorState]:
    return [TensorState(name=f"p{number}", param_group=place) for number, place in enumerate(places)]


def state_of(tensors: list[TensorState], *, overlap: bool = True, optimizers: int = 1) -> State:
    return RoundState(tensors, overlap=overlap, optimizers=optimizers)


def push(state: State, *tensors: TensorState) -> None:
    for tensor in tensors:
        assert state.accepts_gradient(tensor)
        state.check_first(tensor)
        state.record_push(tensor)


def step(state: State, optimizer: int, tensors: list[TensorState]) -> bool:
    """Step in the overlapping mode; returns whether a round ended."""
    ends = state.ends_round(optimizer)
    if ends:
        state.end_round(optimizer)
    state.record_step(optimizer)
    state.defer_updates([tensor for tensor in tensors if tensor.is_owned_by(optimizer)])
    return ends


def receive(state: State, tensors: list[TensorState]) -> None:
    pending = state.select_pending(tensors, all_at_once=False)
    state.record_received(pending)
    state.record_updated(pending)


def test_tensors_are_pending_from_the_end_of_a_round_until_received() -> None:
    tensors = parameters((0, 0), (0, 0))
    state = state_of(tensors)
    push(state, *tensors)
    assert state.pending_count == 0
    assert step(state, 0, tensors)
    assert (state.number, state.pending_count) == (1, 2)
    receive(state, tensors[:1])
    assert [tensor.is_pending for tensor in tensors] == [False, True]
    receive(state, tensors)
    assert state.pending_count == 0
    assert not any(tensor.has_deferred_update for tensor in tensors)


def test_a_second_gradient_in_one_round_is_refused_by_name() -> None:
    (tensor,) = tensors = parameters((0, 0))
    state = state_of(tensors)
    push(state, tensor)
    with pytest.raises(GradientMisuse, match="p0 got a second gradient"):
        push(state, tensor)
    step(state, 0, tensors)
    receive(state, tensors)
    push(state, tensor)


def test_a_gradient_of_a_parameter_whose_update_is_pending_is_refused() -> None:
    (tensor,) = tensors = parameters((0, 0))
    state = state_of(tensors)
    push(state, tensor)
    step(state, 0, tensors)
    with pytest.raises(GradientMisuse, match="p0 was used before its update"):
        state.accepts_gradient(tensor)


def test_a_parameter_that_no_optimizer_stepped_may_get_its_next_gradient_before_its_average() -> None:
    (tensor,) = tensors = parameters(None)
    state = state_of(tensors)
    push(state, tensor)
    state.end_round(None)
    assert tensor.is_pending
    assert state.accepts_gradient(tensor)


def test_gradients_under_no_sync_are_accumulated_and_the_next_step_ends_a_round() -> None:
    (tensor,) = tensors = parameters((0, 0))
    state = state_of(tensors, optimizers=2)
    step(state, 0, tensors)
    receive(state, tensors)
    assert not state.ends_round(1)
    with state.pause(), state.pause():
        assert not state.accepts_gradient(tensor)
    assert tensor.pushed_round == -1
    assert state.has_gradients
    assert state.ends_round(1)


def test_the_first_of_several_optimizers_ends_the_round_for_all() -> None:
    tensors = parameters((0, 0), (1, 0))
    state = state_of(tensors, optimizers=2)
    push(state, *tensors)
    assert [step(state, 1, tensors), step(state, 0, tensors)] == [True, False]
    receive(state, tensors)
    # Without a backward in between, the optimizer that used this round's averages ends another round.
    assert not state.has_gradients
    assert [step(state, 0, tensors), step(state, 1, tensors)] == [True, False]
    assert (state.number, state.steps) == (2, [2, 2])


def test_an_absent_gradient_is_due_unless_its_own_optimizer_ends_the_round() -> None:
    tensors = parameters((0, 0), (1, 0), None)
    state = state_of(tensors, optimizers=2)
    assert state.find_unpushed() == tensors
    for tensor in tensors:
        state.record_absent(tensor, 0, has_gradient=False)
    assert [tensor.is_due for tensor in tensors] == [False, True, True]
    state.clear_due(1)
    assert [tensor.is_due for tensor in tensors] == [False, False, True]
    state.clear_due()
    assert not any(tensor.is_due for tensor in tensors)
    state.record_absent(tensors[2], None, has_gradient=True)
    assert not tensors[2].is_due


def test_the_first_round_is_a_barrier_and_without_overlap_every_round_is() -> None:
    overlapping, other = state_of(parameters((0, 0))), state_of(parameters((0, 0)), overlap=False)
    assert overlapping.is_barrier
    overlapping.is_barrier_due = False
    assert not overlapping.is_barrier
    other.is_barrier_due = False
    assert other.is_barrier


def test_exact_clipping_selects_all_that_is_pending_once_one_is_needed() -> None:
    tensors = parameters((0, 0), (0, 0), (0, 0))
    state = state_of(tensors)
    state.end_round(0)
    receive(state, tensors[:1])
    assert state.select_pending(tensors[1:2], all_at_once=True) == tensors[1:]
    assert state.select_pending(tensors[:1], all_at_once=True) == []


def test_a_pushed_buffer_is_no_pushed_gradient() -> None:
    buffer, tensor = TensorState(name="b", is_buffer=True), TensorState(name="p", param_group=(0, 0))
    state = state_of([buffer, tensor])
    assert state.find_pushed_gradient() is None
    buffer.pushed_round = 0
    assert state.find_pushed_gradient() is None
    push(state, tensor)
    assert state.find_pushed_gradient() is tensor


def test_a_backward_within_another_is_refused() -> None:
    (tensor,) = tensors = parameters((0, 0))
    state = state_of(tensors, overlap=False)
    assert state.begin_backward(3, tensor)
    assert not state.begin_backward(3, tensor)
    with pytest.raises(GradientMisuse, match="backward\\(\\) inside of backward"):
        state.begin_backward(4, tensor)
    state.end_backward()
    # The outer pass began first, so its number is the lower one.
    with pytest.raises(GradientMisuse, match="backward\\(\\) inside of backward"):
        state.begin_backward(2, tensor)
    assert state.begin_backward(5, tensor)


def test_after_close_gradients_are_not_changed_and_steps_are_refused() -> None:
    (tensor,) = tensors = parameters((0, 0))
    state = state_of(tensors)
    state.check_open()
    state.is_open = False
    assert not state.accepts_gradient(tensor)
    with pytest.raises(Closed, match="no longer synchronized"):
        state.check_open()
