#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bucket on its host, with the proxy in front of it, and the store of a job's launcher. They end with standard input."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch.distributed as dist
from common.commands import answer_commands
from common.s3 import Server
from common.testbed import Testbed

#: Limit of a wait in the store.
STORE_TIMEOUT = dt.timedelta(seconds=120)


def main() -> int:
    """Answer ``serve`` first, then ``store`` for each run, ``begin`` with limits, and ``counters``."""
    with contextlib.ExitStack() as stack:
        proxy: Testbed | None = None
        address = ""
        # That of the last run.
        store: Any = None

        def act(command: dict[str, Any]) -> dict[str, Any]:
            nonlocal proxy, address, store
            if command["do"] == "serve":
                address = command["address"]
                server = stack.enter_context(Server(Path(command["folder"])))
                proxy = stack.enter_context(Testbed("proxy", server.url, "--listen", f"{address}:0"))
                return {"url": proxy.url}
            if command["do"] == "store":
                store = dist.TCPStore(  # type: ignore[attr-defined] # public, but not exported by name
                    address, 0, is_master=True, timeout=STORE_TIMEOUT, wait_for_workers=False
                )
                return {"port": store.port}
            assert proxy is not None
            if command["do"] == "begin":
                proxy.limit(latency_ms=command["latency_ms"], bytes_per_s=command["bytes_per_s"])
                proxy.reset()
                return {}
            return proxy.counters()

        answer_commands(act)
    return 0


if __name__ == "__main__":
    sys.exit(main())
