# SPDX-License-Identifier: Apache-2.0
"""Listings that the ranks of a job on one node share: one rank lists, and the others get its index.

A listing is identified by its arguments and by the number of equal listings before it in this process, so a data set
that is opened twice is listed twice.
"""

from __future__ import annotations

import atexit
import hashlib
import threading
from typing import TYPE_CHECKING, NamedTuple

from foresee import _native
from foresee._runtime import ranks

if TYPE_CHECKING:
    from collections.abc import Callable


class Listed(NamedTuple):
    """A new index, and the numbers of elements and files outside of all windows."""

    built: _native.Index
    elements: int = 0
    files: int = 0


def shared(arguments: tuple[object, ...], build: Callable[[], Listed]) -> Listed:
    """Return the result of ``build``, which one rank of this node calls for all that have equal ``arguments``.

    Args:
        arguments: all that determines the listing, of types whose ``repr`` shows their whole value. Only a digest
            leaves this process.
        build: lists the data; its errors are raised in each rank.
    """
    if not ranks.has_local_peers():
        return build()
    return Listed(*_native.share_listing(_numbered(arguments), build))


def _numbered(arguments: tuple[object, ...]) -> bytes:
    """Return the digest of the arguments, and of the number of their listings before in this process."""
    text = repr((_native.__version__, arguments)).encode("utf-8", "surrogateescape")
    first = hashlib.blake2b(text, digest_size=16).digest()
    with _lock:
        number = _listings[first] = _listings.get(first, 0) + 1
    return hashlib.blake2b(first + number.to_bytes(8, "little"), digest_size=16).digest()


_lock = threading.Lock()
_listings: dict[bytes, int] = {}
atexit.register(_native.close_listings)
