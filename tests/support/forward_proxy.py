# SPDX-License-Identifier: Apache-2.0
"""A forward proxy as in company networks: whole URLs for HTTP, and CONNECT for HTTPS."""

from __future__ import annotations

import contextlib
import shutil
import socket
import socketserver
import threading
import urllib.parse
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from support.waiting import WATCHDOG


class ForwardProxy(AbstractContextManager["ForwardProxy"]):
    """Connects to the servers in ``hosts``, addresses by name; other hosts get 502, and clients without ``login`` 407.

    ``requests`` has the first line of each request.
    """

    def __init__(self, hosts: Mapping[str, str], *, login: str | None = None) -> None:
        self.requests: list[str] = []
        self._hosts, self._login = dict(hosts), login
        proxy = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):
                    proxy._serve(self.connection, self.rfile)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(WATCHDOG)

    def _serve(self, client: socket.socket, reader: Any) -> None:
        """Answer one request, and close the connection."""
        line = reader.readline().decode().rstrip()
        headers = []
        while (header := reader.readline()).strip():
            headers.append(header.decode().rstrip())
        if not line:
            return
        self.requests.append(line)
        method, target, _ = line.split(" ")
        logins = [text for text in headers if text.lower().startswith("proxy-authorization:")]
        if self._login is not None and logins != [f"proxy-authorization: {self._login}"]:
            client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            return
        url = urllib.parse.urlsplit(f"//{target}" if method == "CONNECT" else target)
        address = self._hosts.get(url.hostname or "")
        if address is None:
            client.sendall(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")
            return
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=WATCHDOG) as server:
            if method == "CONNECT":
                client.sendall(b"HTTP/1.1 200 Connection Established\r\n\r\n")
                upload = threading.Thread(target=_copy, args=(reader, server), daemon=True)
                upload.start()
            else:
                path = url.path + (f"?{url.query}" if url.query else "")
                own = [text for text in headers if not text.lower().startswith(("proxy-", "connection:"))]
                head = "\r\n".join([f"{method} {path} HTTP/1.1", *own, "connection: close", "", ""])
                server.sendall(head.encode())
            _copy(server.makefile("rb"), client)


def _copy(source: Any, target: socket.socket) -> None:
    """Copy bytes until the end of one of both."""
    with contextlib.suppress(OSError, ValueError):
        shutil.copyfileobj(source, target.makefile("wb", buffering=0))
        target.shutdown(socket.SHUT_WR)
