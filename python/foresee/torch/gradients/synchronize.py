# SPDX-License-Identifier: Apache-2.0
"""``ft.synchronize``: averages the gradients of a training loop over all ranks.

It checks the arguments and reports all faults at once, builds the plan, and connects to the other ranks. The classes in
``_flush`` handle the later calls of the model and the optimizers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Literal, TypeVar, overload

import torch

from foresee.errors import ConfigError
from foresee.torch._exchange import GradientExchange
from foresee.torch.gradients import _separable
from foresee.torch.gradients._clip import Clip, ClipMode
from foresee.torch.gradients._errors import list_names
from foresee.torch.gradients._flush import SynchronizedModel, SynchronizedOptimizer, attach
from foresee.torch.gradients._plan import Plan
from foresee.torch.gradients._servers import START_TIMEOUT_S, TIMEOUT_S, ServerArguments, is_number
from foresee.torch.gradients._synchronizer import Synchronizer
from foresee.torch.gradients._tracing import Tracing, find_timeline_faults
from foresee.torch.gradients._transfer import transfer_for
from foresee.torch.gradients._wrappers import find_wrapper

__all__ = ["synchronize"]

Model = TypeVar("Model", bound=torch.nn.Module)
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)


@overload
def synchronize(
    model: Model,
    optimizer: Optimizer,
    *,
    servers: str | Sequence[str] | GradientExchange,
    overlap: Literal["forward", "backward"] = "forward",
    clip: ClipMode | None = None,
    max_norm: float | None = None,
    comm_dtype: Literal["f32", "f16", "bf16"] | None = None,
    buffers: bool = True,
    on_rank_loss: Literal["raise", "continue"] = "raise",
    recover: bool = True,
    timeout: float = TIMEOUT_S,
    start_timeout: float = START_TIMEOUT_S,
    secret_file: str | None = None,
    hierarchical: bool = True,
    timeline: str | None = None,
    debug: bool = False,
) -> tuple[Model, Optimizer]: ...
@overload
def synchronize(
    model: Model,
    optimizer: Sequence[Optimizer],
    *,
    servers: str | Sequence[str] | GradientExchange,
    overlap: Literal["forward", "backward"] = "forward",
    clip: ClipMode | None = None,
    max_norm: float | None = None,
    comm_dtype: Literal["f32", "f16", "bf16"] | None = None,
    buffers: bool = True,
    on_rank_loss: Literal["raise", "continue"] = "raise",
    recover: bool = True,
    timeout: float = TIMEOUT_S,
    start_timeout: float = START_TIMEOUT_S,
    secret_file: str | None = None,
    hierarchical: bool = True,
    timeline: str | None = None,
    debug: bool = False,
) -> tuple[Model, list[Optimizer]]: ...
def synchronize(
    model: Model,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    servers: str | Sequence[str] | GradientExchange,
    overlap: Literal["forward", "backward"] = "forward",
    clip: ClipMode | None = None,
    max_norm: float | None = None,
    comm_dtype: Literal["f32", "f16", "bf16"] | None = None,
    buffers: bool = True,
    on_rank_loss: Literal["raise", "continue"] = "raise",
    recover: bool = True,
    timeout: float = TIMEOUT_S,
    start_timeout: float = START_TIMEOUT_S,
    secret_file: str | None = None,
    hierarchical: bool = True,
    timeline: str | None = None,
    debug: bool = False,
) -> tuple[Model, Optimizer] | tuple[Model, list[Optimizer]]:
    """Average gradients over all ranks; those that the next forward pass uses first are sent first.

    Call it once per model, on every rank, from the training thread. Parameters must have their final form and device,
    and compiled blocks must not have run yet. The objects are returned themselves, with subclasses of their classes:
    schedules made before or after, ``state_dict``, copies and files work. All ranks start with rank 0's parameters and
    buffers, including those that no round sends.

    With ``overlap="forward"``, backward sends each gradient as soon as it is computed, ``optimizer.step()`` returns at
    once, and each module waits for the updates that it needs before it runs. The result has the bits of a stock step on
    gradients averaged in rank order. Until an update is received:

    - ``p.grad`` cannot be read: it raises. Clip with ``clip=``, or choose ``overlap="backward"``.
    - Accumulate gradients under ``with model.no_sync():``, in all but the last backward.
    - The root's ``state_dict()``, ``parameters()`` and ``eval()``, and ``optimizer.flush()``, receive all updates;
      the ``parameters()`` of a child do not.

    With ``overlap="backward"``, as in DDP, ``backward()`` returns with the averages in ``p.grad``: stock clipping,
    ``GradScaler`` and logging work, and nothing overlaps with the forward pass. Optimizers that must step all
    parameters together use this mode, with a warning.

    Every parameter of the model that requires a gradient is averaged. Of several optimizers, the first ``step()`` after
    a ``backward()`` ends the round for all parameters. Each optimizer may be stepped in every round or in some, the
    same on every rank. With several optimizers, or for a parameter in none, the average is in ``p.grad`` from the next
    use of the parameter, or ``optimizer.flush()``, on.

    Args:
        model: parameters and buffers in CPU memory, or all on CUDA devices. Device gradients and averages are copied to
            and from pinned memory during the computation; neither backward nor the loop waits for the device.
        optimizer: one, or a list of those that share the model, no parameter in two of them. Their parameters that are
            not the model's are averaged too, but ``step()`` waits for them. LBFGS, SAM and others that need a closure
            are refused.
        servers: addresses ``host:port``, in one string with commas or in a list; or a ``GradientExchange``.
            ``"colocated"``, alone or among the addresses, is a server in the process of each rank; torch's process
            group carries their addresses. Colocated servers alone cause the traffic of an all-reduce, and n dedicated
            ones in addition carry twice that. ``tls://host:port``, for all addresses or for none, encrypts. It needs
            servers with a certificate (``foresee serve --tls-cert --tls-key``), which colocated ones do not have. Any
            certificate will do: the secret authenticates both ends and excludes a man in the middle. Without TLS the
            secret excludes strangers, and gradients are readable.
        overlap: see above.
        clip: ``exact``: torch's ``clip_grad_norm_`` over all averages, bit for bit; the next forward pass then waits
            for the last tensor. ``per_param``: each tensor's own norm. ``previous_norm``: scales by the total norm of
            the step before. The last two keep the overlap, and differ from stock clipping.
        max_norm: above 0; with ``clip``.
        comm_dtype: dtype of 32-bit floats on the network; None: as they are.
        buffers: send rank 0's buffers (BatchNorm's statistics) to all ranks every step, as DDP does. Unchanged ones
            are not sent.
        on_rank_loss: ``raise``: every rank raises an error that names the lost rank. ``continue``: the other ranks
            continue with the mean over those that are left, equal in every bit among them, and log the loss. It needs
            the memory of ``recover``. Each rank then exchanges by itself, and not with colocated servers. The launcher
            must not end all ranks with the first (``torchrun`` does).
        recover: reconnect after a broken connection, and wait up to ``timeout`` for a replacement of a lost server at
            its address, unless it is colocated. Lost data is retransmitted, with the same bits, and logged. For that,
            gradients are retained until every rank has everything of the step: as much memory again as the gradients.
            False: every rank raises at once. The same on every rank.
        timeout: seconds without a heartbeat, above 0, before every rank raises an error that names the silent one.
        start_timeout: seconds that this rank waits at the start for missing ranks, above 0, before it raises
            ``RankLost`` with their numbers.
        secret_file: path of a file with the servers' secret, readable by its owner only; None: the variable
            ``FORESEE_TOKEN``.
        hierarchical: average the ranks of one node first, in shared memory, and exchange the node's mean: traffic does
            not grow with the ranks of a node. The reference is then the mean over nodes of the mean over each node's
            ranks. It applies on Linux, where the launcher reports the same number of ranks for each node, in the order
            of the nodes. Elsewhere, or with False, every rank exchanges by itself. The same on every rank.
        timeline: path of a Chrome trace of every tensor, for Perfetto: ``step.json`` becomes ``step.rank0.json``
            and so on. Written round by round; ``optimizer.close()`` ends it. Where ``FORESEE_TRACE`` names a run
            folder, pushes, pulls and waits are also entries of its ledger.
        debug: check every use of every tensor, and report where one was used while its update was pending. Slow, and
            without compiled code.

    Returns:
        ``model`` and ``optimizer``, or the list of optimizers in the same order. The model has ``no_sync()``; each
        optimizer has ``flush()``, ``stats()`` and ``close()``, for the model and all its optimizers.

    Raises:
        ConfigError: every wrong argument at once; or ranks differ in a tensor.
    """
    server_arguments = ServerArguments(
        servers=servers,
        comm_dtype=comm_dtype,
        on_rank_loss=on_rank_loss,
        recover=recover,
        timeout=timeout,
        start_timeout=start_timeout,
        secret_file=secret_file,
        hierarchical=hierarchical,
    )
    faults = server_arguments.find_faults()
    faults += _find_rank_faults(overlap=overlap, clip=clip, max_norm=max_norm)
    faults += find_timeline_faults(timeline, servers)
    is_single = not isinstance(optimizer, (list, tuple))
    optimizers: list[Any] = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    faults += _find_optimizer_faults(optimizers, is_single=is_single)
    faults += _find_model_faults(model)
    if faults:
        raise ConfigError(faults)
    plan, faults = Plan.build(model, optimizers, buffers=buffers)
    if not plan.gradients and not faults:
        faults.append("the optimizer has no parameters")
    if faults:
        raise ConfigError(faults)
    _warn_of_unowned(plan)
    coupled = [one for one in optimizers if overlap == "forward" and not _separable.is_separable(one)]
    if coupled:
        _warn_of_barrier(coupled[0])
        if clip is not None:
            raise ConfigError(
                f"clip={clip!r} needs an optimizer that can be stepped parameter by parameter, and "
                f"{type(coupled[0]).__name__} cannot; drop clip= and call clip_grad_norm_ after backward()"
            )
        overlap = "backward"
    tracing = Tracing(timeline)
    group = server_arguments.open_group(tracing.events)
    synchronizer = Synchronizer(
        model,
        optimizers,
        group,
        plan,
        Clip(clip, max_norm or 0.0),
        transfer_for(group.exchange, (entry.tensor for entry in plan.entries)),
        tracing.open_timeline(group),
        overlap=overlap,
        buffers=buffers,
        recover=recover,
        debug=debug,
    )
    try:
        synchronizer.start()
    except BaseException:
        synchronizer.close()
        raise
    attach(model, optimizers, synchronizer)
    return (model, optimizers[0]) if is_single else (model, optimizers)


def _find_rank_faults(*, overlap: object, clip: object, max_norm: object) -> list[str]:
    """Return the faults of the arguments that concern this rank alone."""
    faults = []
    if overlap not in ("forward", "backward"):
        faults.append(f"overlap={overlap!r}; one of 'forward', 'backward'")
    if clip not in (None, "exact", "per_param", "previous_norm"):
        faults.append(f"clip={clip!r}; one of None, 'exact', 'per_param', 'previous_norm'")
    if clip is None and max_norm is not None:
        faults.append(f'max_norm={max_norm!r} without clip; pass clip="exact" to clip by the total norm')
    if clip is not None and (not is_number(max_norm) or not 0 < max_norm < math.inf):
        faults.append(f"max_norm={max_norm!r}; a number above 0, with clip={clip!r}")
    if clip is not None and overlap == "backward":
        faults.append(f'clip={clip!r} with overlap="backward"; call clip_grad_norm_ after backward()')
    return faults


def _find_optimizer_faults(optimizers: Sequence[object], *, is_single: bool) -> list[str]:
    if not optimizers:
        return ["optimizer=[] names none; one torch.optim.Optimizer, or a list of them"]
    faults = []
    for i, optimizer in enumerate(optimizers):
        name = "optimizer" if is_single else f"optimizer[{i}]"
        if not isinstance(optimizer, torch.optim.Optimizer):
            faults.append(
                f"{name} is a {type(optimizer).__name__}; a torch.optim.Optimizer, or a list of them"
            )
        elif isinstance(optimizer, SynchronizedOptimizer):
            faults.append(f"{name} is synchronized already; one optimizer belongs to one model")
        elif any(optimizer is other for other in optimizers[:i]):
            faults.append(f"{name} is in the list twice; name each optimizer once")
        else:
            reason = _separable.find_refusal(optimizer)
            faults += [reason] if reason else []
    return faults


def _find_model_faults(model: object) -> list[str]:
    if not isinstance(model, torch.nn.Module):
        return [f"model is a {type(model).__name__}; a torch.nn.Module"]
    if isinstance(model, SynchronizedModel):
        remedy = "pass all optimizers of a model in one call, synchronize(model, [first, second], ...)"
        return [f"model is synchronized already; {remedy}, or call close() of its optimizer first"]
    faults = []
    name = type(model).__name__
    if isinstance(model, torch.jit.ScriptModule):
        faults.append(
            "model is a ScriptModule, whose uses of parameters cannot be seen; pass the Python module"
        )
    if name == "OptimizedModule":
        faults.append(
            "model is compiled as a whole, so all gradients would come after the whole backward pass; pass the plain "
            "model and compile its blocks (`for block in model.blocks: block.compile()`)"
        )
    faults += [
        f"{where or 'the model'} is wrapped in {wrapper}, which averages gradients itself; pass the plain model, or "
        "keep DistributedDataParallel and average by ddp.register_comm_hook(ft.DdpState(servers=...), ft.ddp_hook)"
        for where, module in model.named_modules()
        if (wrapper := find_wrapper(module))
    ]
    # A model that was closed has a no-op.
    if getattr(model, "no_sync", nullcontext) is not nullcontext:
        faults.append("model has a method no_sync() of its own, which synchronize() needs; rename it")
    faults += [
        f"{where or 'the model'} is an {type(module).__name__} with sparse=True; sparse gradients are not sent; pass "
        "sparse=False"
        for where, module in model.named_modules()
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse
    ]
    return faults


def _warn_of_unowned(plan: Plan) -> None:
    """Warn of gradients that no optimizer uses: often of a part of the model that was meant to be frozen."""
    unowned = [entry for entry in plan.gradients if entry.param_group is None]
    if not unowned:
        return
    names = list_names([entry.name for entry in unowned])
    nbytes = sum(entry.spec.nbytes for entry in unowned)
    warnings.warn(
        f"{len(unowned)} parameters ({names}; {nbytes / 1e6:.3g} MB) require gradients and are in no optimizer: "
        "their gradients are averaged, as in DistributedDataParallel; pass their optimizer too, or call "
        "requires_grad_(False) on them",
        stacklevel=3,
    )


def _warn_of_barrier(optimizer: torch.optim.Optimizer) -> None:
    warnings.warn(
        f"optimizer {type(optimizer).__name__} gives other bits when it is stepped parameter by parameter (tried on "
        'toy parameters), so overlap="backward" is used: averages are complete when backward() returns, and nothing '
        "overlaps with the next forward pass",
        stacklevel=3,
    )
