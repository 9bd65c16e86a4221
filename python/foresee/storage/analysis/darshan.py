# SPDX-License-Identifier: Apache-2.0
"""A Darshan log as a table: seconds of each process by tier and operation.

PyDarshan reads the log in a separate process (``_pydarshan``): its C library ends the process on a damaged log, and
reports errors on stderr only.

The user assigns paths to tiers by prefixes. POSIX and STDIO counters are added, since the library counts each call in
one of them. A file that all ranks opened has one entry for all of them. The reads of each rank are then known if the
log has DXT, or if the job had one process only.
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
from foresee.storage.analysis.table import ClassSeconds, IoTable, build

__all__ = ["find_tier", "read"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_ALL_RANKS = -1
_COUNTED = {"POSIX", "STDIO"}
_SHOWN = 6
_NEGATIVE_MAX = 0.01
"""Share of a process's seconds in a class, or of all processes', up to which negative entries count as 0."""
_LIMITS = (
    "a log has one job: seconds by epoch need a job per epoch, DXT (--between), or a ledger of Foresee",
    "META has stat, seek, sync, open and close; READ adds up over threads and may exceed the run's seconds",
)


def read(
    path: str | os.PathLike[str],
    tiers: Mapping[str, str],
    *,
    between: tuple[float, float] | None = None,
) -> IoTable:
    """Read the table of a log, with a row per process of the job.

    Args:
        path: the log.
        tiers: tiers by prefixes of paths, ``{"/lustre": "gfs", "/local": "lfs"}``; the longest prefix counts.
        between: only reads and writes that began between these seconds of the run, from DXT. DXT has no metadata, so
            its classes are not measured.

    Raises:
        ConfigError: not a log, a damaged log, one without POSIX and STDIO, no tier, or no file in a tier.
        PackageMissing: PyDarshan is not installed.
        OSError: the file cannot be read.
    """
    shown = os.fspath(path)
    _check(tiers, between)
    log = _load(shown)
    if not tiers:
        raise ConfigError(
            f"{shown}: assign its files to tiers with --tier gfs=PREFIX and --tier lfs=PREFIX; "
            f"it has {_places(log)}"
        )
    file_tiers = {
        int(key): find_tier(name, tiers) for key, name in zip(log["ids"], log["names"].tolist(), strict=True)
    }
    totals = _LogTotals()
    if between is None:
        _add_counters(log, file_tiers, totals)
    else:
        if not len(log["dxt_id"]):
            raise ConfigError(
                f"{shown}: no DXT in this log, so the times of its reads are unknown; leave --between out"
            )
        _add_traced(log, file_tiers, totals, between)
        totals.shared.update({f"{tier}-META": 0.0 for tier in set(file_tiers.values()) if tier})
    if not totals.spent and not any(totals.shared.values()):
        raise ConfigError(f"{shown}: no I/O below {', '.join(tiers)}; it has {_places(log)}")
    processes = [f"rank {rank}" for rank in range(int(log["nprocs"]))]
    unknown = totals.unknown()
    limits = _limits(log, totals, between) + totals.negative_limits(unknown)
    return build(totals.spent, processes, unassigned=totals.shared, unknown=unknown, limits=limits)


def find_tier(path: str, tiers: Mapping[str, str]) -> str | None:
    """Return the tier of a path in capitals, by the longest prefix; None if no prefix matches.

    >>> find_tier("/local/a/b", {"/": "gfs", "/local": "lfs"}), find_tier("/localized", {"/local": "lfs"})
    ('LFS', None)
    """
    matching = [prefix for prefix in tiers if f"{path}/".startswith(prefix.rstrip("/") + "/")]
    return tiers[max(matching, key=lambda prefix: len(prefix.rstrip("/")))].upper() if matching else None


def _check(tiers: Mapping[str, str], between: tuple[float, float] | None) -> None:
    faults = [
        f"--tier {name}={prefix}: a name of letters and digits, and a path that begins with / expected"
        for prefix, name in tiers.items()
        if not _NAME.fullmatch(name) or not prefix.startswith("/")
    ]
    if between is not None and not 0 <= between[0] < between[1]:
        faults.append(
            f"--between {between[0]:g} {between[1]:g}: seconds of the run in ascending order expected"
        )
    if faults:
        raise ConfigError(faults)


def _load(path: str) -> dict[str, Any]:
    """Read the log's arrays in a separate process, which receives the open file and cannot change it."""
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
            errors="replace",  # for a damaged log, messages may contain bytes that are no text
            check=False,
        )
        lines = child.stderr.strip().splitlines()
        errors = [line for line in lines if line.startswith("Error:")]
        if errors or child.returncode != 0:
            reason = [*errors, *lines[-1:], f"its reader ended with {child.returncode}"][0]
            reason = reason.removeprefix("Error: ")
            raise ConfigError(f"{path}: not a Darshan log, or a truncated or damaged one: {reason}")
        with np.load(arrays) as loaded:
            log: dict[str, Any] = dict(loaded)
    if not log["modules"].size or not _COUNTED & set(log["modules"].tolist()):
        has = ", ".join(log["modules"].tolist()) or "no module"
        raise ConfigError(
            f"{path}: neither POSIX nor STDIO in this log, which has {has}; trace with one of them"
        )
    return log


