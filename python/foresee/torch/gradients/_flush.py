# SPDX-License-Identifier: Apache-2.0
"""The model and the optimizer that the user gets back: the same objects, of subclasses of their own classes.

Apart from the rounds because it is all about who calls what: ``step()`` becomes a round, and whatever shows the
weights or the optimizer's state as a whole lands every update first. Copies and files are of the plain classes
and know of no rounds. Refuses to be a wrapper: ``isinstance``, attributes and names of parameters stay.

Flush points: ``state_dict``, ``load_state_dict``, copies and pickles of both; the model's ``parameters()``,
``named_parameters()``, ``to()`` and the like, and ``train()``/``eval()`` where they change the mode; process exit.
A child's ``parameters()`` are not: after ``step()`` they are stale until a flush or the next forward pass.
"""

from __future__ import annotations

import atexit
import copyreg
import functools
import os
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from foresee.errors import ForeseeError
from foresee.torch.gradients import _errors
from foresee.torch.gradients._compose import Methods, become, plain_class
from foresee.torch.gradients._hooks import inert
from foresee.torch.gradients._wrappers import around, check_maker

if TYPE_CHECKING:
    import torch

    from foresee.torch.gradients._rounds import Rounds

    # What the methods stand in front of.
    class _Model(Methods, torch.nn.Module): ...

    class _Optimizer(Methods, torch.optim.Optimizer): ...

else:
    _Model = _Optimizer = Methods

__all__ = ["SynchronizedModel", "SynchronizedOptimizer", "attach", "detach"]

_KEY = "_foresee_rounds"
_live: weakref.WeakSet[Rounds] = weakref.WeakSet()


def attach(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], rounds: Rounds) -> None:
    """Make all of them speak to ``rounds``."""
    model.__dict__.pop("no_sync", None)
    model.__dict__[_KEY] = rounds
    become(model, SynchronizedModel)
    for optimizer in optimizers:
        optimizer.__dict__[_KEY] = rounds
        become(optimizer, SynchronizedOptimizer)
        # A schedule that was made earlier has put a step of its own on the instance. It would win over the class, and
        # our step would silently never run. What it is for, telling that step() was called, ours does.
        for name in ("step", "close", "flush", "stats"):
            optimizer.__dict__.pop(name, None)
    # Last in, first out: whoever registered before, to save the weights, finds them updated.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    _live.add(rounds)


