# SPDX-License-Identifier: Apache-2.0
"""Options that ``foresee stagger predict`` and ``foresee stagger run`` share, and their checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

#: ``foresee.stagger.timing.SLACK``, which help may not import.
SLACK = 0.005
SLACK_HELP = (
    "share of the makespan within which starts count as equal: the latest of them is the best, with the fewest "
    "GPU-seconds (0.005)"
)


def add_read(parser: argparse.ArgumentParser) -> None:
    """Add the options of the storage and of the cache in front of it."""
    parser.add_argument(
        "--read", metavar="TIME", help="time in which the origin delivers the data set once: 750s, 12.5min"
    )
    parser.add_argument(
        "--coalesces",
        action="store_true",
        help="the cache coalesces reads, so that jobs at one place share a transfer; needs --read",
    )


def read_faults(options: argparse.Namespace) -> list[str]:
    """Return the faults of the options of :func:`add_read`, and replace its time by seconds."""
    from foresee._schema.values import Refused, Time

    if options.read is None:
        if not options.coalesces:
            return []
        return [
            "--coalesces without --read: the time in which the origin delivers the data set once is needed"
        ]
    try:
        plain = float(options.read) if _is_number(options.read) else options.read
        options.read = Time(zero=False).read(plain)
    except Refused:
        return [f"--read {options.read!r}: {Time(zero=False).expected}"]
    return []


def running_faults(options: argparse.Namespace) -> list[str]:
    """Return the faults of ``--running``: the first job is somewhere in its run."""
    if options.running is None or 0 <= options.running <= 100:
        return []
    expected = "percent of the first job's run expected, 0 to 100; leave out a job that has ended"
    return [f"--running {options.running}: {expected}"]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
