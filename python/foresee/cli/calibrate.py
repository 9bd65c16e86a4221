# SPDX-License-Identifier: Apache-2.0
"""``foresee calibrate``: measure this machine and write its profile."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from foresee.cli import _listing_options
from foresee.cli._status import Status
from foresee.errors import ConfigError

if TYPE_CHECKING:
    from foresee import calibrate
    from foresee._loading.data_source import Source
    from foresee.jobspec import Profile

HELP = "measure this machine's memory, disks, origin and network, and write profile.toml"
EPILOG = (
    "Root is not needed. A disk is measured with an unnamed file of at most a quarter of the free space and 1 GiB; an "
    "origin is only read. Under a launcher, run it on every rank: links are measured, and rank 0 measures the rest and "
    "writes the file."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
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
        "--origin",
        metavar="URI",
        help="directory, s3://, gs://, az://, hf:// or http(s):// prefix, .npy file, or an index of one",
    )
    parser.add_argument("--index", metavar="FILE", help="index of the origin, which is then not listed")
    _listing_options.add_to(parser, layout="of the origin, where it is listed")
    parser.add_argument(
        "--fio",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="results of random reads by fio --output-format=json, for the tier NAME (disk) or the NAME origin",
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


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from foresee import calibrate
    from foresee.jobspec import profile

    seconds = calibrate.SECONDS if options.seconds is None else options.seconds
    only = [part for word in options.only for part in word.split(",") if part]
    request = calibrate.check(
        seconds=seconds, disks=options.disk, results=options.fio, only=only, port=options.port
    )
    machine = calibrate.machine_name() if options.machine is None else options.machine
    if request.world.rank == 0:
        _check(options, machine)
        request = replace(request, origin=_resolve_origin(options))
    status, began = Status(), time.monotonic()

    def progress(what: str) -> None:
        status.show(f"{time.monotonic() - began:.0f} of {seconds:g} s: {what}")

    try:
        measured = calibrate.measure(request, progress)
    finally:
        status.end()
    if measured is None:
        print(f"rank {request.world.rank}: rank 0 writes the profile", file=sys.stderr)
        return 0
    if not measured.figures:
        raise ConfigError("nothing was measured: " + "; ".join(measured.left_out))
    result = calibrate.profile(measured, machine)
    _check_output(options)
    profile.write(result, options.output)
    for line in measured.left_out:
        print(f"foresee: left out: {line}", file=sys.stderr)
    facts = _facts(result, measured, options.output)
    print(json.dumps(facts) if options.json else _report(result, options.output))
    return 0


def _check(options: argparse.Namespace, machine: str) -> None:
    """Check the options and the file before the measurement."""
    from foresee._schema.values import Refused, Text

    try:
        Text().read(machine)
    except Refused:
        raise ConfigError(f"--machine {machine!r}: {Text().expected}") from None
    if options.origin is None:
        names = ("index", "keys", "row_bytes", "exclude", "allow_empty", "option")
        used = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
        if used:
            raise ConfigError(f"{', '.join(used)}: of which origin? Add --origin URI")
    _check_output(options)


def _check_output(options: argparse.Namespace) -> None:
    if os.path.isdir(options.output):
        raise ConfigError(f"-o {options.output}: it is a folder; name a file")
    if os.path.lexists(options.output) and not options.force:
        raise ConfigError(f"-o {options.output}: it exists; --force overwrites it")
    folder = os.path.dirname(os.path.abspath(options.output))
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(
            f"-o {options.output}: {folder} cannot be written to ({why}); name a file in another folder"
        ) from None


def _resolve_origin(options: argparse.Namespace) -> Source | None:
    from foresee._loading import data_source

    if options.origin is None:
        return None
    both = options.keys is not None and options.index is not None
    storage = _listing_options.parse_storage(
        options.option, ["--keys and --index: an index has the keys; give one of them"] if both else []
    )
    keys = _listing_options.read_keys(options.keys)
    listing: dict[str, Any] = {
        "layout": options.layout,
        "allow_empty": options.allow_empty,
        "row_bytes": options.row_bytes,
        "exclude": options.exclude,
        "options": storage,
    }
    if keys is None:
        return data_source.resolve(options.origin, index=options.index, **listing)
    index = data_source.build(options.origin, keys=keys, **listing)
    return data_source.Source(
        index, data_source.split(options.origin, options.layout)[0], storage, listed=True
    )


def _facts(result: Profile, measured: calibrate.CalibrationResult, path: str) -> dict[str, Any]:
    keys = ("name", "at", "value", "unit", "spread", "conditions", "date")
    return {
        "version": result.version,
        "machine": result.machine,
        "date": result.date.isoformat(),
        "figure": [
            {
                key: value.isoformat() if key == "date" else value
                for key in keys
                if (value := getattr(figure, key)) is not None
            }
            for figure in result.figure
        ],
        "left_out": list(measured.left_out),
        "file": os.path.abspath(path),
    }


def _report(result: Profile, path: str) -> str:
    lines = [f"{path}: {len(result.figure)} figures of {result.machine}"]
    for figure in result.figure:
        at = "" if figure.at is None else str(figure.at)
        spread = "" if figure.spread is None else f"± {figure.spread:g}"
        lines.append(f"  {figure.name:<24}{at:>4}  {figure.value:>14,g} {figure.unit:<5} {spread}".rstrip())
    return "\n".join(lines)
