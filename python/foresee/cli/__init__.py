# SPDX-License-Identifier: Apache-2.0
"""The command line: one file per command, imported only when it runs. Needs no torch.

Exit codes: 0 done; 1 the requested condition does not hold; 2 bad input; 3 the environment lacks something,
which is named; 130 interrupted; 141 the reader of the output has ended. With ``--json`` stdout has one object and
nothing else; all else goes to stderr.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import sys
from collections.abc import Sequence

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

__all__ = ["main"]

DONE, BAD_INPUT, ENVIRONMENT, INTERRUPTED, UNREAD = 0, 2, 3, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
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
        code: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # `head` closes its end after its lines. Python flushes stdout again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except OriginMissing as error:
        return _fail(error, BAD_INPUT)
    except FileNotFoundError as error:
        return _fail(_paths.describe_missing(error), BAD_INPUT)
    except (
        CatalogInvalid,
        ConfigError,
        IndexInvalid,
        JobFailed,
        NotMeasured,
        StateMismatch,
        IsADirectoryError,
    ) as error:
        return _fail(error, BAD_INPUT)
    except (ForeseeError, OSError) as error:
        return _fail(error, ENVIRONMENT)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return code


def _parser() -> argparse.ArgumentParser:
    from foresee.cli._commands import add_commands

    parser = argparse.ArgumentParser(prog="foresee", description="Training that never waits for data.")
    parser.add_argument("--version", action="store_true", help="print the version")
    modules = [module.name for module in pkgutil.iter_modules(__path__)]
    commands = [name for name in modules if not name.startswith("_")]
    add_commands(parser, "command", __name__, commands, required=False)
    return parser


def _fail(error: BaseException | str, code: int) -> int:
    print(f"foresee: {error}", file=sys.stderr)
    return code
