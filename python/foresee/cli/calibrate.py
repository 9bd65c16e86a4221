# SPDX-License-Identifier: Apache-2.0
"""``foresee calibrate``: measure this machine, and write its profile."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from foresee.cli import _origin
from foresee.cli._status import Status
from foresee.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from foresee import calibrate
    from foresee._loading.data_source import Source
    from foresee.jobspec import Profile

_HELP = "measure this machine's memory, disks, origin and network, and write profile.toml"
_EPILOG = (
    "Root is not needed. A disk is measured with an unnamed file of at most a quarter of the free space and 1 GiB; an "
    "origin is only read. Under a launcher, run it on every rank: links are measured, and rank 0 measures the rest and "
    "writes the file."
)


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("calibrate", help=_HELP, description=_HELP, epilog=_EPILOG)
    parser.add_argument(
        "-o", "--output", default="profile.toml", metavar="FILE", help="the profile to write (%(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument(
        "--disk",
        action="append",
        default=[],
        metavar="[NAME=]FOLDER",
        help="a folder on a disk to measure, and the name of its tier (disk)",
    )
    parser.add_argument(
        "--origin", metavar="URI", help="directory, s3:// or http(s):// prefix, .npy file, or an index of one"
    )
    parser.add_argument("--index", metavar="FILE", help="index of the origin, which is then not listed")
    _origin.add_to(parser, layout="of the origin, where it is listed")
    parser.add_argument(
        "--fio",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="random reads of the tier NAME (disk), or of NAME origin, as fio --output-format=json has measured them",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="A,B",
        help="memcpy, checksum, ram, origin, decode, network, or the names of disks",
    )
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="total time, without listing the origin (45)"
    )
    parser.add_argument("--port", type=int, metavar="N", help="port at which ranks meet (MASTER_PORT + 1)")
    parser.add_argument("--machine", metavar="TEXT", help="name of this machine in the profile")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    from foresee import calibrate
    from foresee.jobspec import profile

    seconds = calibrate.SECONDS if options.seconds is None else options.seconds
    only = [part for word in options.only for part in word.split(",") if part]
    wanted = calibrate.check(
        seconds=seconds, disks=options.disk, results=options.fio, only=only, port=options.port
    )
    machine = calibrate.machine_name() if options.machine is None else options.machine
    if wanted.world.rank == 0:
        _check(options, machine)
        wanted = replace(wanted, origin=_source_of(options))
    status, began = Status(), time.monotonic()

    def progress(what: str) -> None:
        status.show(f"{time.monotonic() - began:.0f} of {seconds:g} s: {what}")

    try:
        measured = calibrate.measure(wanted, progress)
    finally:
        status.end()
    if measured is None:
        print(f"rank {wanted.world.rank}: rank 0 writes the profile", file=sys.stderr)
        return 0
    if not measured.figures:
        raise ConfigError("nothing was measured: " + "; ".join(measured.left_out))
    made = calibrate.profile(measured, machine)
    _check_file(options)
    profile.write(made, options.output)
    for line in measured.left_out:
        print(f"foresee: left out: {line}", file=sys.stderr)
    print(
        json.dumps(_facts(made, measured, options.output)) if options.json else _report(made, options.output)
    )
    return 0


def _check(options: argparse.Namespace, machine: str) -> None:
    """Check the options and the file before a minute is spent."""
    from foresee._schema.values import Refused, Text

    try:
        Text().read(machine)
    except Refused:
        raise ConfigError(f"--machine {machine!r}: {Text().expected}") from None
    if options.origin is None:
        given = [
            name
            for name, value in (
                ("--index", options.index),
                ("--keys", options.keys),
                ("--row-bytes", options.row_bytes),
                ("--exclude", options.exclude),
                ("--allow-empty", options.allow_empty),
                ("--option", options.option),
            )
            if value
        ]
        if given:
            raise ConfigError(f"{', '.join(given)}: of which origin? Add --origin URI")
    _check_file(options)


def _check_file(options: argparse.Namespace) -> None:
    if os.path.isdir(options.output):
        raise ConfigError(f"-o {options.output}: it is a folder; name a file")
    if os.path.lexists(options.output) and not options.force:
        raise ConfigError(f"-o {options.output}: it is there already; --force writes over it")
    folder = os.path.dirname(os.path.abspath(options.output))
    try:
        # It has no name, or none for longer than this line.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(
            f"-o {options.output}: {folder} cannot be written to ({why}); name a file elsewhere"
        ) from None


def _source_of(options: argparse.Namespace) -> Source | None:
    from foresee._loading import data_source

    if options.origin is None:
        return None
    both = options.keys is not None and options.index is not None
    storage = _origin.storage(
        options.option, ["--keys and --index: an index has the keys; give one of them"] if both else []
    )
    keys = _origin.keys(options.keys)
    if keys is not None:
        listed = data_source.build(
            options.origin,
            layout=options.layout,
            allow_empty=options.allow_empty,
            row_bytes=options.row_bytes,
            keys=keys,
            exclude=options.exclude,
            options=storage,
        )
        return data_source.Source(
            listed, data_source.split(options.origin, options.layout)[0], storage, listed=True
        )
    return data_source.resolve(
        options.origin,
        index=options.index,
        layout=options.layout,
        allow_empty=options.allow_empty,
        row_bytes=options.row_bytes,
        exclude=options.exclude,
        options=storage,
    )


def _facts(made: Profile, measured: calibrate.CalibrationResult, path: str) -> dict[str, Any]:
    """The profile in plain values."""
    keys = ("name", "at", "value", "unit", "spread", "conditions", "date")
    return {
        "version": made.version,
        "machine": made.machine,
        "date": made.date.isoformat(),
        "figure": [
            {
                key: value.isoformat() if key == "date" else value
                for key in keys
                if (value := getattr(figure, key)) is not None
            }
            for figure in made.figure
        ],
        "left_out": list(measured.left_out),
        "file": os.path.abspath(path),
    }


def _report(made: Profile, path: str) -> str:
    """A line per figure."""
    lines = [f"{path}: {len(made.figure)} figures of {made.machine}"]
    for figure in made.figure:
        at = "" if figure.at is None else f"{figure.at}"
        spread = "" if figure.spread is None else f"± {figure.spread:g}"
        lines.append(f"  {figure.name:<24}{at:>4}  {figure.value:>14,g} {figure.unit:<5} {spread}".rstrip())
    return "\n".join(lines)
