# SPDX-License-Identifier: Apache-2.0
"""Time to build a ``FileDataset`` of many rows: from a list, from tables, and with a column of sizes.

``python benchmarks/loading/tables.py [--rows 1000000] [--folder DIR]`` creates files of one byte in 1,000 folders and
prints one JSON object. The files are temporary, or are kept in DIR for the next run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import foresee.torch as ft

FOLDERS = 1000


def main() -> None:
    """Measure and print the seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="files, and rows of the tables")
    parser.add_argument("--folder", help="folder of the files, created if missing")
    options = parser.parse_args()
    place = (
        tempfile.TemporaryDirectory()
        if options.folder is None
        else nullcontext(os.path.abspath(options.folder))
    )
    with place as root:
        print(json.dumps(measure(root, options.rows), indent=2))


def measure(root: str, rows: int) -> dict[str, float]:
    """Return the seconds of each source, and the peak memory of the process in MB."""
    paths = [f"{number * 7919 % FOLDERS:03}/{number:07}.jpg" for number in range(rows)]
    make(root, paths)
    table = pa.table({"path": paths, "label": [path[:3] for path in paths], "bytes": [1] * rows})
    csv, parquet = os.path.join(root, "table.csv"), os.path.join(root, "table.parquet")
    pyarrow.csv.write_csv(table, csv)
    pyarrow.parquet.write_table(table, parquet)
    whole = [os.path.join(root, path) for path in paths]
    sources: dict[str, Callable[[], ft.FileDataset]] = {
        "list": lambda: ft.FileDataset(whole),
        "list_with_sizes": lambda: ft.FileDataset(whole, sizes=[1] * rows),
        "csv": lambda: ft.FileDataset.from_csv(csv),
        "csv_with_sizes": lambda: ft.FileDataset.from_csv(csv, size="bytes"),
        "parquet": lambda: ft.FileDataset.from_parquet(parquet),
        "list_twice": lambda: ft.FileDataset(whole[: rows // 2] * 2),
    }
    seconds = {}
    for name, build in sources.items():
        began = time.perf_counter()
        dataset = build()
        seconds[f"{name}_s"] = round(time.perf_counter() - began, 2)
        assert len(dataset) == rows
        del dataset
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return {"rows": rows, **seconds, "peak_mb": round(peak)}


def make(root: str, paths: list[str]) -> None:
    """Create files of one byte unless they exist."""
    if os.path.exists(os.path.join(root, paths[-1])):
        return
    for folder in range(FOLDERS):
        os.makedirs(os.path.join(root, f"{folder:03}"), exist_ok=True)
    for path in paths:
        with open(os.path.join(root, path), "wb") as file:
            file.write(b"x")


if __name__ == "__main__":
    main()
