# SPDX-License-Identifier: Apache-2.0
"""Resolution of the ``host:port`` that users write to the ``ip:port`` that a socket takes.

Ranks that connect and the command that listens share it, so both accept the same spellings.
"""

from __future__ import annotations

import socket

from foresee.errors import ConfigError


def resolve(address: str, *, what: str) -> str:
    """Resolve ``host:port``, ``ip:port`` or ``[ip6]:port`` to ``ip:port`` or ``[ip6]:port``; IPv4 is preferred.

    ``what``: name of the argument, for messages.

    Raises:
        ConfigError: the address has another form, or the name service does not know the host.
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
