# SPDX-License-Identifier: Apache-2.0
"""A job with other values at some of its keys, for sweeps and "what if" questions.

A job that was read from a file is completed from its profile again, since the profile's values depend on other keys.
Keys that a job file does not have are errors.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from foresee._schema.checked import build
from foresee.errors import ConfigError
from foresee.jobspec import profile
from foresee.jobspec.sections import Cluster, Job

__all__ = ["Point", "points", "try_points", "with_value"]

Point: TypeAlias = tuple[tuple[object, ...], Job]
"""Values, by axis, and the job at them."""


def with_value(job: Job, key: str, value: object) -> Job:
    r"""Return the job with ``value`` at ``key``, in the spelling of a job file; a name identifies a tier.

    The job is completed from its profile again, and another ``cluster.profile`` is read. Paths are relative to the
    working folder, like those of arguments.

    Raises:
        ConfigError: an unknown key, or a value that is invalid or contradicts others: all faults, each with the job's
            file, the whole key and the expected value.
        OSError: the profile cannot be read.

    >>> from foresee.jobspec import loads
    >>> with_value(loads("version = 1\n[train]\nbatch = 8"), "train.batch", 16).train.batch
    16
    """
    path = key.split(".")
    try:
        made: Job = _replace(job, path, value, key)
        if job.given is not None and path[0] == "cluster":
            made = _complete(made, job.given, path[1:], value)
    except ConfigError as error:
        where = f"{job.file}: " if job.file else ""
        raise ConfigError([where + fault for fault in error.faults]) from None
    return made


def points(job: Job, axes: Mapping[str, Sequence[object]]) -> list[Point]:
    """Return the job at every combination of values, the last axis fastest; each with its values.

    Raises:
        ConfigError: an axis has no values, or as :func:`with_value`: the faults of all points.
        OSError: as :func:`with_value`.
    """
    made, faults = try_points(job, axes)
    if faults:
        raise ConfigError(faults)
    return made


def try_points(job: Job, axes: Mapping[str, Sequence[object]]) -> tuple[list[Point], list[str]]:
    """Return the valid :func:`points`, and the faults of the others, each once.

    Raises:
        OSError: as :func:`with_value`.
    """
    made: list[Point] = []
    faults = [f"{key}: no values to sweep; give one or more" for key, values in axes.items() if not values]
    for values in itertools.product(*axes.values()):
        varied = job
        try:
            for key, value in zip(axes, values, strict=True):
                varied = with_value(varied, key, value)
        except ConfigError as error:
            faults += error.faults
        else:
            made.append((values, varied))
    return made, list(dict.fromkeys(faults))


def _replace(place: Any, path: Sequence[str], value: object, key: str) -> Any:
    head, *rest = path
    if isinstance(place, tuple):
        names = [tier.name for tier in place]
        if head not in names or not rest:
            raise ConfigError(f"{key}: no tier {head!r}; this job has {', '.join(names) or 'none'}")
        at = names.index(head)
        return (*place[:at], _replace(place[at], rest, value, key), *place[at + 1 :])
    known = [field.name for field in dataclasses.fields(place) if field.name not in _NO_KEYS]
    if head not in known:
        raise ConfigError(f"{key}: no key {head!r} there; one of {', '.join(known)}")
    above = key.split(".")[: -len(path)]
    if not rest:
        return _with(place, head, value, above)
    inner = getattr(place, head)
    if not isinstance(inner, tuple) and not dataclasses.is_dataclass(inner):
        raise ConfigError(
            f"{key}: {head} has no keys below it" if inner is not None else f"{key}: the job has no {head}"
        )
    return _with(place, head, _replace(inner, rest, value, key), above)


#: Fields of a job that are no keys to vary.
_NO_KEYS = frozenset({"file", "given", "version"})


def _with(place: Any, field: str, value: object, above: Sequence[str]) -> Any:
    """Return the dataclass with another value; its faults name the whole key, which begins with ``above``."""
    try:
        return dataclasses.replace(place, **{field: value})
    except ConfigError as error:
        raise ConfigError([".".join([*above, fault]) for fault in error.faults]) from None


def _complete(job: Job, given: profile.Given, path: Sequence[str], value: object) -> Job:
    """Return the job with ``value`` at ``path`` of its original cluster, completed from the profile."""
    if not path:
        # The whole table is replaced by a complete one.
        return dataclasses.replace(job, given=None)
    measured = profile.read(value) if path == ["profile"] and isinstance(value, str) else given.measured
    given = profile.Given(_put(given.cluster, path, value), measured)
    try:
        cluster = build(Cluster, given.complete())
    except ConfigError as error:
        raise ConfigError([f"cluster.{fault}" for fault in error.faults]) from None
    return dataclasses.replace(job, cluster=cluster, given=given)


def _put(place: Any, path: Sequence[str], value: object) -> Any:
    """Return tables with ``value`` at ``path``, which exists in the dataclasses."""
    head, *rest = path
    if isinstance(place, (list, tuple)):
        return [_put(tier, rest, value) if _name(tier) == head else tier for tier in place]
    if dataclasses.is_dataclass(place):
        return _replace(place, path, value, ".".join(path))
    return {**place, head: _put(place.get(head, {}), rest, value) if rest else value}


def _name(tier: object) -> object:
    return tier.get("name") if isinstance(tier, Mapping) else getattr(tier, "name", None)
