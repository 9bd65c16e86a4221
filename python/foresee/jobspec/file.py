# SPDX-License-Identifier: Apache-2.0
"""Reads job files: ``docs/formats/job.md`` describes the format.

Paths in a file are meant from its folder, and figures that it leaves out come from the machine profile that it names.
Both are settled here, so that a :class:`Job` means the same wherever it is used.
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

__all__ = ["VERSION", "completed", "facts", "loads", "read", "read_all", "scenario", "scenarios"]

VERSION = 1
_PATHS = (("data", "index"), ("cluster", "profile"), ("gradients", "model"), ("run", "folder"))
_SCENARIOS = os.path.join(os.path.dirname(__file__), "scenarios")
_SUFFIX = ".toml"


def read(path: str | os.PathLike[str]) -> Job:
    """Read a job file, and the profile that it names.

    Raises:
        ConfigError: not a job file, of another version, or with faults: all of them, each with file, key, value and
            what was expected; or its profile cannot be read.
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
    """A job from the text of its file, which lies in ``folder``.

    Raises:
        ConfigError: as :func:`read`, without the file's name.
    """
    return _job(toml.parse(text), folder, None)


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
    shown = os.path.expanduser(path)
    folder = os.path.dirname(os.path.abspath(shown))
    return toml.read(shown, lambda given: _job(_over(known, given), folder, shown, measured))


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
    if (fault := toml.version_fault(table, VERSION, "job")) and table.get("version") is not None:
        raise ConfigError(fault)  # the keys of another version are others
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
                faults.append(f'cluster.profile = "{cluster["profile"]}"; {_unread(error)}')
        given = profile.Given(cluster, measured)
        table["cluster"] = given.completed()
    faults = [fault, *faults] if fault else faults
    try:
        made = build(Job, table)
    except ConfigError as error:
        raise ConfigError([*faults, *error.faults]) from None
    if faults:
        raise ConfigError(faults)
    return dataclasses.replace(made, file=shown or None, given=given)


def _unread(error: OSError) -> str:
    """Why a profile cannot be read, and what makes one."""
    return f"{error.strerror}: `foresee calibrate` measures one" if error.strerror else str(error)
