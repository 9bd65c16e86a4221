# SPDX-License-Identifier: Apache-2.0
"""The arguments of ``synchronize`` and ``DdpState`` that concern servers: their faults, and the group that they open.

Faults are returned, so that callers report those of all their arguments at once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from foresee.torch._exchange import COLOCATED, ExchangeSettings, GradientExchange
from foresee.torch._network import NetworkGroup
from foresee.torch._rank_group import RankGroup

if TYPE_CHECKING:
    from typing import TypeGuard

__all__ = ["START_TIMEOUT_S", "TIMEOUT_S", "ServerArguments", "is_number"]

#: Seconds without a heartbeat before ranks give up, and for a lost server to be replaced.
TIMEOUT_S = 30.0
#: Seconds that ranks wait for each other at the start, as in torch's process group.
START_TIMEOUT_S = 1800.0

_REMEDY = (
    'servers="host:port,host:port" or "tls://host:port,tls://host:port", a list of such, "colocated" alone or among '
    "them, or a GradientExchange"
)
_open_exchanges = 0


def is_number(value: object) -> TypeGuard[float]:
    """Whether ``value`` is a number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_timeout(value: object) -> bool:
    return is_number(value) and 0 < value < math.inf


_IS_VALID: dict[str, tuple[Callable[[Any], bool], str]] = {
    "comm_dtype": (lambda value: value in (None, "f32", "f16", "bf16"), "one of None, 'f32', 'f16', 'bf16'"),
    "on_rank_loss": (lambda value: value in ("raise", "continue"), "one of 'raise', 'continue'"),
    "recover": (lambda value: isinstance(value, bool), "True or False"),
    "timeout": (_is_timeout, "seconds, above 0 and finite"),
    "start_timeout": (_is_timeout, "seconds, above 0 and finite"),
    "secret_file": (lambda value: isinstance(value, str | None), "the path of a file, or None"),
    "hierarchical": (lambda value: isinstance(value, bool), "True or False"),
}


@dataclass(frozen=True, kw_only=True)
class ServerArguments:
    """The arguments as the user passed them, documented in ``synchronize``."""

    servers: str | Sequence[str] | GradientExchange
    comm_dtype: Literal["f32", "f16", "bf16"] | None = None
    on_rank_loss: Literal["raise", "continue"] = "raise"
    recover: bool = True
    timeout: float = TIMEOUT_S
    start_timeout: float = START_TIMEOUT_S
    secret_file: str | None = None
    hierarchical: bool = True

    def find_faults(self) -> list[str]:
        """Return all faults, each with its remedy."""
        faults = [
            f"{name}={value!r}; {expected}"
            for name, (is_valid, expected) in _IS_VALID.items()
            if not is_valid(value := getattr(self, name))
        ]
        if not isinstance(self.servers, GradientExchange):
            return faults + _find_address_faults(self.servers)
        return faults + [
            f"{one.name}={value!r} is a matter of the GradientExchange that was passed as servers=; set it there"
            for one in fields(self)
            if one.name in _IS_VALID and (value := getattr(self, one.name)) != one.default
        ]

    def open_group(self, timeline: int = 0) -> RankGroup:
        """Open the group of ranks around the exchange that was passed or over servers.

        Args:
            timeline: events that the exchange retains between two calls of ``timeline()``.
        """
        if isinstance(self.servers, GradientExchange):
            return RankGroup(self.servers)
        global _open_exchanges  # noqa: PLW0603 - numbers the exchanges of a process, in the same order on every rank
        job = f"exchange-{_open_exchanges}"
        _open_exchanges += 1
        settings = ExchangeSettings(
            _split(self.servers),
            self.comm_dtype,
            self.on_rank_loss,
            self.timeout,
            job,
            secret_file=None if self.secret_file is None else os.path.expanduser(self.secret_file),
            hierarchical=self.hierarchical,
            timeline=timeline,
            start_timeout_s=self.start_timeout,
            recover=self.recover,
        )
        return NetworkGroup(settings)


def _find_address_faults(servers: object) -> list[str]:
    if not isinstance(servers, str) and not (
        isinstance(servers, Sequence) and all(isinstance(one, str) for one in servers)
    ):
        return [f"servers={servers!r}; {_REMEDY}"]
    addresses = _split(servers)
    if not addresses:
        return [f"servers={servers!r} names none; {_REMEDY}"]
    faults = [f"servers: {one!r} is no address; {_REMEDY}" for one in addresses if not _is_server(one)]
    twice = sorted({one for one in addresses if addresses.count(one) > 1})
    faults += [f'servers: "{one}" stands there twice; name each once' for one in twice]
    return faults


def _split(servers: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(one.strip() for one in (servers.split(",") if isinstance(servers, str) else servers))


def _is_server(text: str) -> bool:
    if text == COLOCATED:
        return True
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16
