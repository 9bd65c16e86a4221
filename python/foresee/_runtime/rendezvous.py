# SPDX-License-Identifier: Apache-2.0
"""Rendezvous of a job's ranks, nodes and servers: the job's name, its secret, and addresses.

They come from the launcher's variables, a store of torch, and files. torch is not imported for that: a store exists
only where the program has imported it. A secret is never read from the command line, which every user of the host can
see.
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
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from foresee.errors import ConfigError, RankLost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from foresee._runtime.ranks import World

__all__ = [
    "GRADIENTS",
    "Purpose",
    "Store",
    "agree_on_attempt",
    "begin_attempt",
    "find_job_name",
    "find_own_address",
    "find_secret",
    "find_store",
    "open_job",
    "part_of",
    "share_address",
    "store_timeout_s",
]

#: The environment variable of a job's secret.
TOKEN = "FORESEE_TOKEN"  # noqa: S105 - a name
#: The environment variable of the address at which other nodes reach this one.
ADDRESS = "FORESEE_ADDRESS"
# Address of a network for documentation (RFC 5737): nothing is sent, but the route is that to other nodes.
_REMOTE = "192.0.2.1"
# Value in the store if rank 0 got a secret from the user.
_HAS_OWN_SECRET = "rank 0 has its own"  # noqa: S105 - a marker
_SECRET = "secret"  # noqa: S105 - a key
_NAME = "name"
_MAX_NAME_CHARS = 128
# Ids of a launch of an MPI program, the same for all of its ranks: PMIx (Open MPI 5, Slurm's), Open MPI 4, PALS, PMI-2
# of Slurm and Cray. Hydra (MPICH, Intel MPI) has none.
_LAUNCH_IDS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PALS_APID", "PMI_JOBID")
#: Seconds between two checks of the store, between two lines of the log, and until a wait ends where the store has no
#: timeout.
_POLL_S, _LOG_EVERY_S, _DEFAULT_TIMEOUT_S = 0.02, 30.0, 1800.0
#: Seconds to connect to the store of torchrun's agents.
_CONNECT_S = 30.0
#: Seconds for which rank 0 stays after a failure, so that the other ranks read which ranks are missing.
_REPORT_S = 5.0
#: Ranks that a message names.
_RANKS_SHOWN = 8
_log = logging.getLogger("foresee")


@dataclass(frozen=True)
class Purpose:
    """What those who meet want, for messages."""

    member: str
    """One of them."""
    start: str
    """What they start together."""
    remedy: str
    """What helps if one of them does not come in time."""


#: The ranks of a job that share gradients.
GRADIENTS = Purpose("rank", "the exchange of gradients", ", or pass a larger start_timeout=")


class Store(Protocol):
    """The part of ``torch.distributed.Store`` that is used.

    It is used without waits within it, because another thread could not use it meanwhile.
    """

    def set(self, key: str, value: str, /) -> None:
        """Store a value."""

    def get(self, key: str, /) -> bytes:
        """Return a value that is there."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys have a value."""


def open_job(
    exchange: str, world: World, environ: Mapping[str, str] | None = None, *, limit_s: float = math.inf
) -> tuple[str, Store | None]:
    """Return the job's name, and its part of the store of torch's process group, if any. Collective with a store.

    If nothing names the run, rank 0 draws a name and shares it in the store.

    Args:
        exchange: tells apart the exchanges of a run.
        world: the ranks.
        environ: the environment; None: the process's.
        limit_s: seconds that a rank waits for another in the store, at most the store's timeout.

    Raises:
        ConfigError: nothing names the run, and there is no store.
        RankLost: a rank did not come.
    """
    named = find_job_name(exchange, world, environ)
    store = None
    if (default := _process_group_store()) is not None:
        if limit_s < store_timeout_s(default):
            default = _StoreView(default, limit_s=limit_s)
        store = begin_attempt(default, named or exchange, world)
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


