# SPDX-License-Identifier: Apache-2.0
"""``prediction.json``: the predicted and the measured times of a run, and the error of the prediction.

``docs/formats/prediction.md`` describes the format. Input and output are plain values; ``live`` measures and decides
when the file is written. The error of times that cannot be compared is null.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from foresee.errors import ConfigError
from foresee.planning.simulation import Report

__all__ = ["SOURCES", "VERSION", "dumps", "error", "interval", "measured", "moved", "predicted", "read"]

VERSION = 2
SOURCES: Mapping[str, tuple[str, ...]] = {
    "origin": ("origin_queue", "origin_read", "origin_retry"),
    "disk": ("disk",),
    "ram": ("copy",),
}
"""Sources of a sample in the simulator, with the ledger's causes of waiting for them. It has no other causes."""


_FIGURES: Mapping[str, str] = {"origin": "origin.read", "disk": "tier.disk.read", "ram": "tier.ram.read"}
_TIMES = ("total_s", "first_epoch_s", "later_epoch_s")
#: Tolerance of a prediction without interval, as a share of the measured time.
_TOLERANCE = 0.1


def predicted(reports: Sequence[Report], epochs: int | None) -> dict[str, Any]:
    """Return the prediction, as the mean over ranks.

    Args:
        reports: reports of the simulation, one at each epoch's end; it may have fewer epochs than the run.
        epochs: number of epochs of the run; None if unknown.
    """
    report = reports[-1]
    ends = [0.0, *(epoch.end_s for epoch in report.epochs)]
    took = [end - before for before, end in itertools.pairwise(ends)]
    waited = [epoch.stall_s / report.ranks for epoch in report.epochs]
    made: dict[str, Any] = {
        "simulated_epochs": len(took),
        "first_epoch_s": took[0],
        "later_epoch_s": _mean(took[1:]),
        "first_wait_s": waited[0],
        "later_wait_s": _mean(waited[1:]),
        "first_waits_s": {},
        "later_waits_s": {},
    }
    for source in SOURCES:
        so_far = [0.0, *(_waited(each, source) for each in reports)]
        each = [end - before for before, end in itertools.pairwise(so_far)]
        made["first_waits_s"][source] = each[0]
        made["later_waits_s"][source] = _mean(each[1:])
    return {"total_s": None if epochs is None else _sum(made, "epoch", epochs), **made}


def measured(
    epoch_s: Sequence[float], wait_s: Sequence[float], waits: Mapping[str, float], step_s: float
) -> dict[str, Any]:
    """Return the measured times of the epochs that one rank read completely.

    Args:
        epoch_s: seconds of each epoch.
        wait_s: seconds of waiting for batches in each.
        waits: seconds of waiting in all of them, by cause.
        step_s: mean compute time of a step in seconds.
    """
    return {
        "epochs": len(epoch_s),
        "total_s": sum(epoch_s),
        "first_epoch_s": epoch_s[0] if epoch_s else None,
        "later_epoch_s": _mean(epoch_s[1:]),
        "wait_s": sum(wait_s),
        "compute_s": sum(epoch_s) - sum(wait_s),
        "step_s": step_s,
        "waits_s": dict(waits),
    }


def error(prediction: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, float | None]:
    """Return ``(predicted - measured) / measured`` over the epochs that were read completely.

    ``wait`` is all waiting for batches, ``wait_*`` that for each of :data:`SOURCES`; ``compute`` is the rest, which
    contains waits for other ranks.

    >>> prediction = {"first_epoch_s": 11.0, "later_epoch_s": 5.0, "first_wait_s": 3.0, "later_wait_s": 0.0}
    >>> prediction |= {"first_waits_s": {"origin": 3.0}, "later_waits_s": {"origin": 0.0}}
    >>> off = error(prediction, measured([10.0, 5.0], [2.0, 0.0], {"origin_read": 2.0}, 0.1))
    >>> off["total"], off["wait_origin"], off["wait_disk"]
    (0.06666666666666667, 0.5, None)
    """
    epochs = found["epochs"]
    total, wait = (_sum(prediction, what, epochs) if epochs else None for what in ("epoch", "wait"))
    compute = None if total is None or wait is None else total - wait
    made = {
        "total": _relative(total, found["total_s"]),
        "first_epoch": _relative(prediction["first_epoch_s"], found["first_epoch_s"]),
        "later_epoch": _relative(prediction["later_epoch_s"], found["later_epoch_s"]),
        "wait": _relative(wait, found["wait_s"]),
        "compute": _relative(compute, found["compute_s"]),
    }
    for source, causes in SOURCES.items():
        first, later = prediction["first_waits_s"].get(source), prediction["later_waits_s"].get(source)
        waited = None if first is None or not epochs else _total(first, later, epochs)
        made[f"wait_{source}"] = _relative(waited, sum(found["waits_s"].get(cause, 0.0) for cause in causes))
    return made


