# SPDX-License-Identifier: Apache-2.0
"""Reads job files: ``docs/formats/job.md`` describes the format.

Paths in a file are meant from its folder, and figures that it leaves out come from the machine profile that it names.
Both are settled here, so that a :class:`Job` means the same wherever it is used.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from foresee import _toml
from foresee._checked import build
from foresee._values import unknown
from foresee.errors import ConfigError
from foresee.job import profile
from foresee.job.sections import Job

__all__ = ["VERSION", "completed", "facts", "loads", "read", "scenario", "scenarios"]

VERSION = 1
_PATHS = (("data", "index"), ("cluster", "profile"), ("gradients", "model"), ("run", "folder"))
_SCENARIOS = os.path.join(os.path.dirname(__file__), "scenarios")
_SUFFIX = ".toml"


def read(path: str | os.PathLike[str]) -> Job:
    """Read a job file, and the profile that it names.

    Raises:
        ConfigError: not a job file, of another version, or with faults: all of them, each with file, key, value and
            what was expected.
        OSError: the file, or its profile, cannot be read.
    """
    shown = os.fspath(path)
    return _toml.read(shown, lambda table: _job(table, os.path.dirname(shown), shown))


def loads(text: str, folder: str = "") -> Job:
    """A job from the text of its file, which lies in ``folder``.

    Raises:
        ConfigError: as :func:`read`, without the file's name.
        OSError: its profile cannot be read.
    """
    return _job(_toml.parse(text), folder, None)


def completed(
    known: Mapping[str, Mapping[str, Any]],
    measured: profile.Profile,
    path: str | os.PathLike[str] | None = None,
) -> Job:
    r"""The job that is ``known`` from elsewhere, on the machine that was ``measured``.

    Args:
        known: tables as a job file has them, without ``version``.
        measured: gives what the cluster leaves out, in place of a profile that the file names.
        path: of a job file, whose keys go before those of ``known``.

    Raises:
        ConfigError: as :func:`read`.
        OSError: the file cannot be read.

    >>> figures = profile.loads('version = 1\nmachine = "a"\ndate = 2026-11-22')
    >>> completed({"train": {"batch": 8}}, figures).train.batch
    8
    """
    if path is None:
        return _job({"version": VERSION, **known}, "", None, measured)
    shown = os.fspath(path)
    folder = os.path.dirname(os.path.abspath(shown))
    return _toml.read(shown, lambda given: _job(_over(known, given), folder, shown, measured))


#: Keys that say the same in other words: where one is given, what is known by the others gives way.
_INSTEAD = {
    ("data", "index"): ("samples", "size", "size_sigma"),
    ("data", "size"): ("size_sigma",),
    ("train", "compute_rate"): ("compute_step",),
    ("train", "compute_step"): ("compute_rate",),
}


def _over(known: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with the keys of both; what is given goes before what is known, and tables within tables alike."""
    made: dict[str, Any] = dict(given)
    for section, table in known.items():
        over = given.get(section, {})
        if not isinstance(over, Mapping):
            continue
        gone = {
            word for (of, key), words in _INSTEAD.items() if of == section and key in over for word in words
        }
        below = {key: value for key, value in table.items() if key not in gone}
        inner = {key: value for key, value in below.items() if isinstance(value, Mapping)}
        made[section] = below | dict(over)
        for key, value in inner.items():
            if isinstance(over.get(key), Mapping):
                made[section][key] = dict(value) | dict(over[key])
    return made


def scenarios() -> tuple[str, ...]:
    """Names of the job files that are shipped: the simulations of published papers."""
    return tuple(sorted(name[: -len(_SUFFIX)] for name in os.listdir(_SCENARIOS) if name.endswith(_SUFFIX)))


def scenario(name: str) -> Job:
    """One of :func:`scenarios`.

    Raises:
        ConfigError: there is no such one.

    >>> scenario("nopfs_2a_printed").data.samples
    1281167
    """
    known = scenarios()
    if name not in known:
        raise ConfigError(f"scenario: {unknown(name, known).replace('key of this table', 'scenario')}")
    return read(os.path.join(_SCENARIOS, name + _SUFFIX))


def facts(job: Job) -> dict[str, Any]:
    """The job in plain values and base units, as JSON takes them; what was not given is None."""
    told = dataclasses.asdict(dataclasses.replace(job, given=None))
    return {key: value for key, value in told.items() if key not in {"file", "given"}}


def _job(
    table: dict[str, Any], folder: str, shown: str | None, measured: profile.Profile | None = None
) -> Job:
    if fault := _toml.version_fault(table, VERSION, "job"):
        raise ConfigError(fault)
    table = {key: dict(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    for section, key in _PATHS:
        within = table.get(section)
        if isinstance(within, dict) and isinstance(within.get(key), str) and within[key]:
            within[key] = os.path.join(folder, within[key])
    given = None
    cluster = table.get("cluster", {})
    if isinstance(cluster, dict):
        if measured is not None:
            cluster.pop("profile", None)
        elif isinstance(cluster.get("profile"), str) and cluster["profile"]:
            measured = profile.read(cluster["profile"])
        given = profile.Given(cluster, measured)
        table["cluster"] = given.completed()
    return dataclasses.replace(build(Job, table), file=shown or None, given=given)
