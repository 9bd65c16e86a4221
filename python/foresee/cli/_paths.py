# SPDX-License-Identifier: Apache-2.0
"""Paths on the command line: ``~`` expanded in every argument, and hints for missing files.

A shell expands ``~`` only at the beginning of a word, so that ``--plot=~/a.svg`` and ``lfs=~/local`` reach the command
as they are.
"""

from __future__ import annotations

import argparse
import os
import re
from difflib import get_close_matches

#: NAME= or RATE= before a path.
_NAMED = re.compile(r"([\w.-]+=)(~.*)", flags=re.DOTALL)
_REMEDIES = {
    "profile.toml": "`foresee calibrate` measures a machine profile",
    ".fidx": "`foresee index` makes one",
    ".db": "`foresee stagger calibrate` measures jobs into a catalog",
}
"""Commands that write a file, by its name or suffix."""
_SHOWN = 5


def expand(options: argparse.Namespace) -> None:
    """Expand ``~`` in all values of a command line."""
    for name, value in vars(options).items():
        if isinstance(value, str):
            setattr(options, name, _expand(value))
        elif isinstance(value, list):
            setattr(options, name, [_expand(each) if isinstance(each, str) else each for each in value])


def _expand(word: str) -> str:
    match = _NAMED.fullmatch(word)
    return match[1] + os.path.expanduser(match[2]) if match else os.path.expanduser(word)


def describe_missing(error: FileNotFoundError) -> str:
    """Return the hint for a missing file: similar files of its folder, or the command that writes it."""
    path = error.filename
    if not isinstance(path, str) or error.filename2 is not None:
        return str(error)
    folder, name = os.path.split(path)
    if not os.path.isdir(folder or "."):
        return f"{path}: no such file, nor a folder {folder}"
    suffix = os.path.splitext(name)[1]
    candidates = sorted(each for each in os.listdir(folder or ".") if suffix and each.endswith(suffix))
    near = get_close_matches(name, candidates, _SHOWN, 0.0)
    parts = [f"{path}: no such file"]
    if near:
        parts.append(f"{folder or 'this folder'} has {', '.join(near)}")
    if remedy := _REMEDIES.get(name, _REMEDIES.get(suffix)):
        parts.append(remedy)
    return "; ".join(parts)
