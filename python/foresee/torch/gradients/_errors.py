# SPDX-License-Identifier: Apache-2.0
"""Errors of training loops that share gradients.

All texts are in one file so that they can be compared. Each names the parameter, every possible cause, and a remedy per
cause. They are errors and not warnings, since the loop would train on wrong numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from foresee.errors import ForeseeError

__all__ = ["GradientMisuse"]

_NO_SYNC = "`with model.no_sync():`"
_BACKWARD = 'overlap="backward"'


class GradientMisuse(ForeseeError, RuntimeError):
    """The training loop would compute wrong numbers; the message has the remedy.

    Attributes:
        tensor: name of the parameter or buffer, or ``""``.
    """

    def __init__(self, message: str, tensor: str = "") -> None:
        self.tensor = tensor
        super().__init__(message)

    def __reduce__(self) -> tuple[type[GradientMisuse], tuple[str, str]]:
        """Keep the attributes when the error is pickled."""
        return type(self), (str(self), self.tensor)


def list_names(names: Sequence[str], limit: int = 5) -> str:
    """Return the first ``limit`` names for a message."""
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def in_flight(name: str) -> GradientMisuse:
    """Code used the placeholder in ``p.grad``."""
    return GradientMisuse(
        f"{name}: its gradient is in flight to the servers since backward() computed it, so p.grad holds nothing to "
        "read, add to or zero. If this is\n"
        "- the step of an optimizer that synchronize() was not given: pass all optimizers of the model in one call, "
        "synchronize(model, [first, second], ...);\n"
        "- a backward() without zero_grad() after the last step: call optimizer.zero_grad() first, and not with "
        "set_to_none=False;\n"
        "- a second backward() in one step (accumulation, several losses, reentrant checkpointing): put all but the "
        f"last under {_NO_SYNC}, and use checkpoint(..., use_reentrant=False);\n"
        '- clipping: pass clip="exact" and max_norm= to synchronize() and drop clip_grad_norm_;\n'
        "- DistributedDataParallel around a module that holds this model: drop it;\n"
        f"- GradScaler, logging, or any other code that reads p.grad: synchronize(..., {_BACKWARD}), which has the "
        "averages in p.grad when backward() returns.",
        name,
    )


def second_gradient(name: str) -> GradientMisuse:
    """A hook fired twice in one round, with ``p.grad`` cleared in between."""
    return GradientMisuse(
        f"{name} got a second gradient in one step. If this is\n"
        f"- accumulation or a second loss: put all but the last backward() under {_NO_SYNC};\n"
        "- reentrant checkpointing, which computes the gradient of a module that runs twice in two parts: use "
        "checkpoint(..., use_reentrant=False);\n"
        "- another network's backward() that passed through this one (GAN): call requires_grad_(False) on this one "
        f"around it, or put it under {_NO_SYNC};\n"
        "- a step that was skipped, or a backward() that failed: every rank has to call optimizer.step() after each "
        f"backward(); {_BACKWARD} allows skipping.",
        name,
    )


def used_early(name: str) -> GradientMisuse:
    """A gradient was computed from a parameter whose update was pending."""
    return GradientMisuse(
        f"{name} was used before its update was received, so this gradient is of an old value: some code used it "
        "before, or outside of, the modules that used it in the first step. Use it inside of them, or pass "
        f"{_BACKWARD}; debug=True names the place",
        name,
    )


def checked_use(name: str, where: str) -> GradientMisuse:
    """``debug=True`` found a use of a parameter whose update was pending."""
    return GradientMisuse(
        f"{name} was used {where} before its update was received. Use it inside of the modules that used it in the "
        f"first step, call optimizer.flush() before, or pass {_BACKWARD}",
        name,
    )


def modified(name: str) -> GradientMisuse:
    """The version of a parameter changed while its update was pending."""
    return GradientMisuse(
        f"{name} was modified or assigned to between step() and its update (clamp, EMA copied back, weight reset, "
        "...), so the change or the update would be lost. Call optimizer.flush() before, or read the parameter from "
        "its module or from model.parameters() each time, which receive its update",
        name,
    )


def no_memory(name: str, form: str) -> GradientMisuse:
    """A gradient is no dense tensor."""
    return GradientMisuse(
        f"the gradient of {name} is {form}, which has no dense memory to send; for embeddings pass sparse=False, else "
        "make it dense in a hook of the parameter",
        name,
    )


def other_form(name: str, got: str, planned: str) -> GradientMisuse:
    """A gradient has another dtype or shape than the plan."""
    return GradientMisuse(
        f"the gradient of {name} is {got}, the plan has {planned}; give the gradient the form of its parameter",
        name,
    )


def buffer_form(name: str, planned: str) -> GradientMisuse:
    """A buffer changed its form or was removed."""
    return GradientMisuse(
        f"buffer {name} is no longer the {planned} of the plan; keep its form, or pass buffers=False",
        name,
    )


def unplanned(name: str) -> GradientMisuse:
    """The optimizer's groups were edited by hand."""
    return GradientMisuse(
        f"{name} joined, left or changed the optimizer's parameter groups without a new plan; use "
        "optimizer.add_param_group(), before backward(), on every rank",
        name,
    )


def unfrozen(name: str) -> GradientMisuse:
    """A parameter of no optimizer requires a gradient since the plan was made."""
    return GradientMisuse(
        f"{name} was frozen when synchronize() was called, is in no optimizer, and requires a gradient now, which "
        "would stay on this rank; call optimizer.add_param_group() with it, on every rank, before it gets a gradient",
        name,
    )


def late_group(name: str) -> GradientMisuse:
    """A group was added in the middle of a round."""
    return GradientMisuse(
        f"add_param_group() between backward() and step(): the gradient of {name} is in flight; call it before "
        "backward(), on every rank",
        name,
    )


def closure(name: str) -> GradientMisuse:
    """``step(closure)`` of an optimizer that needs several evaluations."""
    return GradientMisuse(
        f"optimizer {name} does not evaluate the closure of step(closure) exactly once, before its update, and each "
        "evaluation would take a round; compute the loss and call backward() before step()"
    )


def step_arguments() -> GradientMisuse:
    """``step`` with anything but a closure."""
    return GradientMisuse(
        "optimizer.step() of a synchronized optimizer takes a closure and nothing else; call step(), or step(closure)"
    )


def reentrant(name: str) -> GradientMisuse:
    """One backward computes its gradients in several passes of autograd."""
    return GradientMisuse(
        f"{name} got its gradient in a backward() inside of backward(), as reentrant checkpointing does: each "
        "checkpoint would wait for averages; use checkpoint(..., use_reentrant=False)",
        name,
    )
