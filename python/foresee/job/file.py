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
from foresee._values import build, unknown
from foresee.errors import ConfigError
from foresee.job import profile
from foresee.job.sections import Job

__all__ = ["VERSION", "facts", "loads", "read", "scenario", "scenarios"]

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
    table = _toml.load(shown)
    return _toml.named(shown, lambda: _job(table, os.path.dirname(shown), shown))


def loads(text: str, folder: str = "") -> Job:
    """A job from the text of its file, which lies in ``folder``.

    Raises:
        ConfigError: as :func:`read`, without the file's name.
        OSError: its profile cannot be read.
    """
    return _job(_toml.parse(text), folder, None)


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
    return {key: value for key, value in dataclasses.asdict(job).items() if key != "file"}


def _job(table: dict[str, Any], folder: str, shown: str | None) -> Job:
    if fault := _toml.version_fault(table, VERSION, "job"):
        raise ConfigError(fault)
    table = {key: dict(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    for section, key in _PATHS:
        within = table.get(section)
        if isinstance(within, dict) and isinstance(within.get(key), str) and within[key]:
            within[key] = os.path.join(folder, within[key])
    cluster = table.get("cluster")
    if isinstance(cluster, dict) and isinstance(cluster.get("profile"), str) and cluster["profile"]:
        measured = profile.read(cluster["profile"])
        table["cluster"] = measured.complete(cluster)
    job = build(Job, table)
    return dataclasses.replace(job, file=shown) if shown else job
