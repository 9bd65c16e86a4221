# SPDX-License-Identifier: Apache-2.0
"""A job with other values at some of its keys: what sweeps and questions of "what if" are made of.

Apart from the simulator, which knows one job at a time. Refuses keys that a job file does not have.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from foresee.errors import ConfigError
from foresee.job import Job

__all__ = ["points", "with_value"]


def with_value(job: Job, key: str, value: object) -> Job:
    r"""The job with ``value`` at ``key``, given as in a job file; a tier goes by its name.

    Raises:
        ConfigError: there is no such key, or the value is not one of its kind.

    >>> from foresee.job import loads
    >>> with_value(loads("version = 1\n[train]\nbatch = 8"), "train.batch", 16).train.batch
    16
    """
    made: Job = _replaced(job, key.split("."), value, key)
    return made


def points(job: Job, axes: Mapping[str, Sequence[object]]) -> Iterator[tuple[tuple[object, ...], Job]]:
    """The job at every combination of values, the last axis fastest; each with its values.

    Raises:
        ConfigError: an axis has no values, or as :func:`with_value`.
    """
    empty = [key for key, values in axes.items() if not values]
    if empty:
        raise ConfigError([f"{key}: no values to sweep; give one or more" for key in empty])
    for values in itertools.product(*axes.values()):
        there = job
        for key, value in zip(axes, values, strict=True):
            there = with_value(there, key, value)
        yield values, there


def _replaced(place: Any, path: Sequence[str], value: object, key: str) -> Any:
    head, *rest = path
    if isinstance(place, tuple):
        names = [tier.name for tier in place]
        if head not in names or not rest:
            raise ConfigError(f"{key}: no tier {head!r}; this job has {', '.join(names) or 'none'}")
        at = names.index(head)
        return (*place[:at], _replaced(place[at], rest, value, key), *place[at + 1 :])
    known = [field.name for field in dataclasses.fields(place) if field.name not in {"file", "version"}]
    if head not in known:
        raise ConfigError(f"{key}: no key {head!r} there; one of {', '.join(known)}")
    if not rest:
        return dataclasses.replace(place, **{head: value})
    inner = getattr(place, head)
    if not isinstance(inner, tuple) and not dataclasses.is_dataclass(inner):
        raise ConfigError(
            f"{key}: {head} has no keys below it" if inner is not None else f"{key}: the job has no {head}"
        )
    return dataclasses.replace(place, **{head: _replaced(inner, rest, value, key)})
