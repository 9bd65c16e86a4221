# SPDX-License-Identifier: Apache-2.0
"""A Darshan log as a table: whose files lie where, and what each process spent on them.

The log is read by PyDarshan in a process of its own (``_pydarshan``): its C library ends the process that gives it a
damaged log, and reports what it could not read on stderr only. Here its arrays become seconds by process and class.

Which tier a path belongs to is the user's to say, by prefixes. POSIX and STDIO counters are added, since the library
counts each call in one of them. A file that all ranks opened has one entry for all of them. The reads of each rank are
then known if the log has DXT, or if the job had one process only.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foresee.errors import ConfigError, PackageMissing
from foresee.storage.analysis.table import IoTable, Spent, build

__all__ = ["read", "tier_of"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_ALL_RANKS = -1
_COUNTED = {"POSIX", "STDIO"}
_SHOWN = 6
_NEGATIVE_MAX = 0.01
"""Share of a process's seconds in a class, or of all processes', up to which negative entries count as 0."""
_LIMITS = (
    "a log is of one job: figures by epoch need a job per epoch, DXT (--between), or a ledger of ours",
    "META has stat, seek, sync, open and close; READ adds up over threads and may exceed the run's seconds",
)


def read(
    path: str | os.PathLike[str],
    tiers: Mapping[str, str],
    *,
    between: tuple[float, float] | None = None,
) -> IoTable:
    """The table of a log: a row per process of the job.

    Args:
        path: the log.
        tiers: from prefixes of paths to tiers, ``{"/lustre": "gfs", "/local": "lfs"}``; the longest prefix counts.
        between: only reads and writes that began between these seconds of the run, which DXT tells; metadata it does
            not, so those classes are not measured.

    Raises:
        ConfigError: not a log, a damaged one, without POSIX and STDIO, no tier given, or none that has a file.
        PackageMissing: PyDarshan is not installed.
        OSError: the file cannot be read.
    """
    shown = os.fspath(path)
    _check(tiers, between)
    log = _load(shown)
    if not tiers:
        raise ConfigError(
            f"{shown}: which of its files lie where? Give --tier gfs=PREFIX and --tier lfs=PREFIX; "
            f"it has {_places(log)}"
        )
    where = {
        int(key): tier_of(name, tiers) for key, name in zip(log["ids"], log["names"].tolist(), strict=True)
    }
    found = _Found()
    if between is None:
        _counters(log, where, found)
    else:
        if not len(log["dxt_id"]):
            raise ConfigError(
                f"{shown}: no DXT in this log, so nothing tells when its reads were; leave --between out"
            )
        _traced(log, where, found, between)
        found.shared.update({f"{tier}-META": 0.0 for tier in set(where.values()) if tier})
    if not found.spent and not any(found.shared.values()):
        given = ", ".join(tiers)
        raise ConfigError(f"{shown}: no I/O below {given}; it has {_places(log)}")
    processes = [f"rank {rank}" for rank in range(int(log["nprocs"]))]
    limits = _limits(log, found, between)
    unknown = found.unknown()
    limits += found.negatives(unknown)
    return build(found.spent, processes, untold=found.shared, unknown=unknown, limits=limits)


def tier_of(path: str, tiers: Mapping[str, str]) -> str | None:
    """The tier of a path, in capitals: that of the longest prefix; None where none fits.

    >>> tier_of("/local/a/b", {"/": "gfs", "/local": "lfs"}), tier_of("/localized", {"/local": "lfs"})
    ('LFS', None)
    """
    best = None
    for prefix in tiers:
        bare = prefix.rstrip("/")
        if (path == bare or path.startswith(bare + "/")) and (
            best is None or len(bare) > len(best.rstrip("/"))
        ):
            best = prefix
    return None if best is None else tiers[best].upper()


def _check(tiers: Mapping[str, str], between: tuple[float, float] | None) -> None:
    faults = [
        f"--tier {name}={prefix}: a name of letters and digits, and a path that begins with / expected"
        for prefix, name in tiers.items()
        if not _NAME.fullmatch(name) or not prefix.startswith("/")
    ]
    if between is not None and not 0 <= between[0] < between[1]:
        faults.append(
            f"--between {between[0]:g} {between[1]:g}: seconds of the run, the first one less, expected"
        )
    if faults:
        raise ConfigError(faults)


def _load(path: str) -> dict[str, Any]:
    """The log's arrays, read by a process of its own, which gets the file open so that it cannot touch it."""
    if importlib.util.find_spec("darshan") is None:
        raise PackageMissing("Darshan logs are read with PyDarshan; install darshan, or foresee[darshan]")
    with open(path, "rb") as file, tempfile.TemporaryDirectory() as folder:
        arrays = os.path.join(folder, "log.npz")
        command = [sys.executable, "-W", "ignore", "-m", "foresee.storage.analysis._pydarshan"]
        child = subprocess.run(
            [*command, f"/dev/fd/{file.fileno()}", arrays],
            pass_fds=[file.fileno()],
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # of a damaged log the library may say bytes that are no text
            check=False,
        )
        said = [line for line in child.stderr.splitlines() if line.startswith("Error:")]
        if said or child.returncode != 0:
            why = said[0].removeprefix("Error: ") if said else _last(child)
            raise ConfigError(f"{path}: not a Darshan log, or a truncated or damaged one: {why}")
        with np.load(arrays) as loaded:
            log: dict[str, Any] = dict(loaded)
    if not log["modules"].size or not _COUNTED & set(log["modules"].tolist()):
        has = ", ".join(log["modules"].tolist()) or "no module"
        raise ConfigError(
            f"{path}: neither POSIX nor STDIO in this log, which has {has}; trace with one of them"
        )
    return log


