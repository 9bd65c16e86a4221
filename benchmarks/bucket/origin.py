#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bucket on its host: a server and the proxy in front of it, which end with standard input."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.commands import answer_commands
from common.s3 import Server
from common.testbed import Testbed


def main() -> int:
    """Answer ``serve`` first, then ``begin`` with limits, and ``counters``."""
    with contextlib.ExitStack() as stack:
        proxy: Testbed | None = None

        def act(command: dict[str, Any]) -> dict[str, Any]:
            nonlocal proxy
            if command["do"] == "serve":
                server = stack.enter_context(Server(Path(command["folder"])))
                address = f"{command['address']}:0"
                proxy = stack.enter_context(Testbed("proxy", server.url, "--listen", address))
                return {"url": proxy.url}
            assert proxy is not None
            if command["do"] == "begin":
                proxy.limit(latency_ms=command["latency_ms"])
                proxy.reset()
                return {}
            return proxy.counters()

        answer_commands(act)
    return 0


if __name__ == "__main__":
    sys.exit(main())
