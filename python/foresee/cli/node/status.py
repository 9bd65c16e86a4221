# SPDX-License-Identifier: Apache-2.0
"""``foresee node status``: the consumers of a node's cache, its space and its reads of the origin."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from foresee.errors import ConfigError

HELP = "print the consumers of this node's cache, its space and its reads of the origin"
EPILOG = (
    "Samples are those that the host has answered, hits those that it did not read from the origin for this "
    "consumer, and saved their bytes. Waiting samples are requested and not answered. Without a host the "
    "exit code is 3."
)
_WATCH_S = 2.0
_CLEAR = "\x1b[H\x1b[J"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--socket",
        metavar="PATH",
        # The command above has the same option, and its value stays.
        default=argparse.SUPPRESS,
        help="socket of the host (FORESEE_NODE, else that of this user's service)",
    )
    parser.add_argument(
        "--watch", action="store_true", help=f"print it again every {_WATCH_S:g} s until Ctrl-C"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    if not options.watch:
        found = _query(options.socket)
        print(json.dumps(found) if options.json else report(found))
        return 0
    if options.json:
        raise ConfigError("--json with --watch: --json prints one object; leave one of them out")
    try:
        while True:
            text = report(_query(options.socket))
            print(f"{_CLEAR}{text}" if sys.stdout.isatty() else f"{text}\n", flush=True)
            time.sleep(_WATCH_S)
    except KeyboardInterrupt:
        return 0


def _query(socket: str | None) -> dict[str, Any]:
    """Return the status of the host, with samples, hit rate and saved bytes of each consumer."""
    from foresee import _native

    try:
        status = _native.node_status(socket)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return {**status, "consumers": [_with_savings(each) for each in status["consumers"]]}


def _with_savings(consumer: dict[str, Any]) -> dict[str, Any]:
    saved = [consumer[source] for source in ("memory", "disk", "peers")]
    hits = sum(source["samples"] for source in saved)
    samples = hits + consumer["origin"]["samples"]
    return {
        **consumer,
        "samples": samples,
        "hit_rate": hits / samples if samples else None,
        "saved_bytes": sum(source["bytes"] for source in saved),
    }


def report(facts: dict[str, Any]) -> str:
    """Return the text of a status."""
    from foresee._loading.summary import repeated_reads, shown_bytes

    def space(tier: dict[str, int]) -> str:
        return f"{shown_bytes(tier['used_bytes'])} of {shown_bytes(tier['capacity_bytes'])}"

    consumers = facts["consumers"]
    width = max([len(_printable(one["job"])) for one in consumers] + [len("job")])
    lines = [
        f"{'job':<{width}}{'rank':>6}{'samples':>14}{'hits':>6}{'saved':>10}{'waiting':>9}{'idle':>9}  data set"
    ]
    for one in consumers:
        hits = "-" if one["hit_rate"] is None else f"{one['hit_rate']:.0%}"
        lines.append(
            f"{_printable(one['job']):<{width}}{one['rank']:>6}{one['samples']:>14,}{hits:>6}"
            f"{shown_bytes(one['saved_bytes']):>10}{one['waiting']:>9,}{one['idle_ns'] / 1e9:>7.1f} s"
            f"  {_printable(one['data_set'] or '-')}"
        )
    if not consumers:
        lines = ["no consumers"]
    if facts["omitted_consumers"]:
        lines.append(f"and {facts['omitted_consumers']:,} more")
    disk = space(facts["disk"]) if facts["disk"]["capacity_bytes"] else "none"
    origin = facts["origin"]
    repeated = f" ({events})" if (events := repeated_reads(origin)) else ""
    return "\n".join(
        [
            *lines,
            "",
            f"memory    {space(facts['memory'])}",
            f"disk      {disk}",
            f"origin    {shown_bytes(origin['bytes'])} in {origin['requests']:,} reads{repeated}",
            *_exchanged(facts["peers"]),
            f"host      process {facts['pid']}, Foresee {facts['foresee']}, up {facts['uptime_seconds']:,} s",
        ]
    )


def _exchanged(peers: dict[str, Any] | None) -> list[str]:
    """Return the line about other nodes, if samples are exchanged with any."""
    from foresee._loading.summary import shown_bytes

    if peers is None:
        return []
    moved = (
        f"{shown_bytes(peers[name]['bytes'])} in {peers[name]['samples']:,} samples {name}"
        for name in ("received", "sent")
    )
    names = ("missing", "late", "silent")
    failed = ", ".join(f"{peers[name]:,} {name}" for name in names if peers[name])
    return [f"peers     {', '.join(moved)}{f' ({failed})' if failed else ''}"]


def _printable(text: str) -> str:
    """Return ``text`` without control characters, which another process could send to the terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)
