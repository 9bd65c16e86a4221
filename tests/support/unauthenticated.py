# SPDX-License-Identifier: Apache-2.0
"""Hundreds of connections without the secret: the message of each, and the answers.

They have another source address, like those of another host.
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import struct
from collections.abc import Mapping
from types import TracebackType

from support.waiting import wait_until

ADDRESS = "127.0.0.2"
HEADER_BYTES = 32
#: Codes of frames in the format's documentation.
CHALLENGE, ERROR = 17, 27


def messages_from(conversation: bytes) -> dict[str, bytes]:
    """Return messages of clients without the secret, which recorded a ``conversation`` of a rank."""
    hello = conversation[: frame_bytes(conversation)]
    announced = bytearray(hello[:HEADER_BYTES])
    struct.pack_into("<I", announced, 20, 1 << 20)
    return {
        "nothing": b"",
        "an HTTP request": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" * 9,
        "noise": bytes(range(256)) * 16,
        "a hello": hello,
        "half a hello": hello[:-1],
        "a long hello": bytes(announced) + bytes(1 << 16),
        "a conversation": conversation,
    }


def frame_bytes(stream: bytes) -> int:
    """Return the bytes of the first frame."""
    length: int = struct.unpack_from("<I", stream, 20)[0]
    return HEADER_BYTES + length


def kinds(answer: bytes) -> list[int]:
    """Return the codes of all frames of an answer."""
    found = []
    while answer:
        found.append(answer[2])
        answer = answer[frame_bytes(answer) :]
    return found


class UnauthenticatedClients:
    """``count`` connections that send one of ``messages`` each, in turn; ``slowly``: also sent byte by byte."""

    def __init__(
        self, server: str, count: int, messages: Mapping[str, bytes], *, slowly: str | None = None
    ) -> None:
        self.answers: list[tuple[str, bytearray]] = []
        """Message and answer of each connection."""
        self._open = selectors.DefaultSelector()
        self._slow: list[tuple[socket.socket, list[int]]] = []
        host, _, port = server.rpartition(":")
        for what, is_slow in itertools.islice(itertools.cycle(_turns(messages, slowly)), count):
            one = socket.create_connection((host, int(port)), source_address=(ADDRESS, 0))
            one.setblocking(False)
            self.answers.append((what, bytearray()))
            self._open.register(one, selectors.EVENT_READ, self.answers[-1][1])
            if is_slow:
                self._slow.append((one, list(messages[what])))
            else:
                self._send(one, messages[what])

    def __enter__(self) -> UnauthenticatedClients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for key in list(self._open.get_map().values()):
            self._close(key.fileobj)
        self._open.close()

    def read_answers(self) -> None:
        """Read all answers, until the server has ended every connection."""
        wait_until(self._all_ended, what="the end of every connection")

    def _all_ended(self) -> bool:
        for one, left in self._slow:
            if left and one.fileno() >= 0:
                self._send(one, bytes([left.pop(0)]))
        for key, _ in self._open.select(0.05):
            self._receive(key)
        return not self._open.get_map()

    def _receive(self, key: selectors.SelectorKey) -> None:
        try:
            part = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
        except BlockingIOError:
            return
        except OSError:
            part = b""
        key.data.extend(part)
        if not part:
            self._close(key.fileobj)

    def _send(self, one: socket.socket, text: bytes) -> None:
        # The server may have closed the connection.
        with contextlib.suppress(OSError):
            one.send(text)

    def _close(self, one: object) -> None:
        assert isinstance(one, socket.socket)
        self._open.unregister(one)
        one.close()


def _turns(messages: Mapping[str, bytes], slowly: str | None) -> list[tuple[str, bool]]:
    whole = [(what, False) for what in messages]
    return whole if slowly is None else [*whole, (slowly, True)]
