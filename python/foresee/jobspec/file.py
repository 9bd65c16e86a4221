# SPDX-License-Identifier: Apache-2.0
"""Read job files; ``docs/formats/job.md`` describes the format.

Paths in a file are relative to its folder, and missing values come from the profile that it names. Both are resolved
here, so a :class:`Job` has the same meaning everywhere.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from foresee._schema import toml
from foresee._schema.checked import build
from foresee._schema.values import unknown
from foresee.errors import ConfigError
from foresee.jobspec import profile
from foresee.jobspec.sections import Job

__all__ = ["VERSION", "complete", "facts", "loads", "read", "read_all", "scenario", "scenarios"]

VERSION = 1
_PATHS = (("data", "index"), ("cluster", "profile"), ("gradients", "model"), ("run", "folder"))
_SCENARIOS = os.path.join(os.path.dirname(__file__), "scenarios")
_SUFFIX = ".toml"


def read(path: str | os.PathLike[str]) -> Job:
    """Read a job file, and the profile that it names.

    Raises:
        ConfigError: not a job file, another version, faults (all of them, each with file, key, value and the expected
            value), or an unreadable profile.
        OSError: the file cannot be read.
    """
    shown = os.path.expanduser(path)
    return toml.read(shown, lambda table: _job(table, os.path.dirname(shown), shown))


def read_all(paths: Sequence[str]) -> list[Job]:
    """Read job files.

    Raises:
        ConfigError: as :func:`read`, with the faults of all files.
        OSError: one cannot be read.
    """
    jobs: list[Job] = []
    faults: list[str] = []
    for path in paths:
        try:
            jobs.append(read(path))
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))
    return jobs


def loads(text: str, folder: str = "") -> Job:
    """Return a job from the text of its file in ``folder``.

    Raises:
        ConfigError: as :func:`read`, without the file's name.
    """
    return _job(toml.parse(text), folder, None)


def complete(
    known: Mapping[str, Mapping[str, Any]],
    measured: profile.Profile,
    path: str | os.PathLike[str] | None = None,
) -> Job:
    r"""Return a job from ``known`` tables, a profile and optionally a job file.

    Args:
        known: tables of a job file, without ``version``.
        measured: profile with missing values of the cluster; replaces one that the file names.
        path: path of a job file, whose keys override those of ``known``.

    Raises:
        ConfigError: as :func:`read`.
        OSError: the file cannot be read.

    >>> figures = profile.loads('version = 1\nmachine = "a"\ndate = 2026-11-22')
    >>> complete({"train": {"batch": 8}}, figures).train.batch
    8
    """
    if path is None:
        return _job({"version": VERSION, **known}, "", None, measured)
    shown = os.path.expanduser(path)
    folder = os.path.dirname(os.path.abspath(shown))
    return toml.read(shown, lambda given: _job(_merge(known, given), folder, shown, measured))


#: Alternative keys: a given one removes known values of the others.
_ALTERNATIVES = {
    ("data", "index"): ("samples", "size", "size_sigma"),
    ("data", "size"): ("size_sigma",),
    ("train", "compute_rate"): ("compute_step",),
    ("train", "compute_step"): ("compute_rate",),
}


def _merge(known: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables with the keys of both; given values override known ones, also in nested tables."""
    made: dict[str, Any] = dict(given)
    for section, table in known.items():
        over = given.get(section, {})
        if not isinstance(over, Mapping):
            continue
        replaced = {
            word
            for (of, key), words in _ALTERNATIVES.items()
            if of == section and key in over
            for word in words
        }
        below = {key: value for key, value in table.items() if key not in replaced}
        inner = {key: value for key, value in below.items() if isinstance(value, Mapping)}
        made[section] = below | dict(over)
        for key, value in inner.items():
            if isinstance(over.get(key), Mapping):
                made[section][key] = dict(value) | dict(over[key])
    return made


def scenarios() -> tuple[str, ...]:
    """Return the names of the shipped job files: the simulations of published papers."""
    return tuple(sorted(name[: -len(_SUFFIX)] for name in os.listdir(_SCENARIOS) if name.endswith(_SUFFIX)))


def scenario(name: str) -> Job:
    """Return one of :func:`scenarios`.

    Raises:
        ConfigError: an unknown name.

    >>> scenario("nopfs_2a_printed").data.samples
    1281167
    """
    known = scenarios()
    if name not in known:
        raise ConfigError(f"scenario: {unknown(name, known).replace('key of this table', 'scenario')}")
    return read(os.path.join(_SCENARIOS, name + _SUFFIX))


def facts(job: Job) -> dict[str, Any]:
    """Return the job as plain values in base units, for JSON; missing values are None."""
    values = dataclasses.asdict(dataclasses.replace(job, given=None))
    return {key: value for key, value in values.items() if key not in {"file", "given"}}


def _job(
    table: dict[str, Any], folder: str, shown: str | None, measured: profile.Profile | None = None
) -> Job:
    if (fault := toml.version_fault(table, VERSION, "job")) and table.get("version") is not None:
        raise ConfigError(fault)  # another version has other keys
    table = {key: dict(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    for section, key in _PATHS:
        within = table.get(section)
        if isinstance(within, dict) and isinstance(within.get(key), str) and within[key]:
            within[key] = os.path.join(folder, os.path.expanduser(within[key]))
    given = None
    faults: list[str] = []
    cluster = table.get("cluster", {})
    if isinstance(cluster, dict):
        if measured is not None:
            cluster.pop("profile", None)
        elif isinstance(cluster.get("profile"), str) and cluster["profile"]:
            try:
                measured = profile.read(cluster["profile"])
            except ConfigError as error:
                faults += error.faults
            except OSError as error:
                faults.append(f'cluster.profile = "{cluster["profile"]}"; {_explain(error)}')
        given = profile.Given(cluster, measured)
        table["cluster"] = given.complete()
    faults = [fault, *faults] if fault else faults
    try:
        made = build(Job, table)
    except ConfigError as error:
        raise ConfigError([*faults, *error.faults]) from None
    if faults:
        raise ConfigError(faults)
    return dataclasses.replace(made, file=shown or None, given=given)


def _explain(error: OSError) -> str:
    """Return why a profile cannot be read, and the command that creates one."""
    return f"{error.strerror}: `foresee calibrate` measures one" if error.strerror else str(error)
