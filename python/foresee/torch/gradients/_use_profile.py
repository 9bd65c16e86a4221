# SPDX-License-Identifier: Apache-2.0
"""Which module first uses which parameter: seen by watching every torch function of a step.

The order in which modules were registered is not the order of use, and hooks on leaf modules miss what a parent does
with its child's weights (``MultiheadAttention`` and its ``out_proj``), so both would leave some update stale in
silence. What was not seen has no place in the order.

The same watch serves ``debug=True``, where every use is checked against the updates that are still pending.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode

from foresee.torch.gradients._hooks import EnterHook, LeaveHook
from foresee.torch.gradients._plan import DEVICES, plain

if TYPE_CHECKING:
    from foresee.torch.gradients._plan import Entry

__all__ = ["FirstUse", "unwatched"]

# Attributes through which data is reached; all others are about the tensor, not its values.
_DATA = frozenset({"data", "T", "mT", "H", "mH", "real", "imag"})
# Functions that say something about a tensor and leave its values alone.
_ABOUT = frozenset({
    "__hash__", "__len__", "apply_", "data_ptr", "dim", "element_size", "get_device", "has_names", "is_complex",
    "is_contiguous", "is_floating_point", "is_inference", "is_pinned", "is_same_size", "is_set_to", "is_shared",
    "is_signed", "ndimension", "nelement", "numel", "register_hook", "register_post_accumulate_grad_hook",
    "requires_grad_", "retain_grad", "size", "storage_offset", "stride", "type", "untyped_storage",
})  # fmt: skip


class FirstUse:
    """What a model did with its tensors between ``start`` and ``stop``.

    ``order``: ids in order of first use. ``modules``: per id, every module that was the innermost one running at
    a use, in order; None stands for a use outside of all modules whose result requires a gradient. Uses under
    ``no_grad`` count only inside of a forward pass that was entered with gradients on: reentrant checkpoints run so,
    evaluations do not.

    ``on_use``, if given, is called at every use, with the entry and the module; ``of_results=False``: not at those
    outside of modules whose result needs no gradient.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        entries: Sequence[Entry],
        on_use: Callable[[Entry, torch.nn.Module | None], None] | None = None,
        *,
        of_results: bool = True,
    ) -> None:
        self.order: list[int] = []
        self.modules: dict[int, list[torch.nn.Module | None]] = {}
        self._model = model
        self._by_id: dict[int, Entry] = {}
        self._by_storage: dict[int, list[tuple[int, int, Entry]]] = {}
        self._on_use = on_use
        self._of_results = of_results
        self._running: list[tuple[torch.nn.Module, bool]] = []
        self._hooks: list[Any] = []
        self._mode: _Watch | None = None
        self.watch(entries)

    @property
    def running(self) -> bool:
        """Whether uses are being noted."""
        return self._mode is not None

    def watch(self, entries: Iterable[Entry]) -> None:
        """Know these tensors, by themselves and by the memory that views of them share."""
        self._by_id = {id(entry.tensor): entry for entry in entries}
        self._by_storage = {}
        for entry in self._by_id.values():
            if entry.tensor.numel():
                start = entry.tensor.data_ptr()
                place = (start, start + entry.spec.nbytes, entry)
                self._by_storage.setdefault(entry.tensor.untyped_storage().data_ptr(), []).append(place)

    def start(self, *, eager: bool = True) -> None:
        """Watch this thread from here on. Compiled code runs eagerly until ``stop``, or its uses were not seen.

        ``eager=False``: there is no compiled code.
        """
        assert self._mode is None
        for module in self._model.modules():
            self._hooks.append(module.register_forward_pre_hook(EnterHook(self), prepend=True))
            self._hooks.append(module.register_forward_hook(LeaveHook(self), always_call=True))
        self._mode = _Watch.join(self, eager=eager)

    def stop(self) -> None:
        """Leave the model and torch as they were. May be called by any thread, and twice."""
        if self._mode is None:
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._running.clear()
        self._mode.leave(weakref.ref(self))
        self._mode = None

    def enter(self, module: torch.nn.Module) -> None:
        """``module`` begins to run."""
        grad = self._running[-1][1] if self._running else torch.is_grad_enabled()
        self._running.append((module, grad))

    def leave(self, module: torch.nn.Module) -> None:
        """``module`` has run, or raised; so have those that it called."""
        for i in range(len(self._running) - 1, -1, -1):
            if self._running[i][0] is module:
                del self._running[i:]
                return

    def see(self, arguments: Iterable[Any], result: Any) -> None:
        """Note the uses in one call of a torch function."""
        module, grad = self._running[-1] if self._running else (None, torch.is_grad_enabled())
        if not grad:
            return
        for tensor in _tensors(arguments):
            for entry in self._entries_of(tensor):
                # Outside of modules weights are also copied, averaged and printed. What a loss is made of has a graph.
                counts = module is not None or any(one.requires_grad for one in _tensors((result,)))
                if counts:
                    self._note(entry, module)
                if self._on_use is not None and (counts or self._of_results):
                    self._on_use(entry, module)

    def _note(self, entry: Entry, module: torch.nn.Module | None) -> None:
        seen = self.modules.get(entry.spec.id)
        if seen is None:
            self.order.append(entry.spec.id)
            self.modules[entry.spec.id] = [module]
        elif not any(module is one for one in seen):
            seen.append(module)

    def _entries_of(self, tensor: torch.Tensor) -> Iterator[Entry]:
        entry = self._by_id.get(id(tensor))
        if entry is not None:
            yield entry
            return
        if not plain(tensor) or tensor.layout != torch.strided or tensor.device.type not in DEVICES:
            return
        places = self._by_storage.get(tensor.untyped_storage().data_ptr())
        if not places or not tensor.numel():
            return
        first = tensor.data_ptr()
        last = first + tensor.element_size() * (
            1 + sum((size - 1) * abs(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        )
        for start, end, entry in places:
            if first < end and start < last:
                yield entry


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """See nothing of this thread inside: a step that runs in a forward pass is no use.

    The mode leaves torch's stack for as long. If it stayed, Python would be called for each function of the step.
    """
    mode = _Watch.of_this_thread()
    taken = False

    def without(below: list[TorchFunctionMode]) -> list[TorchFunctionMode]:
        nonlocal taken
        taken = any(one is mode for one in below)
        return [one for one in below if one is not mode]

    if mode is not None:
        _relay(without)
    try:
        yield
    finally:
        if mode is not None and taken:
            mode.come_back()


class _Watch(TorchFunctionMode):
    """The function mode of one thread, shared by all profiles that run there.

    It lies at the bottom of torch's stack of modes: modes that the user opened before it, or opens after it,
    may then close in any order without popping ours, or ours theirs.

    A profile that is dropped before it stopped is noticed at the thread's next call, and not by a finalizer: torch
    takes a mode off while it handles a call, and the garbage collector may come between its look at the stack and that.
    The mode stays then, idle, until the next profile of this thread stops.
    """

    _of_thread: ClassVar[threading.local] = threading.local()

    def __init__(self) -> None:
        super().__init__()
        # Changed by one call at a time that cannot be interrupted: any thread may leave.
        self._profiles: list[weakref.ref[FirstUse]] = []

    @classmethod
    def join(cls, profile: FirstUse, *, eager: bool) -> _Watch:
        """Show this thread's calls to ``profile`` too, until it leaves."""
        mode = cls.of_this_thread()
        if mode is None:
            mode = cls._of_thread.mode = cls()
            _relay(lambda below: [mode, *below])
        reference = weakref.ref(profile)
        mode._profiles.append(reference)
        if eager:
            _Eager.acquire(reference)
        return mode

    @classmethod
    def of_this_thread(cls) -> _Watch | None:
        """The mode of the calling thread, if there is one."""
        mode: _Watch | None = getattr(cls._of_thread, "mode", None)
        return mode

    def come_back(self) -> None:
        """Return to the stack, unless the last profile has left since."""
        if self._profiles:
            _relay(lambda below: [self, *below])
        else:
            self._of_thread.mode = None

    def leave(self, profile: weakref.ref[FirstUse]) -> None:
        """End that. The last one takes the mode with it; left by another thread, the mode stays, idle."""
        self._forget(profile)
        if not self._profiles and self.of_this_thread() is self:

            def without(below: list[TorchFunctionMode]) -> list[TorchFunctionMode]:
                # In a call that torch shows to a mode, the mode is not there: it will be again, for the next profile.
                if any(mode is self for mode in below):
                    self._of_thread.mode = None
                return [mode for mode in below if mode is not self]

            _relay(without)

    def _forget(self, profile: weakref.ref[FirstUse]) -> None:
        with contextlib.suppress(ValueError):
            self._profiles.remove(profile)
        _Eager.release(profile)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Make the call, then show it to the profiles."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        for reference in tuple(self._profiles):
            profile = reference()
            if profile is None:
                self._forget(reference)
            elif _uses_values(func):
                profile.see((*args, *kwargs.values()), result)
        return result


class _Eager:
    """Compiled code runs eagerly while anybody profiles: torch's stance is one for the process.

    One that was dropped in a thread that makes no more calls is noticed by the next that begins or stops anywhere.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _profiles: ClassVar[list[weakref.ref[FirstUse]]] = []
    _stance: ClassVar[Any] = None

    @classmethod
    def acquire(cls, profile: weakref.ref[FirstUse]) -> None:
        with cls._lock:
            cls._profiles = [*cls._others(profile), profile]
            if cls._stance is None:
                cls._stance = torch.compiler.set_stance("force_eager")

    @classmethod
    def release(cls, profile: weakref.ref[FirstUse]) -> None:
        with cls._lock:
            cls._profiles = cls._others(profile)
            if not cls._profiles and cls._stance is not None:
                cls._stance.__exit__(None, None, None)
                cls._stance = None

    @classmethod
    def _others(cls, profile: weakref.ref[FirstUse]) -> list[weakref.ref[FirstUse]]:
        return [other for other in cls._profiles if other != profile and other() is not None]


def _relay(change: Callable[[list[TorchFunctionMode]], list[TorchFunctionMode]]) -> None:
    """Take torch's stack of function modes down and build it again, bottom first."""
    below: list[TorchFunctionMode] = []
    while torch._C._len_torch_function_stack():  # noqa: SLF001
        below.append(overrides._pop_mode())  # noqa: SLF001
    for mode in change(below[::-1]):
        overrides._push_mode(mode)  # noqa: SLF001


def _uses_values(func: Callable[..., Any]) -> bool:
    """Whether ``func`` may read or write the values of its arguments."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        return getattr(getattr(func, "__self__", None), "__name__", "") in _DATA
    return name not in _ABOUT


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())
