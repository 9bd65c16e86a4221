# SPDX-License-Identifier: Apache-2.0
"""Classes of synchronized models and optimizers: the user's own with a few methods in front.

Objects only change their class. Python allows that between a class and a subclass which has it as its single base and
adds no field. A second base would fail for ``class Net(ABC, nn.Module)`` or ``class Net(Generic[T], nn.Module)``
("object layout differs"), so the methods enter through the method resolution order. Making the class runs no code of
the user: neither ``__init_subclass__``, which may require arguments or register subclasses, nor a metaclass's
constructor.
"""

from __future__ import annotations

import abc
import copyreg
import operator
import weakref
from typing import Any

__all__ = ["Methods", "compose", "plain_class"]

_composed_classes: weakref.WeakKeyDictionary[type, dict[type, type]] = weakref.WeakKeyDictionary()


class Methods:
    """Base of the methods that are put in front of a user's class; without fields."""

    __slots__ = ()

    def __init_subclass__(cls, **_: Any) -> None:
        """Stop here: the user's classes are not notified."""


def compose(one: object, methods: type[Methods]) -> None:
    """Put the methods in front of those of the object's class."""
    # The object's own __setattr__ may refuse, as that of a frozen dataclass does.
    object.__setattr__(one, "__class__", _composed(methods, type(one)))


def plain_class(composed: type) -> type:
    """Return the user's class of a composed one."""
    base = composed.__base__
    assert base is not None
    return base


def _composed(methods: type[Methods], base: type) -> type:
    by_methods = _composed_classes.setdefault(base, {})
    if methods not in by_methods:
        by_methods[methods] = _compose(methods, base)
    return by_methods[methods]


def _compose(methods: type[Methods], base: type) -> type:
    kind = type(base)

    class Composed(kind):  # type: ignore[misc, valid-type] # the metaclass of the user's class
        def mro(self) -> list[type]:
            if self.__bases__ != (base,):
                # Subclasses of the composed class, as Lightning makes them, have their own bases first.
                own: list[type] = super().mro()
                return own
            return [self, *methods.__mro__[:-1], *base.__mro__]

    # Pickle writes a class by its name, which is that of the user's class.
    copyreg.pickle(Composed, _as_plain)
    new = abc.ABCMeta.__new__ if issubclass(kind, abc.ABCMeta) else type.__new__
    names = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    made: type = new(Composed, base.__name__, (base,), names)
    return made


def _as_plain(composed: type) -> tuple[Any, ...]:
    """Reduce a composed class to the user's class, without names of Foresee."""
    return operator.itemgetter(0), ((plain_class(composed),),)
