# SPDX-License-Identifier: Apache-2.0
"""Where ranks and servers of a job meet: the job's name, its secret, and the addresses of colocated servers.

They come from the launcher's variables, torch's process group and files. A secret is never read from the command line,
where every user of the machine can see it.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import logging
import math
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Any, Protocol

import torch.distributed as dist

from foresee._runtime.ranks import World
from foresee.errors import ConfigError, RankLost

__all__ = [
    "Store",
    "fresh",
    "job_name",
    "job_place",
    "job_secret",
    "own_address",
    "patience_s",
    "share_address",
]

#: The environment variable of a job's secret.
TOKEN = "FORESEE_TOKEN"  # noqa: S105 - a name
#: The environment variable of the address at which other machines reach this one.
ADDRESS = "FORESEE_ADDRESS"
# Of a network for documentation (RFC 5737): nothing is sent there, but the way to it is that to other machines.
_REMOTE = "192.0.2.1"
# What rank 0 says where it has a secret that is not the store's to carry.
_OWN = "rank 0 has its own"
_SECRET = "secret"  # noqa: S105 - the key of one
_NAME = "name"
_NAME_MAX = 128
# Of launchers of MPI programs, each of which gives every rank of one start the same and no other start again: PMIx
# (Open MPI 5, Slurm's), Open MPI 4, PALS, PMI-2 of Slurm and Cray. Hydra (MPICH, Intel MPI) has none.
_LAUNCHED = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PALS_APID", "PMI_JOBID")
#: How often rank 0 checks whether others have come, how often it logs that it waits, and for how long it waits where
#: the store does not say. Seconds.
_POLL_S, _LOG_EVERY_S, _PATIENCE_S = 0.02, 30.0, 1800.0
#: How long rank 0 stays, when it gives up, so that the others read which ranks are missing. Seconds.
_GIVE_UP_S = 5.0
#: Ranks that a message names.
_SHOWN = 8
_log = logging.getLogger("foresee")


class Store(Protocol):
    """What is used of ``torch.distributed.Store``."""

    def set(self, key: str, value: str, /) -> None:
        """Store a value."""

    def get(self, key: str, /) -> bytes:
        """Wait for a value."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all of them have a value."""


def job_place(
    exchange: str, world: World, environ: Mapping[str, str] | None = None, *, limit_s: float = math.inf
) -> tuple[str, Store | None]:
    """The job's name, and its part of the store where torch's process group is initialised. Collective there.

    A run that nothing has named, as one whose script gave the process group a store of its own, is named by rank 0,
    and the store has the name for the others. ``limit_s``: how long a rank waits for another there; never longer than
    the store.

    Raises:
        ConfigError: nothing has named it, and there is no store.
        RankLost: a rank did not come.
    """
    named = job_name(exchange, world, environ)
    store = None
    if dist.is_available() and dist.is_initialized():
        default: Store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public name for it
        if limit_s < patience_s(default):
            default = _Bounded(default, limit_s)
        store = fresh(default, named or exchange, world)
    if named is not None:
        return named, store
    if store is None:
        raise ConfigError(
            "nothing tells this run apart from others on its servers, since its launcher gives it no number that all "
            "ranks know: set FORESEE_JOB to the same on every rank and to another for every run, or call "
            "torch.distributed.init_process_group() first"
        )
    if world.rank == 0:
        store.set(_NAME, f"{secrets.token_hex(8)}/{exchange}")
    return _read(store, _NAME, 0), store


def fresh(store: Store, job: str, world: World) -> Store:
    """A part of ``store`` in which nothing is older than this attempt at the job. Collective.

    torchrun keeps its store when it starts ranks again, and in it whatever they said before. So a rank asks who rank 0
    is under a number that it has just drawn, and gets rank 0's, under which all meet. What an earlier process has
    asked may be answered once more, to no reader.
    """
    place, own = f"foresee/{job}", secrets.token_hex(8)
    if world.rank == 0:
        _announce(store, place, own, world)
        return _Part(store, f"{place}/{own}")
    store.set(f"{place}/asks/{world.rank}", own)
    number = _read(store, f"{place}/answer/{own}", 0)
    place = f"{place}/{number}"
    store.set(f"{place}/here/{world.rank}", own)
    _wait_for_all(store, place, world)
    return _Part(store, place)


