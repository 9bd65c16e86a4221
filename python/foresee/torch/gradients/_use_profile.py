# SPDX-License-Identifier: Apache-2.0
"""Which module uses which tensor first, recorded from every torch function of a step.

The order of registration is not the order of use, and hooks on leaf modules miss a parent's use of its child's weights
(``MultiheadAttention`` and its ``out_proj``). Either would leave updates stale without an error. ``debug=True`` uses
the same profile to check every use against the pending updates.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode

from foresee.torch.gradients._hooks import Hook
from foresee.torch.gradients._plan import DEVICES, has_plain_memory

if TYPE_CHECKING:
    from foresee.torch.gradients._plan import Entry

__all__ = ["UseProfile", "find_tensors", "pause_profiles"]

# Attributes that give access to the values; all others describe the tensor.
_VALUE_ATTRIBUTES = frozenset({"data", "T", "mT", "H", "mH", "real", "imag"})
# Functions that neither read nor write the values of a tensor.
_METADATA_FUNCTIONS = frozenset({
    "__hash__", "__len__", "apply_", "data_ptr", "dim", "element_size", "get_device", "has_names", "is_complex",
    "is_contiguous", "is_floating_point", "is_inference", "is_pinned", "is_same_size", "is_set_to", "is_shared",
    "is_signed", "ndimension", "nelement", "numel", "register_hook", "register_post_accumulate_grad_hook",
    "requires_grad_", "retain_grad", "size", "storage_offset", "stride", "type", "untyped_storage",
})  # fmt: skip


class UseProfile:
    """The uses of a model's tensors between ``start`` and ``stop``.

    ``order`` has ids in order of first use. ``modules`` has, per id, the innermost running modules at its uses, in
    order; None stands for a use outside of all modules whose result requires a gradient. Uses under ``no_grad`` count
    only in a forward pass that began with gradients on, as reentrant checkpoints do and evaluations do not.

    Args:
        model: whose modules run.
        entries: the tensors.
        on_use: called at every use with the entry and the module.
        of_results: whether ``on_use`` also gets uses outside of modules whose result needs no gradient.
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
        """Modules in forward, the innermost last, each with whether its uses count."""
        self._hooks: list[Any] = []
        self._mode: _ProfileMode | None = None
        self.set_entries(entries)

    @property
    def is_running(self) -> bool:
        """Whether uses are recorded."""
        return self._mode is not None

    def set_entries(self, entries: Iterable[Entry]) -> None:
        """Profile these tensors, which are recognized as objects and by the memory that their views share."""
        self._by_id = {id(entry.tensor): entry for entry in entries}
        self._by_storage = {}
        for entry in self._by_id.values():
            if entry.tensor.numel():
                start = entry.tensor.data_ptr()
                span = (start, start + entry.spec.nbytes, entry)
                self._by_storage.setdefault(entry.tensor.untyped_storage().data_ptr(), []).append(span)

    def start(self, *, eager: bool = True) -> None:
        """Note the uses of this thread until ``stop``.

        Args:
            eager: run compiled code eagerly until then, since its uses are not seen otherwise.
        """
        assert self._mode is None
        for module in self._model.modules():
            self._hooks.append(module.register_forward_pre_hook(Hook(self.enter, module), prepend=True))
            self._hooks.append(module.register_forward_hook(Hook(self.leave, module), always_call=True))
        self._mode = _ProfileMode.join(self, eager=eager)

    def stop(self) -> None:
        """Restore the model and torch. Any thread may call it, also twice."""
        if self._mode is None:
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._running.clear()
        self._mode.leave(weakref.ref(self))
        self._mode = None

    def enter(self, module: torch.nn.Module) -> None:
        """Note that the forward pass of ``module`` begins."""
        grad = self._running[-1][1] if self._running else torch.is_grad_enabled()
        self._running.append((module, grad))

    def leave(self, module: torch.nn.Module) -> None:
        """Note that ``module``, and all that it called, returned or raised."""
        for i in range(len(self._running) - 1, -1, -1):
            if self._running[i][0] is module:
                del self._running[i:]
                return

    def record_call(self, arguments: Iterable[Any], result: Any) -> None:
        """Note the uses in one call of a torch function."""
        module, grad = self._running[-1] if self._running else (None, torch.is_grad_enabled())
        if not grad:
            return
        for tensor in find_tensors(arguments):
            for entry in self._find_entries(tensor):
                # Outside of modules weights are also copied, averaged and printed. Terms of a loss have a graph.
                counts = module is not None or any(one.requires_grad for one in find_tensors(result))
                if counts:
                    self._record_use(entry, module)
                if self._on_use is not None and (counts or self._of_results):
                    self._on_use(entry, module)

    def _record_use(self, entry: Entry, module: torch.nn.Module | None) -> None:
        seen = self.modules.get(entry.spec.id)
        if seen is None:
            self.order.append(entry.spec.id)
            self.modules[entry.spec.id] = [module]
        elif not any(module is one for one in seen):
            seen.append(module)

    def _find_entries(self, tensor: torch.Tensor) -> Iterator[Entry]:
        entry = self._by_id.get(id(tensor))
        if entry is not None:
            yield entry
            return
        if (
            not has_plain_memory(tensor)
            or tensor.layout != torch.strided
            or tensor.device.type not in DEVICES
        ):
            return
        spans = self._by_storage.get(tensor.untyped_storage().data_ptr())
        if not spans or not tensor.numel():
            return
        first = tensor.data_ptr()
        last = first + tensor.element_size() * (
            1 + sum((size - 1) * abs(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        )
        for start, end, entry in spans:
            if first < end and start < last:
                yield entry


@contextlib.contextmanager
def pause_profiles() -> Iterator[None]:
    """Note no uses of this thread inside, as for an optimizer's step within a forward pass.

    The mode leaves torch's stack meanwhile. Otherwise every function of the step would call Python.
    """
    mode = _ProfileMode.of_this_thread()
    was_active = mode is not None and mode.remove()
    try:
        yield
    finally:
        if mode is not None and was_active:
            mode.restore()


class _ProfileMode(TorchFunctionMode):
    """The function mode of one thread, shared by all profiles that run there.

    It is at the bottom of torch's stack of modes. Modes that the user opens before or after it may then close in any
    order without popping it, and it pops none of them.

    A dropped profile that was not stopped is noticed at the thread's next call. A finalizer would be unsafe: torch
    removes a mode while it handles a call, and the garbage collector may run between its check of the stack and that.
    The mode then stays, idle, until the next profile of this thread stops.
    """

    _of_thread: ClassVar[threading.local] = threading.local()

    def __init__(self) -> None:
        super().__init__()
        # Each change is one call that cannot be interrupted, since any thread may leave.
        self._profiles: list[weakref.ref[UseProfile]] = []

    @classmethod
    def join(cls, profile: UseProfile, *, eager: bool) -> _ProfileMode:
        """Show this thread's calls to ``profile`` until it leaves."""
        mode = cls.of_this_thread()
        if mode is None:
            mode = cls._of_thread.mode = cls()
            _rebuild_stack(lambda below: [mode, *below])
        reference = weakref.ref(profile)
        mode._profiles.append(reference)
        if eager:
            _EagerStance.acquire(reference)
        return mode

    @classmethod
    def of_this_thread(cls) -> _ProfileMode | None:
        """Return the mode of the calling thread, if there is one."""
        mode: _ProfileMode | None = getattr(cls._of_thread, "mode", None)
        return mode

    def remove(self) -> bool:
        """Remove the mode from the stack; returns whether it was there."""
        was_active = False

        def without(modes: list[TorchFunctionMode]) -> list[TorchFunctionMode]:
            nonlocal was_active
            was_active = any(one is self for one in modes)
            return [one for one in modes if one is not self]

        _rebuild_stack(without)
        return was_active

    def restore(self) -> None:
        """Return to the stack, unless the last profile has left since."""
        if self._profiles:
            _rebuild_stack(lambda below: [self, *below])
        else:
            self._of_thread.mode = None

    def leave(self, profile: weakref.ref[UseProfile]) -> None:
        """Forget a profile. The last one removes the mode; called by another thread, the mode stays, idle."""
        self._forget(profile)
        # While torch shows a call to a mode, the mode is not on the stack; it returns, for the next profile.
        if not self._profiles and self.of_this_thread() is self and self.remove():
            self._of_thread.mode = None

    def _forget(self, profile: weakref.ref[UseProfile]) -> None:
        with contextlib.suppress(ValueError):
            self._profiles.remove(profile)
        _EagerStance.release(profile)

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
                profile.record_call((*args, *kwargs.values()), result)
        return result


class _EagerStance:
    """Runs compiled code eagerly while a profile runs: torch has one stance per process.

    A profile that was dropped in a thread without further calls is noticed when another one starts or stops.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _profiles: ClassVar[list[weakref.ref[UseProfile]]] = []
    _stance: ClassVar[Any] = None

    @classmethod
    def acquire(cls, profile: weakref.ref[UseProfile]) -> None:
        with cls._lock:
            cls._profiles = [*cls._others(profile), profile]
            if cls._stance is None:
                cls._stance = torch.compiler.set_stance("force_eager")

    @classmethod
    def release(cls, profile: weakref.ref[UseProfile]) -> None:
        with cls._lock:
            cls._profiles = cls._others(profile)
            if not cls._profiles and cls._stance is not None:
                cls._stance.__exit__(None, None, None)
                cls._stance = None

    @classmethod
    def _others(cls, profile: weakref.ref[UseProfile]) -> list[weakref.ref[UseProfile]]:
        return [other for other in cls._profiles if other != profile and other() is not None]


def _rebuild_stack(change: Callable[[list[TorchFunctionMode]], list[TorchFunctionMode]]) -> None:
    """Pop all of torch's function modes and push those that ``change`` returns, bottom first."""
    popped: list[TorchFunctionMode] = []
    while torch._C._len_torch_function_stack():  # noqa: SLF001
        popped.append(overrides._pop_mode())  # noqa: SLF001
    for mode in change(popped[::-1]):
        overrides._push_mode(mode)  # noqa: SLF001


def _uses_values(func: Callable[..., Any]) -> bool:
    """Whether ``func`` may read or write the values of its arguments."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        return getattr(getattr(func, "__self__", None), "__name__", "") in _VALUE_ATTRIBUTES
    return name not in _METADATA_FUNCTIONS


def find_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested lists, tuples and mappings."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from find_tensors(one)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from find_tensors(one)
