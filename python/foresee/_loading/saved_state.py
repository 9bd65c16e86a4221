# SPDX-License-Identifier: Apache-2.0
"""Format of the saved state, and its comparison with a loader.

Format, versions 1 and 2, JSON-able and equal on every rank::

    {"foresee": 1, "epoch": e, "position": p, "finished": false, "order": {"name": ..., "n": n, ...},
     "batch_size": B, "world_size": N, "drop_last": false, "fingerprint": "...", "draw": {...},
     "avoid": [{"epoch": e, "position": p, "ids": [i, ...]}, ...]}

``position`` counts samples over all ranks (batches, for a ``batch_sampler=``). ``draw`` has the random numbers of an
order that cannot be computed again. Nothing in a state differs between ranks. ``avoid``, samples that are replaced from
a position on, makes a state version 2, so that a Foresee which knows version 1 alone refuses it.
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
    """Return a state of version 1, or of version 2 if samples are avoided."""
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
    """Return the samples that a checked state avoids, by the position from which on it does."""
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
    """Return the place of ``state``, if it fits a loader with these values.

    Args:
        state: result of ``state_dict``, perhaps of another process.
        order: description of the loader's order.
        batch_size: compared unless ``any_world``.
        world_size: compared unless ``any_world``.
        fingerprint: of the loader's index.
        any_world: whether the order allows other batch and world sizes.
        strict: False accepts another size and fingerprint of the data set.

    Raises:
        StateMismatch: ``state`` is no state, of a newer version, or has other values; shows all of them.
    """
    check_shape(state)
    faults = []
    saved: Mapping[str, Any] = state["order"]
    faults += [
        f"order {key}: {saved.get(key)!r} in the state, {order.get(key)!r} in this loader"
        for key in sorted(order.keys() | saved.keys())
        if order.get(key) != saved.get(key) and (strict or key != "n")
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
    """Check the version and the types of the fields of ``state``.

    Raises:
        StateMismatch: ``state`` is no state, of a newer version, or damaged.
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