def _last(child: subprocess.CompletedProcess[str]) -> str:
    lines = child.stderr.strip().splitlines()
    return lines[-1] if lines else f"its reader ended with {child.returncode}"


@dataclass
class _Found:
    """Sums of the entries of a log."""

    spent: Spent = field(default_factory=lambda: defaultdict(float))
    """Seconds by process and class, 0 or more."""
    shared: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by class of files with one entry for all ranks, 0 or more."""
    below_zero: Spent = field(default_factory=lambda: defaultdict(float))
    """Sum of negative entries, by process ("" for all ranks) and class."""
    negative_count: int = 0
    left_out: int = 0
    """Entries of files below no given tier."""
    left_out_seconds: float = 0.0

    def add(self, rank: int, name: str, seconds: float) -> None:
        """Add one entry of a class."""
        process = "" if rank == _ALL_RANKS else f"rank {rank}"
        if seconds < 0:
            self.below_zero[process, name] += seconds
            self.negative_count += 1
        if process:
            self.spent[process, name] += max(seconds, 0.0)
        else:
            self.shared[name] += max(seconds, 0.0)

    def unknown(self) -> set[tuple[str, str]]:
        """Processes and classes whose negative entries are too much of their seconds to be left out."""
        return {
            (process, name)
            for (process, name), seconds in self.below_zero.items()
            if -seconds > _NEGATIVE_MAX * (self.spent[process, name] if process else self.shared[name])
        }

    def negatives(self, unknown: set[tuple[str, str]]) -> list[str]:
        """The limits that negative entries set; none if there are no such entries."""
        if not self.negative_count:
            return []
        total = sum(self.below_zero.values())
        count = f"{self.negative_count:,} negative times, {total:,.4g} s in sum, count as 0"
        lines = [f"the clock of the log went backwards: {count}"]
        if unknown:
            names = ", ".join(
                f"{name} of {process}" if process else name for process, name in sorted(unknown)[:_SHOWN]
            )
            more = f" and {len(unknown) - _SHOWN:,} more" if len(unknown) > _SHOWN else ""
            lines.append(
                f"{names}{more}: negative times are above {_NEGATIVE_MAX:.0%} of the seconds, so these are not "
                "measured; their sums hold the other entries only"
            )
        return lines


def _counters(log: dict[str, Any], where: Mapping[int, str | None], found: _Found) -> None:
    """Sums of the counters of POSIX and STDIO. Of a file of all ranks, reads and writes may stand in DXT."""
    traced = {int(key) for key in np.unique(log["dxt_id"])}
    alone = int(log["nprocs"]) == 1
    from_dxt: set[int] = set()
    rows = zip(
        *(log[name].tolist() for name in ("module", "id", "rank", "read", "write", "meta")), strict=True
    )
    for module, key, entry_rank, read_, write, meta in rows:
        tier = where.get(key)
        if tier is None:
            found.left_out += 1
            found.left_out_seconds += max(read_, 0.0) + max(write, 0.0) + max(meta, 0.0)
            continue
        rank = 0 if alone and entry_rank == _ALL_RANKS else entry_rank
        for op, seconds in (("READ", read_), ("WRITE", write), ("META", meta)):
            if seconds == 0 and (op == "WRITE" or rank == _ALL_RANKS):
                continue  # nothing to divide between ranks
            if rank == _ALL_RANKS and op != "META" and module == "POSIX" and key in traced:
                from_dxt.add(key)
            else:
                found.add(rank, f"{tier}-{op}", seconds)
    if from_dxt:
        _traced(log, {key: where[key] for key in from_dxt}, found, None)


def _traced(
    log: dict[str, Any],
    where: Mapping[int, str | None],
    found: _Found,
    between: tuple[float, float] | None,
) -> None:
    """Sums of DXT's single reads and writes."""
    chosen = np.ones(len(log["dxt_id"]), dtype=bool)
    if between is not None:
        chosen = (log["dxt_start"] >= between[0]) & (log["dxt_start"] < between[1])
    seconds = log["dxt_end"] - log["dxt_start"]
    columns = (log[name][chosen].tolist() for name in ("dxt_id", "dxt_rank", "dxt_write"))
    for key, rank, write, time in zip(*columns, seconds[chosen].tolist(), strict=True):
        if tier := where.get(key):
            found.add(rank, f"{tier}-{'WRITE' if write else 'READ'}", time)