def detach(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Make all of them what they were."""
    counted: dict[str, float] = {}
    for one in (model, *optimizers):
        rounds = one.__dict__.pop(_KEY, None)
        if rounds is not None:
            with suppress(ForeseeError):
                counted = dict(rounds.stats())
            object.__setattr__(one, "__class__", plain_class(type(one)))
            _live.discard(rounds)
    # A loop may end in several places, and a model may train on alone.
    model.__dict__["no_sync"] = nullcontext
    # Neither copies nor files of an optimizer have them.
    for optimizer in optimizers:
        optimizer.__dict__.update(close=inert(), flush=inert(), stats=functools.partial(dict, counted))


class SynchronizedModel(_Model):
    """What a synchronized model can do besides its own."""

    __slots__ = ()

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside keep gradients on this rank; the next one outside pushes the sums."""
        rounds = _rounds(self)
        return nullcontext() if rounds is None else rounds.no_sync()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own, with every update in it."""
        _flush(self)
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own; no late update lands on top of what was loaded. All ranks have to load the same."""
        _flush(self)
        _loaded(self)
        return super().load_state_dict(*args, **kwargs)

    def train(self, mode: bool = True) -> Any:
        """As the model's own. Saying ``train()`` again every step costs no overlap."""
        if mode != self.training:
            _flush(self)
        return super().train(mode)

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        """As the model's own, updated."""
        check_maker()
        _flush_outside(self)
        return super().parameters(recurse)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """As the model's own, updated."""
        check_maker()
        _flush_outside(self)
        return super().named_parameters(*args, **kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the model's own. It looks at gradients alone, so updates stay under way."""
        rounds = _rounds(self)
        with nullcontext() if rounds is None else rounds.unread():
            super().zero_grad(set_to_none)
        if rounds is not None:
            rounds.cleared()

    def _replicate_for_data_parallel(self) -> Any:
        if _rounds(self) is not None:
            raise around("DataParallel")
        return super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        _flush(self)
        rounds = _rounds(self)
        with nullcontext() if rounds is None else rounds.converted():
            return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy or a file holds the plain class and no rounds."""
        _flush(self)
        return _reduced(self, super().__reduce_ex__(protocol))


class SynchronizedOptimizer(_Optimizer):
    """What a synchronized optimizer can do besides its own."""

    __slots__ = ()

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """End the round: updates land when their averages do, at the latest before they are used.

        A closure is evaluated first, and its value returned, where the optimizer's own ``step`` evaluates it once.
        """
        rounds = _rounds(self)
        if rounds is None:
            return super().step(*args, **kwargs)
        closure, *others = (
            (*args, *kwargs.values()) if args or "closure" in kwargs else (None, *kwargs.values())
        )
        if any(value is not None for value in others) or (closure is not None and not callable(closure)):
            raise _errors.step_arguments()
        value = None if closure is None else rounds.evaluate(self, closure)
        # What a schedule looks for.
        self.__dict__["_opt_called"] = True
        rounds.step(self)
        return value

    # Optimizer.__setstate__ would wrap a step that lacks the first mark, schedules one that lacks the second.
    step.hooked = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined] # noqa: SLF001

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the optimizer's own."""
        super().zero_grad(set_to_none)
        rounds = _rounds(self)
        if rounds is not None:
            rounds.cleared(self)

    def flush(self) -> None:
        """Land every update now: afterwards all weights and states are as after a stock step."""
        _flush(self)

    def stats(self) -> Mapping[str, float]:
        """Counters of the exchange.

        ``sent_bytes``, ``window_bytes`` and ``rate_bytes_per_s`` are of the interfaces that reach other machines, if
        any does; ``local_bytes`` were sent to servers of this machine.
        ``exposed_s``: seconds that this rank stood still for it, ``exposed_last_round_s`` in the round that ended last.
        """
        rounds = _rounds(self)
        return {} if rounds is None else rounds.stats()

    def close(self) -> None:
        """Land every update and leave the exchange; the model and all its optimizers are plain ones again.

        Of an optimizer ``close()`` and ``flush()`` do nothing then, and ``stats()`` returns the last counters.
        """
        rounds = _rounds(self)
        if rounds is not None:
            try:
                rounds.close()
            finally:
                detach(rounds.model, rounds.optimizers)

    def state_dict(self) -> Any:
        """As the optimizer's own, with every update in it. All ranks compare settings, state and weights soon after."""
        _flush(self)
        rounds = _rounds(self)
        if rounds is not None:
            rounds.agreement.ask()
        return super().state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """As the optimizer's own; no late update lands on top of what was loaded. All ranks have to load the same."""
        _flush(self)
        _loaded(self)
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own, then plan again: collective, every rank has to call it, before ``backward()``."""
        _flush(self)
        super().add_param_group(param_group)
        rounds = _rounds(self)
        if rounds is not None:
            rounds.extend()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy or a file holds the plain class and no rounds."""
        _flush(self)
        return _reduced(self, super().__reduce_ex__(protocol))


def _rounds(one: Any) -> Rounds | None:
    """Those of a synchronized object. A copy made behind our back, by a ``__deepcopy__`` of its own, has none."""
    rounds: Rounds | None = one.__dict__.get(_KEY)
    return rounds


def _flush(one: Any) -> None:
    rounds = _rounds(one)
    if rounds is not None:
        rounds.flush()


def _loaded(one: Any) -> None:
    rounds = _rounds(one)
    if rounds is not None:
        rounds.agreement.loaded()


def _flush_outside(model: Any) -> None:
    """Not in the forward pass: many models ask their first parameter for its dtype there, and would overlap nothing."""
    rounds = _rounds(model)
    if rounds is not None and not rounds.in_forward and rounds.pending:
        rounds.flush()


def _reduced(one: Any, reduced: Any) -> Any:
    """What pickling made of ``one``, with its plain class instead of ours and without the rounds."""
    if not isinstance(reduced, tuple):
        return reduced
    function, arguments, *rest = reduced
    ours, plain = type(one), plain_class(type(one))
    if function is copyreg.__newobj__ and arguments[0] is ours:  # type: ignore[attr-defined] # typeshed lacks it
        # pickle insists that this function makes an object of the very class that it pickles.
        function, arguments = plain.__new__, (plain, *arguments[1:])
    function = plain if function is ours else function
    arguments = tuple(plain if value is ours else value for value in arguments)
    if rest and isinstance(rest[0], dict):
        rest[0] = {key: value for key, value in rest[0].items() if key != _KEY}
    return (function, arguments, *rest)


def _at_exit() -> None:
    """Finish the last round, on which other ranks wait, unless this process ends by an error of its own."""
    if hasattr(sys, "last_value"):
        return
    errors = []
    for rounds in list(_live):
        try:
            rounds.close()
        except ForeseeError as error:
            errors.append(error)
    if errors:
        raise errors[0]


# A forked child has the objects and not their threads; the exchange is its parent's.
os.register_at_fork(after_in_child=_live.clear)
