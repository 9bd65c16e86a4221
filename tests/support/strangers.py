# SPDX-License-Identifier: Apache-2.0
"""Connections without the secret, by the hundred: what each says, and everything that it is answered.

They come from an address of their own, as those of another machine would.
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
#: Codes of frames, as the page of the format has them.
CHALLENGE, ERROR = 17, 27


def words(conversation: bytes) -> dict[str, bytes]:
    """What strangers say, who know a ``conversation`` that a rank has had before."""
    hello = conversation[: frame_bytes(conversation)]
    announced = bytearray(hello[:HEADER_BYTES])
    struct.pack_into("<I", announced, 20, 1 << 20)
    return {
        "nothing": b"",
        "a question": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" * 9,
        "noise": bytes(range(256)) * 16,
        "a greeting": hello,
        "half a greeting": hello[:-1],
        "a long greeting": bytes(announced) + bytes(1 << 16),
        "what a rank has said": conversation,
    }


def frame_bytes(stream: bytes) -> int:
    """Of the frame at its beginning."""
    length: int = struct.unpack_from("<I", stream, 20)[0]
    return HEADER_BYTES + length


def kinds(answer: bytes) -> list[int]:
    """The codes of the frames of an answer, which has nothing else."""
    found = []
    while answer:
        found.append(answer[2])
        answer = answer[frame_bytes(answer) :]
    return found


class Strangers:
    """``count`` connections, which say one of ``sayings`` each, in turn; ``slowly``: this one a byte at a time as well."""

    def __init__(
        self, server: str, count: int, sayings: Mapping[str, bytes], *, slowly: str | None = None
    ) -> None:
        self.answers: list[tuple[str, bytearray]] = []
        """To whom, and what it was."""
        self._open = selectors.DefaultSelector()
        self._dribbles: list[tuple[socket.socket, list[int]]] = []
        host, _, port = server.rpartition(":")
        for what, dribbled in itertools.islice(itertools.cycle(_turns(sayings, slowly)), count):
            one = socket.create_connection((host, int(port)), source_address=(ADDRESS, 0))
            one.setblocking(False)
            self.answers.append((what, bytearray()))
            self._open.register(one, selectors.EVENT_READ, self.answers[-1][1])
            if dribbled:
                self._dribbles.append((one, list(sayings[what])))
            else:
                self._say(one, sayings[what])

    def __enter__(self) -> Strangers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for key in list(self._open.get_map().values()):
            self._leave(key.fileobj)
        self._open.close()

    def listen(self) -> None:
        """Read all answers, until the server has ended every connection."""
        wait_until(self._all_ended, what="the end of every connection, by the server")

    def _all_ended(self) -> bool:
        for one, left in self._dribbles:
            if left and one.fileno() >= 0:
                self._say(one, bytes([left.pop(0)]))
        for key, _ in self._open.select(0.05):
            self._hear(key)
        return not self._open.get_map()

    def _hear(self, key: selectors.SelectorKey) -> None:
        try:
            part = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
        except BlockingIOError:
            return
        except OSError:
            part = b""
        key.data.extend(part)
        if not part:
            self._leave(key.fileobj)

    def _say(self, one: socket.socket, text: bytes) -> None:
        # Whoever was shown the door need not be heard to the end.
        with contextlib.suppress(OSError):
            one.send(text)

    def _leave(self, one: object) -> None:
        assert isinstance(one, socket.socket)
        self._open.unregister(one)
        one.close()


def _turns(sayings: Mapping[str, bytes], slowly: str | None) -> list[tuple[str, bool]]:
    whole = [(what, False) for what in sayings]
    return whole if slowly is None else [*whole, (slowly, True)]