def find_store(environ: Mapping[str, str] | None = None) -> Store | None:
    """Return a store that all processes of the job reach: of torchrun's agents, else of the process group, else None.

    The agents' store is the first choice, because it is a connection of its own.
    """
    env = os.environ if environ is None else environ
    dist = _torch_distributed()
    if dist is None:
        return None
    place, port = env.get("MASTER_ADDR"), env.get("MASTER_PORT")
    if env.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and place and port:
        try:
            connect = dt.timedelta(seconds=_CONNECT_S)
            store: Any = dist.TCPStore(
                place, int(port), is_master=False, wait_for_workers=False, timeout=connect
            )
            store.set_timeout(dt.timedelta(seconds=_DEFAULT_TIMEOUT_S))
        except (RuntimeError, ValueError) as error:
            _log.debug("the store of torchrun's agents at %s:%s: %s", place, port, error)
        else:
            found: Store = store
            return found
    return _process_group_store()


def _process_group_store() -> Store | None:
    dist = _torch_distributed()
    if dist is None or not dist.is_initialized():
        return None
    store: Store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public name for it
    return store


def _torch_distributed() -> Any:
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() else None


def begin_attempt(store: Store, job: str, world: World) -> Store:
    """Return the part of ``store`` for this attempt at the job. Collective; see ``agree_on_attempt``."""
    return part_of(store, agree_on_attempt(store, job, world))


def part_of(store: Store, prefix: str) -> Store:
    """Return the keys of ``store`` that begin with ``prefix``, without it."""
    return _StoreView(store, prefix)


def agree_on_attempt(store: Store, job: str, world: World, purpose: Purpose = GRADIENTS) -> str:
    """Return the prefix of the keys of this attempt at the job. Collective.

    torchrun keeps its store, with all values, when it restarts ranks. So each rank draws a number, and asks under it
    for rank 0's, which is the prefix of this attempt. A question of an earlier process may be answered without a
    reader.
    """
    place, own = f"foresee/{job}", secrets.token_hex(8)
    if world.rank == 0:
        _gather_ranks(store, place, own, world, purpose)
        return f"{place}/{own}/"
    store.set(f"{place}/asks/{world.rank}", own)
    number = _read(store, f"{place}/answer/{own}", 0, purpose)
    place = f"{place}/{number}"
    store.set(f"{place}/here/{world.rank}", own)
    _wait_for_all(store, place, world, purpose)
    return f"{place}/"


def _wait_for_all(store: Store, place: str, world: World, purpose: Purpose) -> None:
    """Wait until rank 0 reports that all ranks came.

    Raises:
        RankLost: rank 0 or this rank gave up; the error names the missing ranks.
    """
    began = time.monotonic()
    limit_s = store_timeout_s(store)
    try:
        while not (is_complete := store.check([f"{place}/all"])) and time.monotonic() - began <= limit_s:
            time.sleep(_POLL_S)
        if is_complete:
            missing = [int(rank) for rank in store.get(f"{place}/all").decode().split()]
        else:
            # If all others came, rank 0 is missing.
            others = range(1, world.size)
            missing = [rank for rank in others if not store.check([f"{place}/here/{rank}"])] or [0]
        if missing:
            store.set(f"{place}/heard/{world.rank}", "")
    except RuntimeError as error:
        # The store is lost, and its rank with it.
        raise _missing_error([0], time.monotonic() - began, purpose) from error
    if missing:
        raise _missing_error(missing, time.monotonic() - began, purpose)


def _report_missing(store: Store, place: str, missing: list[int], world: World) -> None:
    """Report the missing ranks to the others, before the store ends with this process."""
    store.set(f"{place}/all", " ".join(map(str, missing)))
    until = time.monotonic() + _REPORT_S
    present = [rank for rank in range(1, world.size) if rank not in missing]
    while present and time.monotonic() < until:
        present = [rank for rank in present if not store.check([f"{place}/heard/{rank}"])]
        time.sleep(_POLL_S)