@dataclass
class _LogTotals:
    """Sums of the entries of a log."""

    spent: ClassSeconds = field(default_factory=lambda: defaultdict(float))
    """Seconds by process and class, 0 or more."""
    shared: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by class of files with one entry for all ranks, >= 0."""
    below_zero: ClassSeconds = field(default_factory=lambda: defaultdict(float))
    """Sum of negative entries, by process ("" for all ranks) and class."""
    negative_count: int = 0
    left_out: int = 0
    """Entries of files outside all tiers."""
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
        """Return the processes and classes whose negative entries are too large to be left out."""
        return {
            (process, name)
            for (process, name), seconds in self.below_zero.items()
            if -seconds > _NEGATIVE_MAX * (self.spent[process, name] if process else self.shared[name])
        }

    def negative_limits(self, unknown: set[tuple[str, str]]) -> list[str]:
        """Return the limits that negative entries set."""
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


def _add_counters(log: dict[str, Any], file_tiers: Mapping[int, str | None], totals: _LogTotals) -> None:
    """Add the counters of POSIX and STDIO; for a file of all ranks, the reads and writes that DXT has."""
    traced = {int(key) for key in np.unique(log["dxt_id"])}
    has_one_process = int(log["nprocs"]) == 1
    from_dxt: set[int] = set()
    rows = zip(
        *(log[name].tolist() for name in ("module", "id", "rank", "read", "write", "meta")), strict=True
    )
    for module, key, entry_rank, read_, write, meta in rows:
        tier = file_tiers.get(key)
        if tier is None:
            totals.left_out += 1
            totals.left_out_seconds += max(read_, 0.0) + max(write, 0.0) + max(meta, 0.0)
            continue
        rank = 0 if has_one_process and entry_rank == _ALL_RANKS else entry_rank
        for op, seconds in (("READ", read_), ("WRITE", write), ("META", meta)):
            if seconds == 0 and (op == "WRITE" or rank == _ALL_RANKS):
                continue  # nothing to divide between ranks
            if rank == _ALL_RANKS and op != "META" and module == "POSIX" and key in traced:
                from_dxt.add(key)
            else:
                totals.add(rank, f"{tier}-{op}", seconds)
    if from_dxt:
        _add_traced(log, {key: file_tiers[key] for key in from_dxt}, totals, None)


def _add_traced(
    log: dict[str, Any],
    file_tiers: Mapping[int, str | None],
    totals: _LogTotals,
    between: tuple[float, float] | None,
) -> None:
    """Add the single reads and writes of DXT."""
    chosen = np.ones(len(log["dxt_id"]), dtype=bool)
    if between is not None:
        chosen = (log["dxt_start"] >= between[0]) & (log["dxt_start"] < between[1])
    seconds = log["dxt_end"] - log["dxt_start"]
    columns = (log[name][chosen].tolist() for name in ("dxt_id", "dxt_rank", "dxt_write"))
    for key, rank, write, time in zip(*columns, seconds[chosen].tolist(), strict=True):
        if tier := file_tiers.get(key):
            totals.add(rank, f"{tier}-{'WRITE' if write else 'READ'}", time)


def _limits(log: dict[str, Any], totals: _LogTotals, between: tuple[float, float] | None) -> list[str]:
    limits = list(_LIMITS)
    partial = log["partial"].tolist()
    if partial:
        limits.append(
            f"{', '.join(partial)}: the log is marked as partial, so files are missing (raise MAX_RECORDS and MODMEM)"
        )
    if between is not None:
        limits.append("DXT has reads and writes only: metadata between two moments is not measured")
    elif totals.shared:
        limits.append(
            f"{', '.join(sorted(totals.shared))}: files that all ranks opened have one entry for all of them, so the "
            "seconds of each process are not measured"
        )
    if totals.left_out:
        entries = "1 entry" if totals.left_out == 1 else f"{totals.left_out:,} entries"
        limits.append(f"{entries} of files outside all --tier left out, {totals.left_out_seconds:,.3f} s")
    return limits


def _places(log: dict[str, Any]) -> str:
    """Describe the places of the log's files, most seconds first: by mount, else by first folder."""
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
