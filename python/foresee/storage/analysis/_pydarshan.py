# SPDX-License-Identifier: Apache-2.0
"""``python -m foresee.storage.analysis._pydarshan LOG OUT.npz``: a Darshan log's counters as arrays.

It is a program of its own, because PyDarshan's C library ends the process that gives it a damaged log. Errors are
written to stderr, which the parent process reads.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

_COUNTED = ("POSIX", "STDIO")
_TIMES = ("READ", "WRITE", "META")


def main(path: str, output: str) -> int:
    """Read the log, write the arrays."""
    import darshan

    report = darshan.DarshanReport(path, read_all=False)
    modules = list(report.modules)
    np.savez(
        output,
        modules=np.array(modules, dtype=str),
        partial=np.array([name for name in modules if report.modules[name]["partial_flag"]], dtype=str),
        mounts=np.array([mount for mount, _ in report.mounts], dtype=str),
        nprocs=np.array(report.metadata["job"]["nprocs"]),
        **_counters(report, [module for module in _COUNTED if module in modules]),
        **_traced(report, "DXT_POSIX" in modules),
        ids=np.array(list(report.name_records), dtype=np.uint64),
        names=np.array(list(report.name_records.values()), dtype=str),
    )
    return 0


def _counters(report: Any, modules: list[str]) -> dict[str, Any]:
    """Seconds of each file and rank, by module."""
    found: list[str] = []
    parts: dict[str, list[Any]] = {name: [] for name in ("id", "rank", "read", "write", "meta")}
    for module in modules:
        report.mod_read_all_records(module)
        frame = report.records[module].to_df()["fcounters"]
        found += [module] * len(frame)
        for name in ("id", "rank"):
            parts[name].append(frame[name].to_numpy())
        for time in _TIMES:
            parts[time.lower()].append(frame[f"{module}_F_{time}_TIME"].to_numpy())
    arrays = {name: _joined(part, np.float64) for name, part in parts.items() if name not in {"id", "rank"}}
    ids, ranks = _joined(parts["id"], np.uint64), _joined(parts["rank"], np.int64)
    return {**arrays, "id": ids, "rank": ranks, "module": np.array(found, dtype=str)}


def _traced(report: Any, there: bool) -> dict[str, Any]:
    """Each single read and write, of which DXT has the moments."""
    parts: dict[str, list[Any]] = {name: [] for name in ("id", "rank", "write", "start", "end")}
    if there:
        report.mod_read_all_dxt_records("DXT_POSIX")
    for entry in report.records["DXT_POSIX"].to_df() if there else ():
        for write, key in ((False, "read_segments"), (True, "write_segments")):
            frame = entry[key]
            count = len(frame)
            if not count:
                continue
            parts["id"].append(np.full(count, entry["id"], np.uint64))
            parts["rank"].append(np.full(count, entry["rank"], np.int64))
            parts["write"].append(np.full(count, write))
            parts["start"].append(frame["start_time"].to_numpy())
            parts["end"].append(frame["end_time"].to_numpy())
    types = {"id": np.uint64, "rank": np.int64, "write": np.bool_, "start": np.float64, "end": np.float64}
    return {f"dxt_{name}": _joined(part, types[name]) for name, part in parts.items()}


def _joined(parts: list[Any], of: Any) -> Any:
    # Each by itself: identifiers come as signed or unsigned, and NumPy would meet in the middle, at floats.
    return np.concatenate([np.asarray(part).astype(of) for part in parts]) if parts else np.empty(0, of)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
