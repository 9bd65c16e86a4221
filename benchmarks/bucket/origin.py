#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bucket on its host: a server and the proxy in front of it, which end with standard input."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.s3 import Server
from common.testbed import Testbed


def main() -> int:
    """Answer each line with a line: ``serve`` first, then ``begin`` with limits, and ``counters``."""
    with contextlib.ExitStack() as stack:
        proxy: Testbed | None = None
        for line in sys.stdin:
            command = json.loads(line)
            try:
                answer: dict[str, Any] = {}
                if command["do"] == "serve":
                    server = stack.enter_context(Server(Path(command["folder"])))
                    address = f"{command['address']}:0"
                    proxy = stack.enter_context(Testbed("proxy", server.url, "--listen", address))
                    answer = {"url": proxy.url}
                elif command["do"] == "begin":
                    assert proxy is not None
                    proxy.limit(latency_ms=command["latency_ms"])
                    proxy.reset()
                else:
                    assert proxy is not None
                    answer = proxy.counters()
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
