# SPDX-License-Identifier: Apache-2.0
"""A proxy between a rank and its server that captures the bytes of the client.

With TLS it is a man in the middle: it terminates the session of the client and opens another one to the server.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from types import TracebackType

from support.processes import ROOT

_FILES = ROOT / "crates" / "foresee-wire" / "testdata" / "tls"
CERTIFICATE, KEY = str(_FILES / "server.pem"), str(_FILES / "server.key")


class RecordingProxy:
    """Listens at ``address`` for clients of ``server``. ``tls``: terminate TLS with the server's own certificate and key."""

    def __init__(self, server: str, *, tls: bool = False) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent: list[bytearray] = []
        """Bytes that each client sent, in the order of the connections."""
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> RecordingProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in (self._listener, *self._sockets):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(near)
            # A connection that fails was rejected or closed; others may follow.
            with contextlib.suppress(OSError):
                self._join(near)

    def _join(self, near: socket.socket) -> None:
        far = socket.create_connection(self._server)
        self._sockets.append(far)
        if self._tls:
            own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            own.load_cert_chain(CERTIFICATE, KEY)
            trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
            near, far = own.wrap_socket(near, server_side=True), trusting.wrap_socket(far)
            self._sockets += [near, far]
        self.sent.append(bytearray())
        for one, other, captured in ((near, far, self.sent[-1]), (far, near, None)):
            self._threads.append(threading.Thread(target=_pump, args=(one, other, captured)))
            self._threads[-1].start()


def _pump(one: socket.socket, other: socket.socket, captured: bytearray | None) -> None:
    """Forward bytes until either end closes, then close both."""
    with contextlib.suppress(OSError):
        while part := one.recv(1 << 16):
            if captured is not None:
                captured += part
            other.sendall(part)
    for end in (one, other):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
