# SPDX-License-Identifier: Apache-2.0
"""The command line: one file per command, imported only when it runs. Needs no torch.

Exit codes: 0 done; 1 the requested condition does not hold; 2 bad input; 3 the environment lacks something,
which is named; 130 interrupted; 141 the reader of the output has ended. With ``--json`` stdout has one object and
nothing else; all else goes to stderr.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from foresee.errors import (
    CatalogInvalid,
    ConfigError,
    ForeseeError,
    IndexInvalid,
    JobFailed,
    NotMeasured,
    OriginMissing,
    StateMismatch,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

DONE, BAD_INPUT, ENVIRONMENT, INTERRUPTED, UNREAD = 0, 2, 3, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.version:
        from foresee._native import __version__

        print(f"foresee {__version__}")
        return DONE
    if options.command is None:
        parser.print_help(sys.stderr)
        return BAD_INPUT
    from foresee.cli import _paths

    _paths.expand(options)
    try:
        code = _run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # As `head` does after its lines. What is still to be flushed at the end has to go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except OriginMissing as error:
        return _failed(error, BAD_INPUT)
    except FileNotFoundError as error:
        return _failed(_paths.missing(error), BAD_INPUT)
    except (
        CatalogInvalid,
        ConfigError,
        IndexInvalid,
        JobFailed,
        NotMeasured,
        StateMismatch,
        IsADirectoryError,
    ) as error:
        return _failed(error, BAD_INPUT)
    except (ForeseeError, OSError) as error:
        return _failed(error, ENVIRONMENT)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return code


def _parser() -> argparse.ArgumentParser:
    from foresee.cli import (
        analyze,
        bench,
        calibrate,
        cost,
        index,
        network,
        predict,
        reuse,
        serve,
        simulate,
        size,
        stagger,
        which,
    )

    parser = argparse.ArgumentParser(prog="foresee", description="Training that never waits for data.")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    analyze.add_to(commands)
    bench.add_to(commands)
    calibrate.add_to(commands)
    cost.add_to(commands)
    reuse.add_to(commands)
    index.add_to(commands)
    network.add_to(commands)
    predict.add_to(commands)
    size.add_to(commands)
    serve.add_to(commands)
    simulate.add_to(commands)
    stagger.add_to(commands)
    which.add_to(commands)
    return parser


def _run(options: argparse.Namespace) -> int:
    code: int = options.run(options)
    return code


def _failed(error: BaseException | str, code: int) -> int:
    print(f"foresee: {error}", file=sys.stderr)
    return code
