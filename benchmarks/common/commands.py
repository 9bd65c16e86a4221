# SPDX-License-Identifier: Apache-2.0
"""A process that a benchmark controls by lines of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def answer_commands(act: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer each line of standard input with a line, until it ends; an exception is an answer with ``error``."""
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = act(command)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
