#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank on its host: it opens the loader of an arm, and then runs its loop, one command per line of standard input.

``open`` and ``run`` are separate, so that all ranks start their loops together.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import loops
from support.arms import open_arm
from support.task import Result, Task


def main() -> int:
    """Answer each line with a line."""
    # Libraries that print to standard output must not corrupt the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    run: Callable[[], Result] | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["do"] == "open":
                run = opened(Task.from_json(command["task"]))
                answer: dict[str, Any] = {}
            else:
                assert run is not None
                answer = run().to_json()
                # The loader's workers and the threads of its cache end with it.
                run = None
                gc.collect()
        except Exception as error:
            traceback.print_exc()
            run = None
            # The error of a worker contains a traceback, which belongs in the log.
            lines = f"{type(error).__name__}: {error}".strip().splitlines()
            answer = {"error": " ... ".join(dict.fromkeys((lines[0], lines[-1])))}
        answers.write(json.dumps(answer) + "\n")
    return 0


def opened(task: Task) -> Callable[[], Result]:
    """Open what a task needs, and return the function that runs its loop."""
    alone: dict[str, Callable[[Task], Result]] = {
        "hit": loops.hits,
        "native": loops.native,
        "reads": loops.reads,
    }
    if task.arm in alone:
        return partial(alone[task.arm], task)
    return partial(loops.train, open_arm(task), task)


if __name__ == "__main__":
    sys.exit(main())