def _gather_ranks(store: Store, place: str, own: str, world: World, purpose: Purpose) -> None:
    """Answer every rank that asks for rank 0's number, and report when all came."""
    began = logged = time.monotonic()
    limit_s = store_timeout_s(store)
    missing = list(range(1, world.size))
    while missing:
        for rank in missing:
            if store.check([f"{place}/asks/{rank}"]):
                store.set(f"{place}/answer/{store.get(f'{place}/asks/{rank}').decode()}", own)
        missing = [rank for rank in missing if not store.check([f"{place}/{own}/here/{rank}"])]
        now = time.monotonic()
        if missing and now - began > limit_s:
            _report_missing(store, f"{place}/{own}", missing, world)
            raise _missing_error(missing, limit_s, purpose)
        if missing and now - logged > _LOG_EVERY_S:
            logged = now
            waited_for = _members(missing, purpose)
            _log.warning("%.0f s: waiting for %s to start %s", now - began, waited_for, purpose.start)
        if missing:
            time.sleep(_POLL_S)
    store.set(f"{place}/{own}/all", "")


def _read(store: Store, key: str, rank: int, purpose: Purpose = GRADIENTS) -> str:
    """Read a value that a rank puts into the store.

    Raises:
        RankLost: it did not within the store's timeout.
    """
    began = time.monotonic()
    limit_s, pause_s = store_timeout_s(store), _POLL_S / 16
    try:
        while not store.check([key]):
            if time.monotonic() - began > limit_s:
                raise _missing_error([rank], limit_s, purpose)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S)
        return store.get(key).decode()
    except RuntimeError as error:
        # The store is lost.
        raise _missing_error([rank], time.monotonic() - began, purpose) from error


def _missing_error(missing: list[int], seconds: float, purpose: Purpose) -> RankLost:
    return RankLost(
        f"{_members(missing, purpose)} did not come to {purpose.start} within {seconds:.0f} s; look at the output "
        f"there{purpose.remedy}",
        rank=missing[0],
    )


def _members(some: list[int], purpose: Purpose) -> str:
    shown = ", ".join(map(str, some[:_RANKS_SHOWN])) + (", ..." if len(some) > _RANKS_SHOWN else "")
    return f"{purpose.member}{'s' if len(some) > 1 else ''} {shown}"


def store_timeout_s(store: object) -> float:
    """Return the timeout of a store, which limits all waits for ranks; with a default."""
    timeout = getattr(store, "timeout", None)
    return timeout.total_seconds() if isinstance(timeout, dt.timedelta) else _DEFAULT_TIMEOUT_S


