# SPDX-License-Identifier: Apache-2.0
"""``python -m foresee.storage.analysis._pydarshan LOG OUT.npz``: a Darshan log's counters as arrays.

It is a separate program because PyDarshan's C library ends the process on a damaged log. The parent process reads its
errors on stderr.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

_COUNTED = ("POSIX", "STDIO")
_TIMES = ("READ", "WRITE", "META")


def main(path: str, output: str) -> int:
    """Read the log and write the arrays."""
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
    """Return the seconds of each file and rank, by module."""
    names: list[str] = []
    parts: dict[str, list[Any]] = {name: [] for name in ("id", "rank", "read", "write", "meta")}
    for module in modules:
        report.mod_read_all_records(module)
        frame = report.records[module].to_df()["fcounters"]
        names += [module] * len(frame)
        for name in ("id", "rank"):
            parts[name].append(frame[name].to_numpy())
        for time in _TIMES:
            parts[time.lower()].append(frame[f"{module}_F_{time}_TIME"].to_numpy())
    types = {"id": np.uint64, "rank": np.int64}
    arrays = {name: _join(part, types.get(name, np.float64)) for name, part in parts.items()}
    return {**arrays, "module": np.array(names, dtype=str)}


def _traced(report: Any, has_dxt: bool) -> dict[str, Any]:
    """Return each read and write, whose times DXT has."""
    parts: dict[str, list[Any]] = {name: [] for name in ("id", "rank", "write", "start", "end")}
    if has_dxt:
        report.mod_read_all_dxt_records("DXT_POSIX")
    for entry in report.records["DXT_POSIX"].to_df() if has_dxt else ():
        for write, key in ((False, "read_segments"), (True, "write_segments")):
            if len(frame := entry[key]):
                parts["id"].append(np.full(len(frame), entry["id"], np.uint64))
                parts["rank"].append(np.full(len(frame), entry["rank"], np.int64))
                parts["write"].append(np.full(len(frame), write))
                parts["start"].append(frame["start_time"].to_numpy())
                parts["end"].append(frame["end_time"].to_numpy())
    types = {"id": np.uint64, "rank": np.int64, "write": np.bool_, "start": np.float64, "end": np.float64}
    return {f"dxt_{name}": _join(part, types[name]) for name, part in parts.items()}


def _join(parts: list[Any], dtype: Any) -> Any:
    # Converted before joining: NumPy joins signed and unsigned identifiers as floats.
    return np.concatenate([np.asarray(part).astype(dtype) for part in parts]) if parts else np.empty(0, dtype)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
