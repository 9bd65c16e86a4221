# SPDX-License-Identifier: Apache-2.0
"""``foresee cache verify``: read every entry of a cache directory and check its checksums."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from foresee.cli._status import Status
from foresee.cli.cache import directory
from foresee.cli.cache.directory import Partition

if TYPE_CHECKING:
    from foresee import _native

HELP = "read every entry of the partitions that no process uses, and check its checksums; exit code 1 if one is corrupt"
EPILOG = (
    "Nothing is changed: a loader checks each entry that it reads itself, removes a corrupt one and fetches its sample "
    "again. `foresee cache rm` deletes all of a source. A loader that starts during the verification uses another "
    "partition. After Ctrl-C the exit code is 130."
)
_SHOWN = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    directory.add_directory(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from foresee import _native

    path = directory.choose(options.directory)
    cache = _native.CacheDirectory(path)
    partitions, faults = directory.read(cache)
    found = [each for each in partitions if each.version > 1]
    verified: list[dict[str, Any]] = []
    done, total = 0, max(1, sum(each.disk_bytes for each in found if not each.in_use))
    status = Status()
    try:
        for partition in found:

            def show(entries: int, bytes_: int, before: int = done, name: str = partition.name) -> None:
                status.bar(min(1.0, (before + bytes_) / total), f"{name}: {entries:,} entries")

            verified.append(_verify(cache, partition, show))
            done += 0 if partition.in_use else partition.disk_bytes
    finally:
        status.end()
    corrupt = [each for one in verified for each in one["corrupt"]]
    facts: dict[str, Any] = {
        "directory": path,
        "partitions": verified,
        "entries": sum(each["entries"] for each in verified),
        "entry_bytes": sum(each["entry_bytes"] for each in verified),
        "corrupt_entries": len(corrupt),
        "corrupt_bytes": sum(each["bytes"] for each in corrupt),
        "not_verified": sum(each["in_use"] for each in verified),
        "faults": faults + [one["error"] for one in verified if one["error"] is not None],
    }
    print(json.dumps(facts) if options.json else _report(facts))
    return 1 if corrupt or facts["faults"] else 0


def _verify(
    cache: _native.CacheDirectory, partition: Partition, show: Callable[[int, int], None]
) -> dict[str, Any]:
    from foresee.errors import CacheError

    facts: dict[str, Any] = {"source": partition.source, "partition": partition.partition, "error": None}
    try:
        facts |= cache.verify(partition.source, partition.partition, progress=show)
    except CacheError as error:
        nothing = {"entries": 0, "entry_bytes": 0, "in_use": False, "process": None}
        return facts | nothing | {"corrupt": [], "error": str(error)}
    names = ("segment", "offset", "bytes", "fault")
    facts["corrupt"] = [dict(zip(names, each, strict=True)) for each in facts["corrupt"]]
    return facts


def _report(facts: dict[str, Any]) -> str:
    from foresee._loading.summary import shown_bytes

    lines = []
    for one in facts["partitions"]:
        name = f"{one['source']}/{one['partition']}"
        if one["in_use"]:
            lines.append(f"{name}: not verified, in use by {directory.user(one['process'])}")
        lines += [
            f"{name}/{each['segment']:08}.seg, offset {each['offset']:,}: {each['bytes']:,} bytes, "
            + _FAULTS.get(each["fault"], each["fault"])
            for each in one["corrupt"][:_SHOWN]
        ]
        if len(one["corrupt"]) > _SHOWN:
            lines.append(f"{name}: {len(one['corrupt']) - _SHOWN:,} more, which --json lists")
    lines += facts["faults"]
    lines.append(
        f"{facts['entries']:,} entries of {shown_bytes(facts['entry_bytes'])} verified, "
        f"{facts['corrupt_entries']:,} corrupt ({shown_bytes(facts['corrupt_bytes'])})"
    )
    if facts["corrupt_entries"]:
        lines.append("A loader removes a corrupt entry when it reads it, and fetches the sample again.")
    return "\n".join(lines)


_FAULTS = {"header": "damaged header", "payload": "wrong checksum"}
