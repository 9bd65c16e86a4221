# SPDX-License-Identifier: Apache-2.0
"""The model and the optimizer that the user gets back: the same objects, of subclasses of their own classes.

``step()`` ends a round, and methods that show the weights or the optimizer's state as a whole receive every update
first. ``isinstance``, attributes and names of parameters stay; copies and files are of the plain classes.

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

    from foresee.torch.gradients._synchronizer import Synchronizer

    # What the methods stand in front of.
    class _Model(Methods, torch.nn.Module): ...

    class _Optimizer(Methods, torch.optim.Optimizer): ...

else:
    _Model = _Optimizer = Methods

__all__ = ["SynchronizedModel", "SynchronizedOptimizer", "attach", "detach"]

_KEY = "_foresee_synchronizer"
_live: weakref.WeakSet[Synchronizer] = weakref.WeakSet()


def attach(
    model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], synchronizer: Synchronizer
) -> None:
    """Connect all of them to ``synchronizer``."""
    model.__dict__.pop("no_sync", None)
    model.__dict__[_KEY] = synchronizer
    become(model, SynchronizedModel)
    for optimizer in optimizers:
        optimizer.__dict__[_KEY] = synchronizer
        become(optimizer, SynchronizedOptimizer)
        # A schedule that was made earlier has put a step of its own on the instance. It would win over the class, and
        # our step would silently never run. Ours also marks that step() was called, which is its purpose.
        for name in ("step", "close", "flush", "stats"):
            optimizer.__dict__.pop(name, None)
    # Last in, first out: whoever registered before, to save the weights, finds them updated.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    _live.add(synchronizer)


def detach(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Make all of them what they were."""
    counted: dict[str, float] = {}
    for one in (model, *optimizers):
        synchronizer = one.__dict__.pop(_KEY, None)
        if synchronizer is not None:
            with suppress(ForeseeError):
                counted = dict(synchronizer.stats())
            object.__setattr__(one, "__class__", plain_class(type(one)))
            _live.discard(synchronizer)
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
        synchronizer = _synchronizer(self)
        return nullcontext() if synchronizer is None else synchronizer.rounds.paused()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own, with every update in it."""
        _flush(self)
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own; no late update comes on top of what was loaded. All ranks have to load the same."""
        _flush(self)
        _record_load(self)
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
        """As the model's own. It looks at gradients alone, so updates stay in flight."""
        synchronizer = _synchronizer(self)
        with nullcontext() if synchronizer is None else synchronizer.without_reads():
            super().zero_grad(set_to_none)
        if synchronizer is not None:
            synchronizer.clear_due()

    def _replicate_for_data_parallel(self) -> Any:
        if _synchronizer(self) is not None:
            raise around("DataParallel")
        return super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        _flush(self)
        synchronizer = _synchronizer(self)
        with nullcontext() if synchronizer is None else synchronizer.converting():
            return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy or a file holds the plain class and no synchronizer."""
        _flush(self)
        return _reduced(self, super().__reduce_ex__(protocol))


class SynchronizedOptimizer(_Optimizer):
    """What a synchronized optimizer can do besides its own."""

    __slots__ = ()

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """End the round: parameters are updated when their averages are received, at the latest before they are used.

        A closure is evaluated first, and its value returned, where the optimizer's own ``step`` evaluates it once.
        """
        synchronizer = _synchronizer(self)
        if synchronizer is None:
            return super().step(*args, **kwargs)
        closure, *others = (
            (*args, *kwargs.values()) if args or "closure" in kwargs else (None, *kwargs.values())
        )
        if any(value is not None for value in others) or (closure is not None and not callable(closure)):
            raise _errors.step_arguments()
        value = None if closure is None else synchronizer.evaluate(self, closure)
        # What a schedule looks for.
        self.__dict__["_opt_called"] = True
        synchronizer.step(self)
        return value

    # Optimizer.__setstate__ would wrap a step that lacks the first mark, schedules one that lacks the second.
    step.hooked = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined] # noqa: SLF001

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the optimizer's own."""
        super().zero_grad(set_to_none)
        synchronizer = _synchronizer(self)
        if synchronizer is not None:
            synchronizer.clear_due(self)

    def flush(self) -> None:
        """Receive every update now: afterwards all weights and states are as after a stock step."""
        _flush(self)

    def stats(self) -> Mapping[str, float]:
        """Counters of the exchange.

        ``sent_bytes``, ``window_bytes`` and ``rate_bytes_per_s`` are of the interfaces that reach other nodes, if
        any does; ``local_bytes`` were sent to servers of this node.
        ``exposed_s``: seconds that this rank stood still for it, ``exposed_last_round_s`` in the round that ended last.
        """
        synchronizer = _synchronizer(self)
        return {} if synchronizer is None else synchronizer.stats()

    def close(self) -> None:
        """Receive every update and leave the exchange; the model and all its optimizers are plain ones again.

        Of an optimizer ``close()`` and ``flush()`` do nothing then, and ``stats()`` returns the last counters.
        """
        synchronizer = _synchronizer(self)
        if synchronizer is not None:
            try:
                synchronizer.close()
            finally:
                detach(synchronizer.model, synchronizer.optimizers)

    def state_dict(self) -> Any:
        """As the optimizer's own, with every update in it. All ranks compare settings, state and weights soon after."""
        _flush(self)
        synchronizer = _synchronizer(self)
        if synchronizer is not None:
            synchronizer.check.request()
        return super().state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """As the optimizer's own; no late update comes on top of what was loaded. All ranks have to load the same."""
        _flush(self)
        _record_load(self)
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own, then plan again: collective, every rank has to call it, before ``backward()``."""
        _flush(self)
        super().add_param_group(param_group)
        synchronizer = _synchronizer(self)
        if synchronizer is not None:
            synchronizer.extend()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy or a file holds the plain class and no synchronizer."""
        _flush(self)
        return _reduced(self, super().__reduce_ex__(protocol))


def _synchronizer(one: Any) -> Synchronizer | None:
    """That of a synchronized object. A copy made behind our back, by a ``__deepcopy__`` of its own, has none."""
    synchronizer: Synchronizer | None = one.__dict__.get(_KEY)
    return synchronizer


def _flush(one: Any) -> None:
    synchronizer = _synchronizer(one)
    if synchronizer is not None:
        synchronizer.flush()


def _record_load(one: Any) -> None:
    synchronizer = _synchronizer(one)
    if synchronizer is not None:
        synchronizer.check.record_load()


def _flush_outside(model: Any) -> None:
    """Not in the forward pass: many models ask their first parameter for its dtype there, and would overlap nothing."""
    synchronizer = _synchronizer(model)
    if synchronizer is not None and not synchronizer.in_forward and synchronizer.watches_reads:
        synchronizer.flush()


def _reduced(one: Any, reduced: Any) -> Any:
    """What pickling made of ``one``, with its plain class instead of ours and without the synchronizer."""
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
    for synchronizer in list(_live):
        try:
            synchronizer.close()
        except ForeseeError as error:
            errors.append(error)
    if errors:
        raise errors[0]


# A forked child has the objects and not their threads; the exchange is its parent's.
os.register_at_fork(after_in_child=_live.clear)
