# SPDX-License-Identifier: Apache-2.0
"""Classes that synchronized models and optimizers become: the user's own, with a few methods in front.

The objects stay what they are and only change their class. Python allows that between a class and a subclass which
has it as its single base and adds no field. A second base would fail for ``class Net(ABC, nn.Module)`` or
``class Net(Generic[T], nn.Module)`` ("object layout differs"), so the methods enter through the order of
resolution instead. No code of the user runs when the class is made: neither ``__init_subclass__``, which may require
arguments, forbid subclasses or register them, nor the constructor of a metaclass.
"""

from __future__ import annotations

import abc
import copyreg
import operator
import weakref
from typing import Any

__all__ = ["Methods", "become", "plain_class"]

_made: weakref.WeakKeyDictionary[type, dict[type, type]] = weakref.WeakKeyDictionary()


class Methods:
    """Base of what is put in front of a user's class: methods alone, no fields."""

    __slots__ = ()

    def __init_subclass__(cls, **_: Any) -> None:
        """End here: the user's classes do not hear of ours."""


def become(one: object, methods: type[Methods]) -> None:
    """Give ``one`` the methods, in front of those of its class."""
    # Below the object's own __setattr__, which may refuse, as that of a frozen dataclass does.
    object.__setattr__(one, "__class__", _composed(methods, type(one)))


def plain_class(composed: type) -> type:
    """The user's own class, of one that was composed."""
    base = composed.__base__
    assert base is not None
    return base


def _composed(methods: type[Methods], base: type) -> type:
    by_methods = _made.setdefault(base, {})
    if methods not in by_methods:
        by_methods[methods] = _compose(methods, base)
    return by_methods[methods]


def _compose(methods: type[Methods], base: type) -> type:
    kind = type(base)

    class Composed(kind):  # type: ignore[misc, valid-type] # the metaclass of the user's class
        def mro(self) -> list[type]:
            if self.__bases__ != (base,):
                # A class that others derive from the composed one, as Lightning does, has its own bases first.
                own: list[type] = super().mro()
                return own
            return [self, *methods.__mro__[:-1], *base.__mro__]

    # Classes are written by their name, under which a reader would find the user's.
    copyreg.pickle(Composed, _as_plain)
    new = abc.ABCMeta.__new__ if issubclass(kind, abc.ABCMeta) else type.__new__
    names = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    made: type = new(Composed, base.__name__, (base,), names)
    return made


def _as_plain(composed: type) -> tuple[Any, ...]:
    """A class by what exists wherever the user's class does."""
    return operator.itemgetter(0), ((plain_class(composed),),)
