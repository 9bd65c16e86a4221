# SPDX-License-Identifier: Apache-2.0
"""Resolution of the ``host:port`` that users write to the ``ip:port`` that a socket takes.

Ranks that connect and the command that listens share it, so both accept the same spellings. An address that cannot be
read or resolved is an error with its remedy.
"""

from __future__ import annotations

import socket

from foresee.errors import ConfigError

__all__ = ["resolve"]


def resolve(address: str, *, what: str) -> str:
    """``ip:port`` or ``[ip6]:port`` of ``host:port``, ``ip:port`` or ``[ip6]:port``.

    A name with addresses of both kinds gives one of IPv4; write the address in brackets where IPv6 is meant.

    Args:
        address: as a user wrote it.
        what: the argument it comes from, for messages.

    Raises:
        ConfigError: it cannot be read, or the name service knows no such host.
    """
    host, _, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if (
        not bare
        or not port.isascii()
        or not port.isdigit()
        or int(port) >= 1 << 16
        or (":" in bare) != (bare != host)
    ):
        raise ConfigError(f"{what} {address!r} is no address; write host:port, or [address]:port for IPv6")
    try:
        found = socket.getaddrinfo(bare, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{what} {address!r}: no address is known of host {bare!r} ({error}); check its spelling, or write its IP"
        ) from None
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    family, _, _, _, place = found[0]
    return f"[{place[0]}]:{port}" if family == socket.AF_INET6 else f"{place[0]}:{port}"
