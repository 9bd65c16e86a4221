# SPDX-License-Identifier: Apache-2.0
"""The classes of a synchronized model and its optimizers: subclasses of the user's own classes.

``step()`` ends a round, and methods that show the weights or the optimizer's state as a whole receive every update
first. ``isinstance``, attributes and names of parameters stay; copies and files are of the user's classes.

Flush points: ``state_dict``, ``load_state_dict``, copies and pickles of both; the model's ``parameters()``,
``named_parameters()``, ``to()`` and the like, and ``train()``/``eval()`` where they change the mode; process exit. A
child's ``parameters()`` are none: after ``step()`` they are stale until a flush or the next forward pass.
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
from foresee.torch.gradients._compose import Methods, compose, plain_class
from foresee.torch.gradients._hooks import no_op_hook
from foresee.torch.gradients._wrappers import check_caller, wrapper_error

if TYPE_CHECKING:
    import torch

    from foresee.torch.gradients._synchronizer import Synchronizer

    # Bases of the classes into which the methods are composed.
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
    """Connect the model and the optimizers to ``synchronizer``."""
    model.__dict__.pop("no_sync", None)
    model.__dict__[_KEY] = synchronizer
    compose(model, SynchronizedModel)
    for optimizer in optimizers:
        optimizer.__dict__[_KEY] = synchronizer
        compose(optimizer, SynchronizedOptimizer)
        # An earlier schedule has set a step on the instance to note that step() was called. It would hide the step of
        # the class, which notes that too.
        for name in ("step", "close", "flush", "stats"):
            optimizer.__dict__.pop(name, None)
    # Handlers run last in, first out: those that were registered before, to save weights, find them updated.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    _live.add(synchronizer)


def detach(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Restore the classes of the model and the optimizers."""
    stats: dict[str, float] = {}
    for one in (model, *optimizers):
        synchronizer = one.__dict__.pop(_KEY, None)
        if synchronizer is not None:
            with suppress(ForeseeError):
                stats = dict(synchronizer.stats())
            object.__setattr__(one, "__class__", plain_class(type(one)))
            _live.discard(synchronizer)
    # The model may train on alone.
    model.__dict__["no_sync"] = nullcontext
    # Copies and files of an optimizer do not have them.
    for optimizer in optimizers:
        optimizer.__dict__.update(
            close=no_op_hook(), flush=no_op_hook(), stats=functools.partial(dict, stats)
        )


