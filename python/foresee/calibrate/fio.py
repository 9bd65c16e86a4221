# SPDX-License-Identifier: Apache-2.0
"""Results of fio (``fio --output-format=json``) as figures: random reads against the number in flight.

That is ``numjobs`` times ``iodepth``, for engines with more than one read in flight. Fields as in fio's HOWTO since
version 3: ``bw_bytes`` in bytes per second, ``lat_ns`` and ``clat_ns`` in nanoseconds. Older files, which have KiB and
microseconds, are refused, and so are other patterns, reads through the page cache, and jobs without reads.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from typing import Any

from foresee._schema import files
from foresee._schema.values import shown
from foresee.errors import ConfigError
from foresee.jobspec import Figure

_FILE_BYTES_MAX = 64 << 20
#: Engines that wait for each read: ``iodepth`` has no effect.
_ONE_AT_A_TIME = frozenset({"sync", "psync", "vsync", "pvsync", "pvsync2", "mmap"})
_MEDIAN = "50.000000"


class _Fault(ValueError):
    """A fault of one job."""


def read(path: str, names: Mapping[str, str]) -> list[Figure]:
    """Read the figures of a file; ``names``: their names under ``read`` and ``latency``.

    Raises:
        ConfigError: the file has no results of fio, or none of random reads from a device; all faults.
        OSError: the file cannot be read.
    """
    content = files.read(path, _FILE_BYTES_MAX)
    return files.named(path, lambda: figures(_parsed(content), names))


def figures(table: Mapping[str, Any], names: Mapping[str, str]) -> list[Figure]:
    """As :func:`read`, for the content of a file."""
    jobs = table.get("jobs")
    if not isinstance(jobs, list) or not jobs:
        raise ConfigError("jobs is missing; results of fio --output-format=json expected")
    faults: list[str] = []
    found: dict[tuple[str, int | None], Figure] = {}
    for number, group in _groups(jobs):
        try:
            made = list(_figures(group, table, names))
        except _Fault as fault:
            faults.append(f"jobs[{number}]{fault}")
            continue
        except ConfigError as error:
            faults += [f"jobs[{number}].read: {fault}" for fault in error.faults]
            continue
        for figure in made:
            key = figure.name, figure.at
            if key in found:
                faults.append(f"jobs[{number}]: another job has {figure.at} reads in flight; each once")
            found[key] = figure
    if faults:
        raise ConfigError(faults)
    return list(found.values())


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        table = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"no JSON ({error}); write it with fio --output-format=json") from None
    if not isinstance(table, dict):
        raise ConfigError("no results of fio; write it with fio --output-format=json")
    return table


def _groups(jobs: list[Any]) -> Iterator[tuple[int, list[Any]]]:
    """Group the copies of a job, which have an entry each without ``group_reporting``."""
    seen: dict[tuple[str, str], tuple[int, list[Any]]] = {}
    for number, job in enumerate(jobs):
        key = (
            (str(job.get("jobname")), str(job.get("groupid"))) if isinstance(job, dict) else (str(number), "")
        )
        seen.setdefault(key, (number, []))[1].append(job)
    yield from seen.values()


def _figures(group: list[Any], table: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[Figure]:
    for job in group:
        if not isinstance(job, dict):
            raise _Fault(f" = {shown(job)}; a table expected")
    options = {**_table(table, "global options", {}), **_table(group[0], "job options", {})}
    copies, depth = _whole(options, "numjobs"), _whole(options, "iodepth")
    engine = str(options.get("ioengine", "psync"))
    pattern = str(options.get("rw", options.get("readwrite", "read")))
    if pattern.partition(":")[0] != "randread":
        raise _Fault(f'["job options"].rw = {shown(pattern)}; the figures are of random reads: --rw=randread')
    if str(options.get("direct", "0")) != "1":
        raise _Fault(
            f'["job options"].direct = {shown(options.get("direct", "0"))}; reads of the device and of the page cache '
            "cannot be told apart: --direct=1"
        )
    if len(group) not in (1, copies):
        raise _Fault(f": {len(group)} entries of a job with numjobs = {copies}; 1 or {copies} expected")
    at = copies if engine in _ONE_AT_A_TIME else copies * depth
    reads = [_table(job, "read") for job in group]
    if not all(_number(each, "total_ios", ".read") > 0 for each in reads):
        raise _Fault(".read.total_ios = 0; the job has no reads")
    bandwidth = sum(_number(each, "bw_bytes", ".read", "bytes per second, as fio 3 writes") for each in reads)
    if not bandwidth > 0:
        raise _Fault(".read.bw_bytes = 0; a rate above 0 expected")
    version = str(table.get("fio version", "fio"))
    size = str(options.get("bs", options.get("blocksize", "4k")))
    conditions = f"{version}, {engine}, {pattern}, blocks of {size}, {copies} jobs x {depth} deep, direct"
    if not conditions.isprintable():
        raise _Fault(f": {shown(conditions)}; printable words expected")
    date = _date(table)
    yield Figure(
        name=names["read"], at=at, value=bandwidth / 1e6, unit="MB/s", conditions=conditions, date=date
    )
    latency, kind = _latency(reads)
    yield Figure(
        name=names["latency"],
        at=at,
        value=latency / 1e3,
        unit="us",
        conditions=f"{conditions}; {kind}",
        date=date,
    )


def _latency(reads: list[dict[str, Any]]) -> tuple[float, str]:
    """Return the nanoseconds of a read: the median if a single entry has it, else the mean of all."""
    if len(reads) == 1:
        percentiles = _table(_table(reads[0], "clat_ns", {}, ".read"), "percentile", {}, ".read.clat_ns")
        if _MEDIAN in percentiles:
            median = _number(percentiles, _MEDIAN, ".read.clat_ns.percentile")
            if median > 0:
                return median, "median"
    ios = [_number(each, "total_ios", ".read") for each in reads]
    means = [
        _number(_table(each, "lat_ns", None, ".read"), "mean", ".read.lat_ns", "nanoseconds, as fio 3 writes")
        for each in reads
    ]
    mean = sum(count * mean for count, mean in zip(ios, means, strict=True)) / sum(ios)
    if not mean > 0:
        raise _Fault(".read.lat_ns.mean = 0; a time above 0 expected")
    return mean, "mean"


def _table(
    of: Mapping[str, Any], key: str, default: dict[str, Any] | None = None, where: str = ""
) -> dict[str, Any]:
    value = of.get(key, default)
    if value is None:
        what = "; nanoseconds, as fio 3 writes, expected" if key.endswith("_ns") else "; a table expected"
        raise _Fault(f"{where}.{key} is missing{what}")
    if not isinstance(value, dict):
        raise _Fault(f"{where}.{key} = {shown(value)}; a table expected")
    return value


def _number(of: Mapping[str, Any], key: str, where: str, unit: str = "a number of 0 or more") -> float:
    value = of.get(key)
    if value is None:
        raise _Fault(f"{where}.{key} is missing; {unit}, expected")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e18:
        raise _Fault(f"{where}.{key} = {shown(value)}; {unit}, expected")
    return float(value)


def _whole(options: Mapping[str, Any], key: str) -> int:
    text = str(options.get(key, "1"))
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 16:
        raise _Fault(
            f'["job options"].{key} = {shown(text)}; a whole number of 1 or more, below 65536, expected'
        )
    return int(text)


def _date(table: Mapping[str, Any]) -> dt.date | None:
    """Return the date of the run; None, for that of the profile, if the file has none."""
    stamp = table.get("timestamp")
    if isinstance(stamp, bool) or not isinstance(stamp, int) or not 0 < stamp < 1 << 40:
        return None
    try:
        return dt.datetime.fromtimestamp(stamp, tz=dt.timezone.utc).date()
    except (OverflowError, OSError, ValueError):
        return None
