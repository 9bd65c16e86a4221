# SPDX-License-Identifier: Apache-2.0
"""Models and optimizers of every kind of class are synchronized and restored."""

from __future__ import annotations

import abc
import copy
import dataclasses
import io
import pickle
import typing

import pytest
import torch
from support.exchanges import ThreadServer
from support.tensors import assert_same_bits, noise
from torch import nn

import foresee.torch as ft

T = typing.TypeVar("T")


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


class Abstract(abc.ABC, Body):
    @abc.abstractmethod
    def forward(self, x):
        return super().forward(x)


class OfAbstract(Abstract):
    def forward(self, x):
        return super().forward(x)


class AbstractLast(Body, abc.ABC):
    pass


class Generic(typing.Generic[T], Body):  # noqa: PYI059 - first, which is where it changes the layout
    pass


class OfGeneric(Generic[int]):
    pass


class Shape(typing.Protocol):
    def forward(self, x): ...


class OfProtocol(Body, Shape):
    pass


class Mixin:
    def describe(self):
        return f"a {type(self).__name__}"


class WithMixin(Mixin, Body):
    pass


class WithSlots(Body):
    __slots__ = ("extra",)

    def __init__(self):
        super().__init__()
        self.extra = 3


class Meta(type):
    made: typing.ClassVar[list] = []

    def __new__(cls, name, bases, namespace, *, number):
        return super().__new__(cls, name, bases, namespace)

    def __init__(cls, name, bases, namespace, *, number):
        super().__init__(name, bases, namespace)
        Meta.made.append(name)


class WithMetaclass(Body, metaclass=Meta, number=1):
    pass


class Registered(Body):
    registry: typing.ClassVar[dict] = {}

    def __init_subclass__(cls, *, key, **kwargs):
        super().__init_subclass__(**kwargs)
        assert key not in cls.registry
        cls.registry[key] = cls


class OfRegistered(Registered, key="one"):
    pass


@typing.final
class Final(Body):
    def __init_subclass__(cls, **kwargs):
        raise TypeError("Final has no subclasses")


@dataclasses.dataclass(eq=False)
class Data(nn.Module):
    width: int = 4

    def __post_init__(self):
        super().__init__()
        self.layer = nn.Linear(self.width, self.width)

    def forward(self, x):
        return self.layer(x)


class Frozen(Body):
    """Refuses attributes, like a frozen dataclass."""

    def __init__(self):
        self.__dict__["frozen"] = False
        super().__init__()
        self.__dict__["frozen"] = True

    def __setattr__(self, name, value):
        if self.frozen and name != "training":
            raise AttributeError(f"{name} is frozen")
        super().__setattr__(name, value)


class Sequence(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4))


MODELS = [
    OfAbstract, AbstractLast, Generic, OfGeneric, OfProtocol, WithMixin, WithSlots, WithMetaclass, OfRegistered, Final,
    Data, Frozen, Sequence,
]  # fmt: skip


class Rule(torch.optim.SGD):
    pass


class AbstractRule(abc.ABC, torch.optim.Optimizer):
    @abc.abstractmethod
    def scale(self): ...

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-self.scale() * group["lr"])


class OfAbstractRule(AbstractRule):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    def scale(self):
        return 1.0


class GenericRule(typing.Generic[T], Rule):  # noqa: PYI059
    pass


class MetaRule(Rule, metaclass=Meta, number=2):
    pass


class RegisteredRule(Rule):
    def __init_subclass__(cls, *, key):
        raise AssertionError(key)


OPTIMIZERS = [OfAbstractRule, GenericRule, MetaRule, RegisteredRule]


def train(model, optimizer, steps=3):
    for step in range(steps):
        optimizer.zero_grad()
        model(noise(3, 4, seed=step)).square().mean().backward()
        optimizer.step()


def fresh(model=Body, optimizer=Rule):
    torch.manual_seed(0)
    made = model()
    return made, optimizer(made.parameters(), lr=0.1)


def synchronized(model=Body, optimizer=Rule):
    return ft.synchronize(*fresh(model, optimizer), servers=ThreadServer(1, late=0.01).exchange(0))


@pytest.mark.parametrize(
    ("kind", "rule"),
    [(kind, Rule) for kind in MODELS] + [(Body, rule) for rule in OPTIMIZERS],
    ids=lambda kind: kind.__name__,
)
def test_every_kind_of_class_trains_with_stock_bits_and_is_plain_again_when_closed(kind, rule):
    registered, made = dict(Registered.registry), list(Meta.made)
    expected, stock = fresh(kind, rule)
    train(expected, stock)
    model, optimizer = synchronized(kind, rule)
    assert isinstance(model, kind)
    assert issubclass(type(model), kind)
    assert isinstance(optimizer, rule)
    assert (type(model).__name__, type(optimizer).__name__) == (kind.__name__, rule.__name__)
    assert type(model).__qualname__ == kind.__qualname__
    assert repr(model) == repr(expected)
    train(model, optimizer)
    assert_same_bits(dict(model.state_dict()), dict(expected.state_dict()))
    optimizer.close()
    assert type(model) is kind
    assert type(optimizer) is rule
    assert (registered, made) == (Registered.registry, Meta.made), (
        "synchronize made or registered a class of the user"
    )


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_copies_and_files_of_every_kind_of_class_are_plain(kind):
    model, optimizer = synchronized(kind)
    train(model, optimizer)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (
        copy.deepcopy(model),
        copy.copy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    ):
        assert type(twin) is kind
        assert "_foresee_synchronizer" not in vars(twin)
        assert_same_bits(dict(twin.state_dict()), dict(model.state_dict()))
    optimizer.close()


@pytest.mark.parametrize("rule", OPTIMIZERS, ids=lambda rule: rule.__name__)
def test_copies_and_files_of_every_kind_of_optimizer_are_plain(rule):
    model, optimizer = synchronized(optimizer=rule)
    train(model, optimizer)
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(twin) is rule
        assert "_foresee_synchronizer" not in vars(twin)
    optimizer.close()


@pytest.mark.parametrize("kind", [Body, OfAbstract, WithMetaclass], ids=lambda kind: kind.__name__)
def test_the_class_of_a_synchronized_model_makes_plain_models_and_is_written_as_the_plain_class(kind):
    model, optimizer = synchronized(kind)
    other = type(model)()
    train(other, Rule(other.parameters(), lr=0.1))
    assert isinstance(other, kind)
    assert pickle.loads(pickle.dumps(type(model))) is kind
    assert copy.deepcopy(type(model)) is type(model)
    optimizer.close()


def test_checks_against_the_class_of_a_synchronized_model_change_no_later_check():
    """Abstract classes cache results of isinstance checks."""
    model, optimizer = synchronized(OfAbstract)
    plain = OfAbstract()
    assert not isinstance(plain, type(model))
    assert isinstance(plain, Abstract)
    assert issubclass(OfAbstract, Abstract)
    optimizer.close()


class Wrapper:
    """Adds methods in front of an optimizer's class, like Lightning."""

    def step(self):
        return "wrapper"


@pytest.mark.parametrize("rule", [Rule, OfAbstractRule, GenericRule], ids=lambda rule: rule.__name__)
def test_a_class_derived_from_that_of_a_synchronized_optimizer_has_its_own_bases_first(rule):
    _, optimizer = synchronized(optimizer=rule)
    composed = type(optimizer)
    derived = type("Derived", (Wrapper, composed), {})
    assert derived.__mro__[:2] == (derived, Wrapper)
    assert derived.step is Wrapper.step
    assert derived.__mro__[2:] == composed.__mro__
    assert issubclass(derived, rule)
    optimizer.close()
