# SPDX-License-Identifier: Apache-2.0
"""``foresee index``: list a data set once, so that no training run lists it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

from foresee.cli import _listing_options
from foresee.errors import ConfigError

HELP = "list a data set once, in parallel: sizes, tags, labels into a compact index file"
_SHOWN = 10


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "uri",
        metavar="URI",
        help="directory, s3://, gs://, az://, hf:// or http(s):// prefix, .npy file; with --dump an index",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="index file to write, by convention NAME.fidx")
    _listing_options.add_to(
        parser, layout="auto: npy by name, folder where there are class folders, else flat"
    )
    parser.add_argument(
        "--extensions", metavar="A,B", help="files that are samples; for layout folder (pictures)"
    )
    parser.add_argument(
        "--update",
        action="store_true",
        help="list again and report changes since FILE was written; give --extensions, --exclude and --allow-empty "
        "again",
    )
    parser.add_argument("--dump", action="store_true", help="show an index instead of writing one")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    return _dump(options) if options.dump else _build(options)


def _build(options: argparse.Namespace) -> int:
    from foresee import _native
    from foresee._loading import data_source

    if options.output is None:
        raise ConfigError("-o FILE is missing; name the index file to write")
    old = _native.Index.open(options.output) if options.update else None
    if old is not None and old.layout in {"table", "windows"}:
        raise ConfigError(
            f"{options.output} has layout {old.layout!r}, which no listing gives; make the FileDataset or TokenDataset "
            "anew and write it with dataset.index.save()"
        )
    layout = options.layout if old is None or options.layout != "auto" else old.layout
    began = time.monotonic()
    index = data_source.build(
        options.uri,
        layout=layout,
        extensions=None if options.extensions is None else _extensions(options.extensions),
        allow_empty=options.allow_empty,
        row_bytes=options.row_bytes,
        keys=_listing_options.read_keys(options.keys),
        exclude=options.exclude,
        options=_listing_options.parse_storage(options.option),
        note=lambda line: print(line, file=sys.stderr),
    )
    facts: dict[str, Any] = {
        "uri": index.uri,
        "layout": index.layout,
        "samples": len(index),
        "bytes": index.total_bytes,
        "largest": index.max_size,
        "classes": len(index.classes),
        "fingerprint": index.fingerprint,
        "file": os.path.abspath(options.output),
        "seconds": round(time.monotonic() - began, 3),
    }
    if old is not None:
        facts["changes"] = old.update(index)
    index.save(options.output)
    if options.json:
        print(json.dumps(facts))
        return 0
    print(
        f"{options.output}: {facts['samples']:,} samples, {facts['bytes']:,} bytes, {facts['classes']:,} classes"
    )
    if old is not None:
        print(", ".join(f"{count:,} {kind}" for kind, count in facts["changes"].items()))
    return 0


def _dump(options: argparse.Namespace) -> int:
    from foresee import _native

    index = _native.Index.open(options.uri)
    shown = index.describe(len(index) if options.json else _SHOWN)
    print(json.dumps(shown) if options.json else json.dumps(shown, indent=2, ensure_ascii=False))
    return 0


def _extensions(text: str) -> list[str]:
    return [part if part.startswith(".") else f".{part}" for part in text.replace(" ", "").split(",") if part]