def _wait_for_all(store: Store, place: str, world: World) -> None:
    """Wait until rank 0 knows that all ranks are here.

    Raises:
        RankLost: it gave up, or this rank does; the error names the ranks that are missing.
    """
    began = time.monotonic()
    patience = patience_s(store)
    try:
        while not store.check([f"{place}/all"]):
            if time.monotonic() - began > patience:
                store.set(f"{place}/heard/{world.rank}", "")
                others = range(1, world.size)
                missing = [rank for rank in others if not store.check([f"{place}/here/{rank}"])]
                # Where all others are here, it is rank 0 that does not go on.
                raise _absent(missing or [0], patience)
            time.sleep(_POLL_S)
        missing = [int(rank) for rank in store.get(f"{place}/all").decode().split()]
        if missing:
            store.set(f"{place}/heard/{world.rank}", "")
    except RankLost:
        raise
    except RuntimeError as error:
        # Torch's of a store that is gone, and its rank with it.
        raise _absent([0], time.monotonic() - began) from error
    if missing:
        raise _absent(missing, time.monotonic() - began)


def _give_up(store: Store, place: str, missing: list[int], world: World) -> None:
    """Report the missing ranks to those that are here, before the store ends with this process."""
    store.set(f"{place}/all", " ".join(map(str, missing)))
    until = time.monotonic() + _GIVE_UP_S
    here = [rank for rank in range(1, world.size) if rank not in missing]
    while here and time.monotonic() < until:
        here = [rank for rank in here if not store.check([f"{place}/heard/{rank}"])]
        time.sleep(_POLL_S)


def _announce(store: Store, place: str, own: str, world: World) -> None:
    """Answer every rank that asks who rank 0 is, until all are here, and then report that they are."""
    began = logged = time.monotonic()
    patience = patience_s(store)
    missing = list(range(1, world.size))
    while missing:
        for rank in missing:
            if store.check([f"{place}/asks/{rank}"]):
                store.set(f"{place}/answer/{store.get(f'{place}/asks/{rank}').decode()}", own)
        missing = [rank for rank in missing if not store.check([f"{place}/{own}/here/{rank}"])]
        now = time.monotonic()
        if missing and now - began > patience:
            _give_up(store, f"{place}/{own}", missing, world)
            raise _absent(missing, patience)
        if missing and now - logged > _LOG_EVERY_S:
            logged = now
            _log.warning("%.0f s: waiting for %s to come here, too", now - began, _ranks(missing))
        if missing:
            time.sleep(_POLL_S)
    store.set(f"{place}/{own}/all", "")


def _read(store: Store, key: str, rank: int) -> str:
    """Read what a rank puts into the store.

    Raises:
        RankLost: it did not, for as long as the store waits.
    """
    began = time.monotonic()
    try:
        return store.get(key).decode()
    except RuntimeError as error:
        # Torch's of a store that is gone, or that has waited long enough.
        raise _absent([rank], time.monotonic() - began) from error


def _absent(missing: list[int], seconds: float) -> RankLost:
    return RankLost(
        f"{_ranks(missing)} did not come to the exchange of gradients within {seconds:.0f} s; look at the output "
        "there, or pass a larger start_timeout=",
        rank=missing[0],
    )


def _ranks(some: list[int]) -> str:
    shown = ", ".join(map(str, some[:_SHOWN])) + (", ..." if len(some) > _SHOWN else "")
    return f"rank{'s' if len(some) > 1 else ''} {shown}"


def patience_s(store: object) -> float:
    """For how long a store waits, as torch has it, and so whoever waits for another rank; also where there is none."""
    timeout = getattr(store, "timeout", None)
    return timeout.total_seconds() if isinstance(timeout, dt.timedelta) else _PATIENCE_S


def job_name(exchange: str, world: World, environ: Mapping[str, str] | None = None) -> str | None:
    """What servers tell jobs apart by: the same on every rank, another for every run. None where nothing says so.

    ``FORESEE_JOB``, else the number of a launcher of MPI programs, else Slurm's job and step, both where what was
    launched are the ranks, else the address where torchrun's ranks meet, else, of a lone rank, its process. Where ranks
    meet at a loopback address, which every machine has, the machine's name stands in its place. ``exchange`` tells
    apart the exchanges of a run.
    """
    env = os.environ if environ is None else environ
    launched = next((env[name] for name in _LAUNCHED if env.get(name)), None)
    if env.get("FORESEE_JOB"):
        run = env["FORESEE_JOB"]
    elif launched and "RANK" not in env:
        # Before Slurm's, which differs between the machine where mpirun is and those where Slurm started its daemons.
        run = f"mpi-{launched}"
    elif "SLURM_JOB_ID" in env and "SLURM_STEP_ID" in env and "RANK" not in env:
        run = f"slurm-{env['SLURM_JOB_ID']}.{env['SLURM_STEP_ID']}"
    elif env.get("MASTER_ADDR") and env.get("MASTER_PORT"):
        place = env["MASTER_ADDR"]
        # Whoever has started all ranks has one name for its machine.
        if world.local_size_known and world.local_size == world.size and _is_loopback(place):
            place = socket.gethostname()
        run = f"{place}:{env['MASTER_PORT']}"
    elif world.size == 1:
        run = f"{socket.gethostname()}-{os.getpid()}"
    else:
        return None
    plain = re.sub(r"[^A-Za-z0-9._:/-]", "-", run)
    return f"{plain[: _NAME_MAX - len(exchange) - 1]}/{exchange}"


