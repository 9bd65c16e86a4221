# SPDX-License-Identifier: Apache-2.0
"""``foresee cache rm``: delete data sources of a cache directory that no process uses."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from foresee.cli._durations import read_seconds
from foresee.cli.cache import directory
from foresee.cli.cache.directory import Partition
from foresee.errors import CacheError, ConfigError

if TYPE_CHECKING:
    from foresee import _native

HELP = "delete data sources of a cache directory that no process uses; exit code 1 if one is in use"
EPILOG = (
    "Deleted samples are fetched again when they are needed. Nothing is asked. Links are not followed, and files that "
    "the format does not know stay. A first word in the form of a source is one, in the directory FORESEE_CACHE_DIR."
)
_SOURCE = re.compile(r"(?:[A-Za-z0-9-]*-)?[0-9a-f]{16}|[0-9a-f]{32}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="DIR SOURCE",
        help="the disk= of a Cache, by default that of the environment, FORESEE_CACHE_DIR; then sources of it, as "
        "`foresee cache ls` lists them",
    )
    parser.add_argument("--all", action="store_true", help="every source")
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        help="only partitions that no process uses or opened within AGE, such as 7d; without SOURCE of every source",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what would be deleted")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from foresee import _native

    words = list(options.words)
    is_directory = bool(words) and _SOURCE.fullmatch(words[0]) is None
    path = directory.choose(words.pop(0) if is_directory else None)
    age_s = (
        None if options.older_than is None else read_seconds("--older-than", options.older_than, zero=True)
    )
    if not words and not options.all and age_s is None:
        raise ConfigError("nothing is chosen; name each SOURCE, or give --all or --older-than AGE")
    if words and options.all:
        raise ConfigError("--all and a SOURCE; give one of them")
    cache = _native.CacheDirectory(path)
    partitions, faults = directory.read(cache)
    present = sorted({each.source for each in partitions})
    unknown = [word for word in words if word not in present]
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)}: no source in {path}; it has {', '.join(present) or 'none'}, see `foresee cache ls`"
        )
    chosen = [each for each in partitions if not words or each.source in words]
    if age_s is not None:
        oldest = time.time() - age_s
        chosen = [each for each in chosen if not each.in_use and each.last_used < oldest]
    deleted = [_delete(cache, each, is_trial=options.dry_run) for each in chosen]
    facts: dict[str, Any] = {
        "directory": path,
        "dry_run": options.dry_run,
        "partitions": deleted,
        "freed_bytes": sum(each["freed_bytes"] for each in deleted),
        "left": sum(each["in_use"] or each["error"] is not None for each in deleted),
        "faults": faults,
    }
    for each in deleted:
        if each["in_use"]:
            print(
                f"{each['source']}/{each['partition']}: in use by {directory.user(each['process'])}; end it first",
                file=sys.stderr,
            )
        elif each["error"] is not None:
            print(each["error"], file=sys.stderr)
    print(json.dumps(facts) if options.json else _report(facts))
    return 1 if facts["left"] else 0


def _delete(cache: _native.CacheDirectory, partition: Partition, *, is_trial: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"source": partition.source, "partition": partition.partition, "error": None}
    if is_trial:
        freed = 0 if partition.in_use else partition.disk_bytes
        return facts | {"freed_bytes": freed, "in_use": partition.in_use, "process": partition.process}
    try:
        facts |= cache.remove(partition.source, partition.partition)
    except CacheError as error:
        facts |= {"freed_bytes": 0, "in_use": False, "process": None, "error": str(error)}
    return facts


def _report(facts: dict[str, Any]) -> str:
    from foresee._loading.summary import shown_bytes

    verb = "would free" if facts["dry_run"] else "freed"
    lines = [
        f"{each['source']}/{each['partition']}: {verb} {shown_bytes(each['freed_bytes'])}"
        for each in facts["partitions"]
        if each["freed_bytes"]
    ]
    lines += [f"left out: {fault}" for fault in facts["faults"]]
    lines.append(f"{verb} {shown_bytes(facts['freed_bytes'])} in {facts['directory']}")
    return "\n".join(lines)
