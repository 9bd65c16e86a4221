# SPDX-License-Identifier: Apache-2.0
"""Links between ranks: rank 0 measures one after the other, all others answer.

Rank 0 listens at ``MASTER_ADDR``, one port above ``MASTER_PORT``, which the launcher uses. ``FORESEE_TOKEN``
authenticates connections if it is set. Without it the secret is a public constant: only padding is sent, so that an
attacker could at most disturb a measurement.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping

from foresee import _native
from foresee._runtime.ranks import World
from foresee._schema import addresses
from foresee.calibrate.sweep import REPEATS, rate, time_of
from foresee.errors import ConfigError
from foresee.jobspec import Figure

#: Seconds that ranks wait for each other to start.
_WAIT_S = 60.0
_PUBLIC_CONSTANT = "foresee-calibrate, no secret"


def rendezvous(port: int | None, environ: Mapping[str, str] | None = None) -> str:
    """Return ``ip:port`` of rank 0.

    Raises:
        ConfigError: the launcher's variables are missing or wrong.
    """
    env = os.environ if environ is None else environ
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    if port is not None:
        missing = [name for name in missing if name != "MASTER_PORT"]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} not set, so rank 0 has no address; set them as torchrun does, or leave "
            "the network out with --only"
        )
    if port is None:
        text = env["MASTER_PORT"]
        if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 16:
            raise ConfigError(f"MASTER_PORT={text!r}; a port from 1 to 65535 expected")
        port = int(text) + 1 if int(text) < (1 << 16) - 1 else int(text) - 1
    host = env["MASTER_ADDR"]
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return addresses.resolve(f"{host}:{port}", what="MASTER_ADDR")


def links(world: World, address: str, seconds: float) -> Iterator[Figure]:
    """Measure ``network.*`` on rank 0."""
    repeats = _native.links_measure(
        _listen_address(address),
        world=world.size,
        secret=_secret(),
        repeats=REPEATS,
        seconds=seconds / 1.5 / REPEATS / (world.size - 1),
        wait_s=_WAIT_S,
    )
    rates = [moved / took for _, (moved, took, _), _ in repeats]
    rounds = [latency for *_, (_, _, latency) in repeats]
    around = f"rank 0 to {world.size - 1} others in turn, {REPEATS} repeats each, TCP"
    yield rate("network.rate", None, rates, f"1 MiB frames, {around}")
    yield time_of("network.latency", None, rounds, f"round trip of a small message, {around}")


def serve_links(world: World, address: str) -> None:
    """Answer rank 0 until it has measured all links."""
    _native.links_answer(address, rank=world.rank, world=world.size, secret=_secret(), wait_s=_WAIT_S)


def _listen_address(address: str) -> str:
    """Return the address on which rank 0 listens: all interfaces, or only loopback if all ranks are local."""
    host, _, port = address.rpartition(":")
    ip = ipaddress.ip_address(host.strip("[]"))
    if ip.is_loopback:
        return address
    return f"0.0.0.0:{port}" if ip.version == 4 else f"[::]:{port}"


def _secret() -> str:
    return os.environ.get("FORESEE_TOKEN") or _PUBLIC_CONSTANT