def job_secret(
    rank: int,
    secret_file: str | None,
    store: Store | None,
    environ: Mapping[str, str] | None = None,
) -> str | None:
    """The secret that the store carries; None where ``secret_file`` or ``FORESEE_TOKEN`` has it.

    Rank 0 draws it where it has none. It never puts one into the store that a user gave it. Collective where there is a
    store: ranks without a secret wait for rank 0.

    Raises:
        ConfigError: there is none, and no store to carry one.
    """
    env = os.environ if environ is None else environ
    own = secret_file is not None or TOKEN in env
    if store is None:
        if not own:
            raise ConfigError(
                f"no secret: set {TOKEN} to the one that the servers have, or pass secret_file= with the path of a "
                "file that only its owner can read"
            )
        return None
    if rank == 0:
        drawn = _OWN if own else secrets.token_hex(32)
        store.set(_SECRET, drawn)
        return None if own else drawn
    if own:
        return None
    carried = _read(store, _SECRET, 0)
    if carried == _OWN:
        raise ConfigError(
            f"rank {rank} has no secret, and rank 0 has; set {TOKEN} or pass secret_file= on every rank"
        )
    return carried


def own_address(world: World, environ: Mapping[str, str] | None = None) -> str:
    """The address of this machine at which the job's other ranks reach it.

    ``FORESEE_ADDRESS``, else the one from which this machine would talk to where the ranks meet (``MASTER_ADDR``), else
    the one of its route to other networks.

    Raises:
        ConfigError: there is none.
    """
    env = os.environ if environ is None else environ
    if env.get(ADDRESS):
        return env[ADDRESS]
    alone = world.local_size == world.size
    meeting = env.get("MASTER_ADDR")
    for place in (meeting, None if alone else _REMOTE):
        found = _address_towards(place) if place else None
        # The machine on which the ranks meet may know itself by a name that is a loopback address.
        if found and (alone or not ipaddress.ip_address(found).is_loopback):
            return found
    if alone:
        return "127.0.0.1"
    raise ConfigError(
        f"no address of this machine is known at which other ranks reach it; set {ADDRESS} to its IP on every machine"
    )


def share_address(world: World, address: str, store: Store | None, *, every: int = 1) -> list[str]:
    """The addresses of all ranks' own servers, by rank; of every second, third... rank's. Collective among those.

    Raises:
        ConfigError: there are several ranks and no store.
    """
    if world.size == every:
        return [address]
    if store is None:
        raise ConfigError(
            "servers beside ranks find each other through torch's process group: call "
            "torch.distributed.init_process_group() first, or give addresses of servers"
        )
    store.set(f"server/{world.rank}", address)
    return [_read(store, f"server/{rank}", rank) for rank in range(0, world.size, every)]


class _Bounded:
    """A store that waits for a shorter time than it would."""

    def __init__(self, store: Any, limit_s: float) -> None:
        self._store = store
        self.timeout = dt.timedelta(seconds=limit_s)

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        self._store.wait([key], self.timeout)
        value: bytes = self._store.get(key)
        return value

    def check(self, keys: list[str]) -> bool:
        return bool(self._store.check(keys))


class _Part:
    """The keys of a store that begin with ``place``."""

    def __init__(self, store: Store, place: str) -> None:
        self._store, self._place = store, place

    @property
    def timeout(self) -> object:
        """The store's."""
        return getattr(self._store, "timeout", None)

    def set(self, key: str, value: str) -> None:
        self._store.set(f"{self._place}/{key}", value)

    def get(self, key: str) -> bytes:
        return self._store.get(f"{self._place}/{key}")

    def check(self, keys: list[str]) -> bool:
        return self._store.check([f"{self._place}/{key}" for key in keys])


def _is_loopback(place: str) -> bool:
    try:
        return place == "localhost" or ipaddress.ip_address(place).is_loopback
    except ValueError:
        return False


def _address_towards(place: str) -> str | None:
    """The address from which this machine would talk to another, without a packet; None if there is no way."""
    try:
        family, _, _, _, target = socket.getaddrinfo(place, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            found: str = probe.getsockname()[0]
    except OSError:
        return None
    return found
