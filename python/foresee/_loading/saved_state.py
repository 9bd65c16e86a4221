# SPDX-License-Identifier: Apache-2.0
"""The saved state: what it holds, and whether it fits.

Format, versions 1 and 2, JSON-able and equal on every rank::

    {"foresee": 1, "epoch": e, "position": p, "finished": false, "order": {"name": ..., "n": n, ...},
     "batch_size": B, "world_size": N, "drop_last": false, "fingerprint": "...", "draw": {...},
     "avoid": [{"epoch": e, "position": p, "ids": [i, ...]}, ...]}

``position`` counts samples over all ranks (batches, for a ``batch_sampler=``). ``draw`` is there only for
orders that drew random numbers which cannot be computed again. What differs between ranks (audit,
substitutes) is not in it. ``avoid``, samples that are replaced from a position on, is there in version 2 only; a
state without it is of version 1. So a Foresee that knows version 1 alone refuses a state whose avoided samples it would
read. Whatever does not fit is listed with both values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foresee._loading.avoided_samples import Avoided, from_state, union
from foresee._loading.progress import Place
from foresee.errors import StateMismatch

VERSION = 2
_WITHOUT_AVOID = 1


def build(
    place: Place,
    *,
    order: Mapping[str, Any],
    batch_size: int | None,
    world_size: int,
    drop_last: bool,
    fingerprint: str,
    draw: Mapping[str, Any] | None = None,
    avoided: tuple[Avoided, ...] = (),
) -> dict[str, Any]:
    """A state of version 1, or of version 2 if samples are avoided."""
    state: dict[str, Any] = {
        "foresee": VERSION if avoided else _WITHOUT_AVOID,
        "epoch": place.epoch,
        "position": place.position,
        "finished": place.finished,
        "order": dict(order),
        "batch_size": batch_size,
        "world_size": world_size,
        "drop_last": drop_last,
        "fingerprint": fingerprint,
    }
    if draw is not None:
        state["draw"] = dict(draw)
    if avoided:
        state["avoid"] = [entry.to_state() for entry in avoided]
    return state


def avoided(state: Mapping[str, Any]) -> tuple[Avoided, ...]:
    """Samples that a checked state avoids, by the position from which on it does."""
    return from_state(state["avoid"]) if "avoid" in state else ()


def check(
    state: Mapping[str, Any],
    *,
    order: Mapping[str, Any],
    batch_size: int | None,
    world_size: int,
    fingerprint: str,
    any_world: bool,
    strict: bool,
) -> Place:
    """Where ``state`` stands, if it fits.

    Args:
        state: what ``state_dict`` gave, perhaps in another process.
        order: as this loader describes it.
        batch_size: of this loader; compared only where the order does not allow another one.
        world_size: of this loader; likewise.
        fingerprint: of this loader's index.
        any_world: whether another batch size and world size are fine.
        strict: False lets the data set have grown: its size and fingerprint may differ.

    Raises:
        StateMismatch: no state of ours, a newer version, or values that differ; shows all of them.
    """
    check_shape(state)
    faults = []
    here, there = dict(order), dict(state["order"])
    if not strict:
        here.pop("n", None)
        there.pop("n", None)
    faults += [
        f"order {key}: {there.get(key)!r} in the state, {here.get(key)!r} in this loader"
        for key in sorted(here.keys() | there.keys())
        if here.get(key) != there.get(key)
    ]
    if strict and state["fingerprint"] != fingerprint:
        faults.append(
            f"data set: fingerprint {state['fingerprint']!r} in the state, {fingerprint!r} in this loader; "
            "use the data of the saved run, or strict=False if it has only grown"
        )
    if not any_world:
        for key, value in (("batch_size", batch_size), ("world_size", world_size)):
            if state[key] != value:
                faults.append(f"{key}: {state[key]!r} in the state, {value!r} in this loader")
    samples = order.get("n")
    if isinstance(samples, int) and any_world and state["position"] > samples:
        faults.append(f"position: {state['position']} in the state, but the data set has {samples} samples")
    avoid = union(avoided(state))
    if isinstance(samples, int) and avoid and (avoid[-1] >= samples or len(avoid) == samples):
        faults.append(
            f"avoid: {len(avoid)} samples up to {avoid[-1]} in the state, but the data set has {samples} samples"
        )
    if faults:
        raise StateMismatch("this state is of another run: " + "; ".join(faults))
    return Place(state["epoch"], state["position"], state["finished"])


_TYPES: dict[str, type | tuple[type, ...]] = {
    "epoch": int,
    "position": int,
    "finished": bool,
    "order": Mapping,
    "batch_size": (int, type(None)),
    "world_size": int,
    "drop_last": bool,
    "fingerprint": str,
}


def check_shape(state: Mapping[str, Any]) -> None:
    """Refuse what is no state.

    Raises:
        StateMismatch: no state of ours, a newer version, or damaged fields.
    """
    version = state.get("foresee") if isinstance(state, Mapping) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise StateMismatch(
            f"not a state of Foresee: no version under 'foresee' (got {type(state).__name__})"
        )
    if not _WITHOUT_AVOID <= version <= VERSION:
        raise StateMismatch(
            f"state of version {version}, this Foresee reads versions {_WITHOUT_AVOID} and {VERSION}; install a newer "
            "one"
        )
    faults = []
    for key, types in _TYPES.items():
        value = state.get(key)
        wrong = not isinstance(value, types) or (isinstance(value, bool) and types is not bool)
        if key not in state:
            faults.append(f"{key} is missing")
        elif wrong or (isinstance(value, int) and value < 0):
            faults.append(f"{key}={value!r}")
    if (version == VERSION) != ("avoid" in state):
        faults.append(f"version {version} {'with' if 'avoid' in state else 'without'} avoid")
    elif "avoid" in state:
        try:
            from_state(state["avoid"])
        except ValueError as error:
            faults.append(f"avoid: {error}")
    if faults:
        raise StateMismatch("damaged state: " + ", ".join(faults))
