# SPDX-License-Identifier: Apache-2.0
"""Options that the actions of ``foresee stagger`` share, their checks, and the catalog that they name."""

from __future__ import annotations

import argparse
import contextlib
import platform
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from foresee.cli.stagger import catalog_path

if TYPE_CHECKING:
    from foresee.stagger import Catalog

#: ``foresee.stagger.timing.SLACK``, which help may not import.
SLACK = 0.005
SLACK_HELP = (
    "share of the makespan within which starts count as equal: the latest of them is the best, with the fewest "
    "GPU-seconds (0.005)"
)


def add_jobs(parser: argparse.ArgumentParser, *, machine: str) -> None:
    """Add the jobs, ``--catalog`` and ``--machine``, the latter with this help."""
    parser.add_argument(
        "jobs", nargs="+", metavar="JOB.toml", help="two or more job files that share their data"
    )
    parser.add_argument(
        "--catalog",
        metavar="FILE",
        help=f"the catalog of measured figures (${catalog_path.VARIABLE}, else foresee/catalog.db in $XDG_DATA_HOME, "
        "that is in ~/.local/share)",
    )
    parser.add_argument("--machine", metavar="NAME", help=machine)


def add_model(parser: argparse.ArgumentParser, *, running: str = "") -> None:
    """Add the jobs, and options of the storage, the cache and the starts; ``running`` extends a help text."""
    add_jobs(parser, machine="machine whose values of the catalog are used (this machine's name)")
    parser.add_argument(
        "--read", metavar="TIME", help="time in which the origin delivers the data set once: 750s, 12.5min"
    )
    parser.add_argument(
        "--coalesces",
        action="store_true",
        help="the cache coalesces reads, so that jobs at one place share a transfer; needs --read",
    )
    parser.add_argument(
        "--cache", type=float, default=1.0, metavar="SHARE", help="share of the data that the cache holds (1)"
    )
    parser.add_argument("--slack", type=float, default=SLACK, metavar="SHARE", help=SLACK_HELP)
    parser.add_argument(
        "--running",
        type=float,
        metavar="X",
        help=f"the first job runs already, at X %% of its run alone{running}",
    )


def model_faults(options: argparse.Namespace) -> list[str]:
    """Return the faults of the options of :func:`add_model`, and replace ``--read`` by seconds."""
    from foresee._schema.values import Refused, Time

    faults = []
    if options.read is not None:
        value: float | str = options.read
        with contextlib.suppress(ValueError):
            value = float(value)
        try:
            options.read = Time(zero=False).read(value)
        except Refused:
            faults.append(f"--read {options.read!r}: {Time(zero=False).expected}")
    elif options.coalesces:
        faults.append(
            "--coalesces without --read: the time in which the origin delivers the data set once is needed"
        )
    if not 0 < options.cache <= 1:
        faults.append(f"--cache {options.cache}: a share above 0 and at most 1 expected")
    if not 0 <= options.slack < 1:
        faults.append(f"--slack {options.slack}: a share of 0 or more and below 1 expected")
    if options.running is not None and not 0 <= options.running <= 100:
        expected = "percent of the first job's run expected, 0 to 100; leave out a job that has ended"
        faults.append(f"--running {options.running}: {expected}")
    return faults


def machine_name(options: argparse.Namespace) -> str:
    """Return the name that ``--machine`` gives, or this machine's."""
    return platform.node() if options.machine is None else str(options.machine)


@contextlib.contextmanager
def open_catalog(options: argparse.Namespace) -> Iterator[tuple[Catalog | None, str | None]]:
    """Open the catalog to read and name the machine; None for both without a catalog.

    Raises:
        ConfigError: ``--machine`` without a catalog.
        CatalogInvalid: the file is no catalog.
    """
    from foresee.stagger import Catalog

    options.catalog = catalog_path.resolve(options.catalog, options.machine)
    if options.catalog is None:
        yield None, None
        return
    with Catalog.open(options.catalog) as catalog:
        yield catalog, machine_name(options)


def notify(line: str) -> None:
    """Print a message on stderr, over a line of progress."""
    end = "\x1b[K\n" if sys.stderr.isatty() else "\n"
    print(f"foresee: {line}", end=end, file=sys.stderr, flush=True)