def _limits(log: dict[str, Any], found: _Found, between: tuple[float, float] | None) -> list[str]:
    limits = list(_LIMITS)
    partial = log["partial"].tolist()
    if partial:
        limits.append(
            f"{', '.join(partial)}: the log says that it is partial, so files are missing (raise MAX_RECORDS and "
            "MODMEM)"
        )
    if between is not None:
        limits.append("DXT tells reads and writes only: metadata between two moments is not measured")
    elif found.shared:
        limits.append(
            f"{', '.join(sorted(found.shared))}: files that all ranks opened have one entry for all of them, so what a "
            "process spent there is not measured"
        )
    if found.left_out:
        entries = "1 entry is" if found.left_out == 1 else f"{found.left_out:,} entries are"
        limits.append(f"of files below no --tier {entries} left out, {found.left_out_seconds:,.3f} s")
    return limits


def _places(log: dict[str, Any]) -> str:
    """Return the places of the log's files, most seconds first: by mount, or else by first folder."""
    mounts = [mount.rstrip("/") for mount in log["mounts"].tolist() if mount != "/"]
    names = dict(zip(log["ids"].tolist(), log["names"].tolist(), strict=True))
    seconds: Counter[str] = Counter()
    for key, each in zip(
        log["id"].tolist(),
        sum(np.maximum(log[name], 0.0) for name in ("read", "write", "meta")).tolist(),
        strict=True,
    ):
        name = names.get(key, "")
        fitting = [mount for mount in mounts if name.startswith(mount + "/")]
        seconds[max(fitting, key=len) if fitting else "/" + name.lstrip("/").split("/")[0]] += each
    return (
        ", ".join(f"{time:,.3f} s below {place}" for place, time in seconds.most_common(_SHOWN)) or "no file"
    )
