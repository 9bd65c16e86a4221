# SPDX-License-Identifier: Apache-2.0
"""The optimizers of a synchronized model: for each its settings as of its last ``step()``, and its own step.

Every step runs as a stock one would, wherever the loop is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils._python_dispatch import _disable_current_modes

from foresee.torch.gradients._plan import DEVICES
from foresee.torch.gradients._steps import Hyper, snapshot, step_some

if TYPE_CHECKING:
    from foresee.torch.gradients._plan import Entry

__all__ = ["Stepper", "quiet", "steppers"]


class Stepper:
    """One optimizer.

    Args:
        optimizer: of the user's own class still.
        number: its position in the list that was passed to ``synchronize``.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, number: int) -> None:
        self.optimizer = optimizer
        self.number = number
        self.base = type(optimizer)
        self.entries: list[Entry] = []
        """Its parameters."""
        self.drawn: list[str] = []
        """The random generators that its step draws from."""
        self._hyper: Hyper = []

    def copy_settings(self) -> None:
        """Copy the settings of this moment, with which each parameter is stepped when its average is received."""
        self._hyper = snapshot(self.optimizer)
        for entry in self.entries:
            # The loop may have edited it since the round ended, by the step of another optimizer.
            entry.record_version()

    def step_some(self, chosen: Collection[int]) -> None:
        """Step the parameters whose ``id()`` is in ``chosen``, with the settings that were copied."""
        step_some(self.optimizer, self.base, self._hyper, chosen)

    def step_whole(self) -> None:
        """Run the user's own step, hooks and all, on what is in ``grad``."""
        self.base.step(self.optimizer)

    @property
    def has_step_hooks(self) -> bool:
        """Whether a hook of the user's would have to see a whole step."""
        own = self.optimizer
        return bool(
            own._optimizer_step_pre_hooks  # noqa: SLF001
            or own._optimizer_step_post_hooks  # noqa: SLF001
            or torch_optimizer._global_optimizer_pre_hooks  # noqa: SLF001
            or torch_optimizer._global_optimizer_post_hooks  # noqa: SLF001
        )


def steppers(optimizers: Sequence[torch.optim.Optimizer]) -> list[Stepper]:
    """One for each, in order."""
    return [Stepper(optimizer, number) for number, optimizer in enumerate(optimizers)]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Run as a stock step would, wherever the forward pass is.

    State created in inference mode could never be updated; autocast would round inside of Muon; a dispatch mode such
    as that of selective checkpointing would expect to see the step again when it recomputes.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for kind in filter(torch.is_autocast_enabled, DEVICES):
            stack.enter_context(torch.autocast(kind, enabled=False))
        if torch._C._len_torch_dispatch_stack():  # noqa: SLF001
            stack.enter_context(_disable_current_modes())
        yield