def find_job_name(exchange: str, world: World, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the name by which servers distinguish jobs: the same on every rank, another for every run.

    The name is ``FORESEE_JOB``, else the id of an MPI launch, else Slurm's job and step, both if they started the ranks
    themselves, else the address where torchrun's ranks meet, else the process of a single rank. A loopback address is
    replaced by the host's name. None if nothing names the run. ``exchange`` tells apart the exchanges of a run.
    """
    env = os.environ if environ is None else environ
    launch = next((env[name] for name in _LAUNCH_IDS if env.get(name)), None)
    if env.get("FORESEE_JOB"):
        run = env["FORESEE_JOB"]
    elif launch and "RANK" not in env:
        # Before Slurm's step, which differs between the node of mpirun and the nodes of its daemons.
        run = f"mpi-{launch}"
    elif "SLURM_JOB_ID" in env and "SLURM_STEP_ID" in env and "RANK" not in env:
        run = f"slurm-{env['SLURM_JOB_ID']}.{env['SLURM_STEP_ID']}"
    elif env.get("MASTER_ADDR") and env.get("MASTER_PORT"):
        place = env["MASTER_ADDR"]
        # All ranks are on one host, which has one name.
        if world.local_size_known and world.local_size == world.size and _is_loopback(place):
            place = socket.gethostname()
        run = f"{place}:{env['MASTER_PORT']}"
    elif world.size == 1:
        run = f"{socket.gethostname()}-{os.getpid()}"
    else:
        return None
    plain = re.sub(r"[^A-Za-z0-9._:/-]", "-", run)
    return f"{plain[: _MAX_NAME_CHARS - len(exchange) - 1]}/{exchange}"


def find_secret(
    rank: int,
    secret_file: str | None,
    store: Store | None,
    environ: Mapping[str, str] | None = None,
    purpose: Purpose = GRADIENTS,
) -> str | None:
    """Return the secret that the store carries; None if ``secret_file`` or ``FORESEE_TOKEN`` has it.

    Rank 0 draws a secret if it has none, and never stores one of the user's. Collective with a store: ranks without a
    secret wait for rank 0.

    Raises:
        ConfigError: there is none, and no store to carry one.
    """
    env = os.environ if environ is None else environ
    own = secret_file is not None or TOKEN in env
    if store is None:
        if not own:
            raise ConfigError(
                f"no secret: set {TOKEN} to that of the servers, or pass secret_file= with the path of a "
                "file that only its owner can read"
            )
        return None
    if rank == 0:
        drawn = _HAS_OWN_SECRET if own else secrets.token_hex(32)
        store.set(_SECRET, drawn)
        return None if own else drawn
    if own:
        return None
    secret = _read(store, _SECRET, 0, purpose)
    if secret == _HAS_OWN_SECRET:
        raise ConfigError(
            f"{purpose.member} {rank} has no secret, and {purpose.member} 0 has; set {TOKEN} or pass secret_file= on "
            f"every {purpose.member}"
        )
    return secret


def find_own_address(world: World, environ: Mapping[str, str] | None = None) -> str:
    """Return the address at which the job's other ranks reach this node.

    ``FORESEE_ADDRESS``, else the source address of the route to ``MASTER_ADDR``, else that to other networks.

    Raises:
        ConfigError: there is none.
    """
    env = os.environ if environ is None else environ
    if env.get(ADDRESS):
        return env[ADDRESS]
    is_single_node = world.local_size == world.size
    for target in (env.get("MASTER_ADDR"), None if is_single_node else _REMOTE):
        found = _find_source_address(target) if target else None
        # On the host of MASTER_ADDR, its name may resolve to a loopback address.
        if found and (is_single_node or not ipaddress.ip_address(found).is_loopback):
            return found
    if is_single_node:
        return "127.0.0.1"
    raise ConfigError(
        f"no address is known at which other ranks reach this node; set {ADDRESS} to its IP on every node"
    )


def share_address(world: World, address: str, store: Store | None, *, every: int = 1) -> list[str]:
    """Return the addresses of the servers of every ``every``-th rank, by rank. Collective among those.

    Raises:
        ConfigError: there are several ranks and no store.
    """
    if world.size == every:
        return [address]
    if store is None:
        raise ConfigError(
            "colocated servers find each other through torch's process group: call "
            "torch.distributed.init_process_group() first, or give addresses of servers"
        )
    store.set(f"server/{world.rank}", address)
    return [_read(store, f"server/{rank}", rank) for rank in range(0, world.size, every)]


class _StoreView:
    """The keys of a store that begin with ``prefix``, with a shorter timeout if ``limit_s`` is given."""

    def __init__(self, store: Any, prefix: str = "", *, limit_s: float | None = None) -> None:
        self._store, self._prefix = store, prefix
        limit = None if limit_s is None else dt.timedelta(seconds=limit_s)
        self.timeout = limit or getattr(store, "timeout", None)

    def set(self, key: str, value: str) -> None:
        self._store.set(self._prefix + key, value)

    def get(self, key: str) -> bytes:
        value: bytes = self._store.get(self._prefix + key)
        return value

    def check(self, keys: list[str]) -> bool:
        return bool(self._store.check([self._prefix + key for key in keys]))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _find_source_address(host: str) -> str | None:
    """Return the source address of the route to a host, without sending a packet; None if there is no route."""
    try:
        family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            found: str = probe.getsockname()[0]
    except OSError:
        return None
    return found
