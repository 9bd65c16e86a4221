# SPDX-License-Identifier: Apache-2.0
"""``foresee cache ls``: the data sources in a cache directory, with bytes, last use and the processes that use them."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from foresee.cli.cache import directory
from foresee.cli.cache.directory import Partition

HELP = "list the data sources in a cache directory, with bytes, last use and the processes that use them"
EPILOG = (
    "A source is a folder for one location of data. Entries are counted in closed partitions; `verify` counts them "
    "after a crash. A directory does not record its budget (disk_size), only the capacity of each process in use: "
    "`declared_bytes` of --json."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    directory.add_directory(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from foresee import _native

    path = directory.choose(options.directory)
    partitions, faults = directory.read(_native.CacheDirectory(path))
    space = shutil.disk_usage(path)
    facts: dict[str, Any] = {
        "directory": path,
        "sources": [_source(name, each) for name, each in groupby(partitions, lambda each: each.source)],
        "disk_bytes": sum(each.disk_bytes for each in partitions),
        "file_system": {"total_bytes": space.total, "free_bytes": space.free},
        "is_on_nfs": _native.is_on_nfs(path),
        "faults": faults,
    }
    print(json.dumps(facts) if options.json else _report(facts))
    return 0


def _source(name: str, partitions: Iterable[Partition]) -> dict[str, Any]:
    """Return the facts of a source. Its entries are unknown if those of a partition are."""
    all_ = list(partitions)
    declared = [each.declared_bytes for each in all_ if each.in_use]
    return {
        "source": name,
        "version": all_[0].version,
        "partitions": len(all_),
        "entries": _sum(each.entries for each in all_),
        "entry_bytes": _sum(each.entry_bytes for each in all_),
        "disk_bytes": sum(each.disk_bytes for each in all_),
        "last_used": max(each.last_used for each in all_),
        "partitions_in_use": sum(each.in_use for each in all_),
        "processes": sorted({each.process for each in all_ if each.process is not None}),
        "declared_bytes": sum(each or 0 for each in declared) if declared else None,
    }


def _sum(values: Iterable[int | None]) -> int | None:
    all_ = list(values)
    known = [value for value in all_ if value is not None]
    return sum(known) if len(known) == len(all_) else None


def _report(facts: dict[str, Any]) -> str:
    from foresee._loading.summary import shown_bytes

    def shown(count: int | None) -> str:
        return "-" if count is None else shown_bytes(count)

    width = max([len(one["source"]) for one in facts["sources"]] + [len("source")])
    lines = [
        f"{'source':<{width}}{'partitions':>12}{'entries':>12}{'bytes':>10}{'on disk':>10}  {'last use':<18}in use by"
    ]
    for one in facts["sources"]:
        entries = "-" if one["entries"] is None else format(one["entries"], ",d")
        lines.append(
            f"{one['source']:<{width}}{one['partitions']:>12,}{entries:>12}{shown(one['entry_bytes']):>10}"
            f"{shown(one['disk_bytes']):>10}  {_date(one['last_used']):<18}{_users(one)}"
        )
    if not facts["sources"]:
        lines = [f"{facts['directory']}: no cached data"]
    if any(one["version"] == 1 for one in facts["sources"]):
        lines.append(
            "Sources of 32 digits have format version 1, which is not read; loaders delete them first."
        )
    space = facts["file_system"]
    free, total = shown(space["free_bytes"]), shown(space["total_bytes"])
    used = shown(facts["disk_bytes"])
    lines += ["", f"{used} in {facts['directory']}; its file system has {free} free of {total}"]
    if facts["is_on_nfs"]:
        lines.append("The directory is on NFS; a directory on a local disk is faster.")
    lines += [f"left out: {fault}" for fault in facts["faults"]]
    return "\n".join(lines)


def _date(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else "-"


def _users(source: dict[str, Any]) -> str:
    if not source["partitions_in_use"]:
        return "-"
    known = ", ".join(map(str, source["processes"]))
    return f"{source['partitions_in_use']} partitions: {known or 'unknown processes'}"