def interval(each: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return minimum and maximum of several predictions of one run, which :func:`predicted` returned.

    >>> low = {"total_s": None, "first_epoch_s": 2.0, "later_epoch_s": 1.0}
    >>> interval([low, low | {"first_epoch_s": 3.0}])["high"]
    {'total_s': None, 'first_epoch_s': 3.0, 'later_epoch_s': 1.0}
    """
    return {
        name: {key: None if each[0][key] is None else end(one[key] for one in each) for key in _TIMES}
        for name, end in (("low", min), ("high", max))
    }


def moved(
    prediction: Mapping[str, Any], within: Mapping[str, Any] | None, found: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the largest part of the difference, if the measured epochs are outside of the tolerance.

    The tolerance is the interval ``within``; without one, a tenth of the measured time. None: they are inside, or there
    is nothing to compare. ``figure`` is the profile's value, ``train.compute_step`` for time other than waiting, or
    None for causes that are not simulated. ``cause`` is the cause of the wait, ``seconds`` the excess.

    >>> prediction = {"first_epoch_s": 11.0, "later_epoch_s": 5.0, "first_wait_s": 3.0, "later_wait_s": 0.0}
    >>> prediction |= {"first_waits_s": {"origin": 3.0}, "later_waits_s": {"origin": 0.0}}
    >>> moved(prediction, None, measured([19.0, 6.0], [10.0, 0.5], {"origin_read": 9.0, "plan": 1.5}, 0.1))
    {'figure': 'origin.read', 'cause': 'origin', 'seconds': 6.0}
    """
    epochs = found["epochs"]
    total, wait = (_sum(prediction, what, epochs) if epochs else None for what in ("epoch", "wait"))
    if total is None or wait is None:
        return None
    took = found["total_s"]
    if within is None:
        allowed = abs(took - total) <= _TOLERANCE * took
    else:
        low, high = (_sum(within[end], "epoch", epochs) for end in ("low", "high"))
        allowed = low is not None and high is not None and low <= took <= high
    if allowed:
        return None
    longer = took > total
    differences: list[tuple[float, str | None, str]] = [
        (found["compute_s"] - (total - wait), "train.compute_step", "compute")
    ]
    simulated = {cause for causes in SOURCES.values() for cause in causes}
    for source, causes in SOURCES.items():
        first, later = prediction["first_waits_s"].get(source), prediction["later_waits_s"].get(source)
        waited = None if first is None else _total(first, later, epochs)
        measured_s = sum(found["waits_s"].get(cause, 0.0) for cause in causes)
        differences.append((measured_s - (waited or 0.0), _FIGURES[source], source))
    differences += [
        (seconds, None, cause) for cause, seconds in found["waits_s"].items() if cause not in simulated
    ]
    seconds, figure, cause = (max if longer else min)(differences, key=lambda each: each[0])
    return {"figure": figure, "cause": cause, "seconds": seconds}


def dumps(document: Mapping[str, Any]) -> str:
    """Return the text of the file."""
    return json.dumps({"version": VERSION, **document}, indent=2) + "\n"


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the file as plain values.

    Raises:
        ConfigError: no prediction, or another version.
        OSError: the file cannot be read.
    """
    shown = os.fspath(path)
    with open(shown, encoding="utf-8") as file:
        try:
            document = json.load(file)
        except (ValueError, RecursionError) as why:
            raise ConfigError(f"{shown}: not a prediction file: {why}") from None
    found = document.get("version") if isinstance(document, dict) else None
    if isinstance(found, bool) or found != VERSION:
        raise ConfigError(
            f"{shown}: version = {found!r}; this program reads version {VERSION} of a prediction"
        )
    made: dict[str, Any] = document
    return made


def _sum(prediction: Mapping[str, Any], what: str, epochs: int) -> float | None:
    """Return the time of ``epochs``; None if only the first is known."""
    return _total(prediction[f"first_{what}_s"], prediction[f"later_{what}_s"], epochs)


def _total(first: float, later: float | None, epochs: int) -> float | None:
    if epochs == 1:
        return float(first)
    return None if later is None else float(first + (epochs - 1) * later)


def _waited(report: Report, source: str) -> float:
    return sum(reads.waited_s for reads in report.reads if reads.source == source) / report.ranks


def _relative(predicted_s: float | None, found: float | None) -> float | None:
    return None if predicted_s is None or not found else (predicted_s - found) / found


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