class SynchronizedModel(_Model):
    """Methods of a synchronized model."""

    __slots__ = ()

    def no_sync(self) -> AbstractContextManager[None]:
        """Accumulate the gradients of this context on this rank; the next backward outside pushes the sums."""
        synchronizer = _synchronizer(self)
        return nullcontext() if synchronizer is None else synchronizer.rounds.pause()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own, with every update."""
        _flush(self)
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own; no pending update changes what was loaded. All ranks have to load the same."""
        _flush(self, load=True)
        return super().load_state_dict(*args, **kwargs)

    def train(self, mode: bool = True) -> Any:
        """As the model's own. Repeated calls with the same mode cost no overlap."""
        if mode != self.training:
            _flush(self)
        return super().train(mode)

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        """As the model's own, updated."""
        check_caller()
        _flush_outside(self)
        return super().parameters(recurse)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """As the model's own, updated."""
        check_caller()
        _flush_outside(self)
        return super().named_parameters(*args, **kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the model's own. It reads gradients only, so updates stay in flight."""
        synchronizer = _synchronizer(self)
        with nullcontext() if synchronizer is None else synchronizer.ignore_reads():
            super().zero_grad(set_to_none)
        if synchronizer is not None:
            synchronizer.clear_due()

    def _replicate_for_data_parallel(self) -> Any:
        if _synchronizer(self) is not None:
            raise wrapper_error("DataParallel")
        return super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        _flush(self)
        synchronizer = _synchronizer(self)
        with nullcontext() if synchronizer is None else synchronizer.remove_placeholders():
            return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Leave the plain class and no synchronizer in a copy or a file."""
        _flush(self)
        return _without_synchronizer(self, super().__reduce_ex__(protocol))


class SynchronizedOptimizer(_Optimizer):
    """Methods of a synchronized optimizer."""

    __slots__ = ()

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """End the round: parameters are updated when their averages are received, at the latest before their use.

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
        # Read by schedules.
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
        """Receive every update, so that all weights and states are as after a stock step."""
        _flush(self)

    def stats(self) -> Mapping[str, float]:
        """Return counters of the exchange.

        ``sent_bytes``, ``window_bytes`` and ``rate_bytes_per_s`` are of the interfaces that reach other nodes, if
        any does; ``local_bytes`` were sent to servers of this node. ``exposed_s``: seconds that this rank waited for
        averages; ``exposed_last_round_s``: in the round that ended last.
        """
        synchronizer = _synchronizer(self)
        return {} if synchronizer is None else synchronizer.stats()

    def close(self) -> None:
        """Receive every update, leave the exchange, and restore the model and all its optimizers.

        Afterwards ``close()`` and ``flush()`` of an optimizer do nothing, and ``stats()`` returns the last counters.
        """
        synchronizer = _synchronizer(self)
        if synchronizer is not None:
            try:
                synchronizer.close()
            finally:
                detach(synchronizer.model, synchronizer.optimizers)

    def state_dict(self) -> Any:
        """As the optimizer's own, with every update. All ranks compare settings, state and weights soon after."""
        _flush(self)
        synchronizer = _synchronizer(self)
        if synchronizer is not None:
            synchronizer.check.request()
        return super().state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """As the optimizer's own; no pending update changes what was loaded. All ranks have to load the same."""
        _flush(self, load=True)
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own, with a new plan. Collective: call it on every rank, before ``backward()``."""
        _flush(self)
        super().add_param_group(param_group)
        synchronizer = _synchronizer(self)
        if synchronizer is not None:
            synchronizer.extend()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Leave the plain class and no synchronizer in a copy or a file."""
        _flush(self)
        return _without_synchronizer(self, super().__reduce_ex__(protocol))


def _synchronizer(one: Any) -> Synchronizer | None:
    """Return the synchronizer; a copy that a ``__deepcopy__`` of the user made has none."""
    synchronizer: Synchronizer | None = one.__dict__.get(_KEY)
    return synchronizer


def _flush(one: Any, *, load: bool = False) -> None:
    """Receive every update. ``load``: state or weights are replaced next."""
    synchronizer = _synchronizer(one)
    if synchronizer is not None:
        synchronizer.flush()
        if load:
            synchronizer.check.record_load()


def _flush_outside(model: Any) -> None:
    """Flush, but not in the forward pass, where many models read the dtype of their first parameter."""
    synchronizer = _synchronizer(model)
    if synchronizer is not None and not synchronizer.is_in_forward and synchronizer.is_watching_reads:
        synchronizer.flush()


def _without_synchronizer(one: Any, reduced: Any) -> Any:
    """Return the result of ``__reduce_ex__`` with the plain class and without the synchronizer."""
    if not isinstance(reduced, tuple):
        return reduced
    function, arguments, *rest = reduced
    ours, plain = type(one), plain_class(type(one))
    if function is copyreg.__newobj__ and arguments[0] is ours:  # type: ignore[attr-defined] # typeshed lacks it
        # pickle requires that this function makes an object of exactly the pickled class.
        function, arguments = plain.__new__, (plain, *arguments[1:])
    function = plain if function is ours else function
    arguments = tuple(plain if value is ours else value for value in arguments)
    if rest and isinstance(rest[0], dict):
        rest[0] = {key: value for key, value in rest[0].items() if key != _KEY}
    return (function, arguments, *rest)


def _at_exit() -> None:
    """Finish the last round, for which other ranks wait, unless this process ends by an error."""
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


# A forked child has the objects without their threads; the exchange belongs to the parent.
os.register_at_fork(after_in_child=_live.clear)
