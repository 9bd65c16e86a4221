# SPDX-License-Identifier: Apache-2.0
"""The arguments of ``synchronize`` and ``DdpState`` that concern servers: their faults, and the group that they open.

Faults are returned, so that callers report those of all their arguments at once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from foresee.torch._exchange import COLOCATED, ExchangeSettings, GradientExchange
from foresee.torch._network import NetworkGroup
from foresee.torch._rank_group import RankGroup

if TYPE_CHECKING:
    from typing import TypeGuard

__all__ = ["START_TIMEOUT_S", "TIMEOUT_S", "is_number", "open_group", "server_faults"]

#: Seconds without a heartbeat before ranks give up, and for a lost server to be replaced.
TIMEOUT_S = 30.0
#: Seconds that ranks wait for each other at the start, as torch's process group does.
START_TIMEOUT_S = 1800.0

_REMEDY = (
    'servers="host:port,host:port" or "tls://host:port,tls://host:port", a list of such, "colocated" alone or among '
    "them, or a GradientExchange"
)
_opened = 0


def server_faults(
    servers: object,
    *,
    comm_dtype: object,
    on_rank_loss: object,
    recover: object,
    timeout: object,
    secret_file: object,
    hierarchical: object,
    start_timeout: object = START_TIMEOUT_S,
) -> list[str]:
    """Everything that is wrong with them, each with its remedy."""
    faults = []
    if comm_dtype not in (None, "f32", "f16", "bf16"):
        faults.append(f"comm_dtype={comm_dtype!r}; one of None, 'f32', 'f16', 'bf16'")
    if on_rank_loss not in ("raise", "continue"):
        faults.append(f"on_rank_loss={on_rank_loss!r}; one of 'raise', 'continue'")
    if not isinstance(recover, bool):
        faults.append(f"recover={recover!r}; True or False")
    if not is_number(timeout) or not 0 < timeout < math.inf:
        faults.append(f"timeout={timeout!r}; seconds, above 0 and finite")
    if not is_number(start_timeout) or not 0 < start_timeout < math.inf:
        faults.append(f"start_timeout={start_timeout!r}; seconds, above 0 and finite")
    if secret_file is not None and not isinstance(secret_file, str):
        faults.append(f"secret_file={secret_file!r}; the path of a file, or None")
    if not isinstance(hierarchical, bool):
        faults.append(f"hierarchical={hierarchical!r}; True or False")
    if not isinstance(servers, GradientExchange):
        return faults + _addresses(servers)
    stock: dict[str, tuple[object, object]] = {
        "comm_dtype": (comm_dtype, None),
        "on_rank_loss": (on_rank_loss, "raise"),
        "recover": (recover, True),
        "timeout": (timeout, TIMEOUT_S),
        "start_timeout": (start_timeout, START_TIMEOUT_S),
        "secret_file": (secret_file, None),
        "hierarchical": (hierarchical, True),
    }
    return faults + [
        f"{name}={value!r} is a matter of the GradientExchange that was passed as servers=; set it there"
        for name, (value, usual) in stock.items()
        if value != usual
    ]


def open_group(
    servers: str | Sequence[str] | GradientExchange,
    *,
    comm_dtype: Literal["f32", "f16", "bf16"] | None,
    on_rank_loss: Literal["raise", "continue"],
    recover: bool,
    timeout: float,
    secret_file: str | None,
    hierarchical: bool,
    timeline: int = 0,
    start_timeout: float = START_TIMEOUT_S,
) -> RankGroup:
    """The ranks, around the exchange that was passed or over servers. Arguments were found right."""
    if isinstance(servers, GradientExchange):
        return RankGroup(servers)
    global _opened  # noqa: PLW0603 - numbers the exchanges of a process, in the same order on every rank
    job = f"exchange-{_opened}"
    _opened += 1
    settings = ExchangeSettings(
        _split(servers),
        comm_dtype,
        on_rank_loss,
        timeout,
        job,
        secret_file=None if secret_file is None else os.path.expanduser(secret_file),
        hierarchical=hierarchical,
        timeline=timeline,
        start_timeout_s=start_timeout,
        recover=recover,
    )
    return NetworkGroup(settings)


def is_number(value: object) -> TypeGuard[float]:
    """Whether ``value`` is a number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _addresses(servers: object) -> list[str]:
    if not isinstance(servers, str) and not (
        isinstance(servers, Sequence) and all(isinstance(s, str) for s in servers)
    ):
        return [f"servers={servers!r}; {_REMEDY}"]
    addresses = _split(servers)
    if not addresses:
        return [f"servers={servers!r} names none; {_REMEDY}"]
    faults = [f"servers: {one!r} is no address; {_REMEDY}" for one in addresses if not _is_server(one)]
    twice = sorted({one for one in addresses if addresses.count(one) > 1})
    faults += [f'servers: "{one}" stands there twice; each is named once' for one in twice]
    return faults


def _split(servers: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(one.strip() for one in (servers.split(",") if isinstance(servers, str) else servers))


def _is_server(text: str) -> bool:
    if text == COLOCATED:
        return True
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16
