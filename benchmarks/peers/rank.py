#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rank of a node on its host: it opens the loader of an arm, runs its loop, and ends, one command per line.

``open``, ``run`` and ``end`` are separate, so that all ranks start and close together. A rank that fails answers with
the error and ends, which ends the barriers of the others.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch.distributed as dist
from support.arms import Ours, Stock, open_arm
from support.loops import Messages, train
from support.task import Task

#: Limit of a barrier.
BARRIER_TIMEOUT = dt.timedelta(seconds=120)


def main() -> int:
    """Answer each line with a line."""
    # Libraries that print to standard output must not corrupt the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    messages = Messages.attach()
    opened: tuple[Task, Ours | Stock] | None = None
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if command["do"] == "open":
                task = Task.from_json(command["task"])
                dist.init_process_group("gloo", timeout=BARRIER_TIMEOUT)
                opened = task, open_arm(task)
            else:
                assert opened is not None
                task, loader = opened
                if command["do"] == "run":
                    answer = train(loader, task, messages).to_json()
                else:
                    loader.close()
                    dist.destroy_process_group()
        except Exception as error:
            traceback.print_exc()
            lines = f"{type(error).__name__}: {error}".strip().splitlines()
            answers.write(json.dumps({"error": " ... ".join(dict.fromkeys((lines[0], lines[-1])))}) + "\n")
            # Threads that wait for other ranks must not delay the end.
            os._exit(1)
        answers.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
