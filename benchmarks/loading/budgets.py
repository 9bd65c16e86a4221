#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Disk usage of a disk cache, reads after an object has changed, and memory of a listing.

No acceptance line of PROTOCOL.md uses these values. Prints a table; ``--json`` prints one object.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import foresee

FILES, FILE_BYTES, BATCH = 600, 20_000, 20
#: One data set fits into the cache, two do not.
DISK_SIZE = FILES * FILE_BYTES * 13 // 10
#: Seconds of a step, and seconds in which the last copies reach the disk.
STEP_S, SETTLE_S = 0.005, 0.3
POLL_S = 0.02
LISTED_FOLDERS, LISTED_FILES = 100, 2000


def write(folder: Path, seed: int) -> Path:
    """Write a data set of one class, with other bytes for each ``seed``."""
    (folder / "c").mkdir(parents=True)
    for i in range(FILES):
        (folder / "c" / f"{i:04}.bin").write_bytes(bytes([seed, i % 256]) * (FILE_BYTES // 2))
    return folder


def used(directory: Path) -> float:
    """Return the disk usage below ``directory`` as a share of ``disk_size``."""
    blocks = 0
    for path in (directory, *directory.rglob("*")):
        try:
            blocks += path.lstat().st_blocks
        except FileNotFoundError:
            continue  # evicted concurrently
    return blocks * 512 / DISK_SIZE


def run(data: Path, cache: Path) -> int:
    """Read ``data`` once through a disk cache; return how many samples came from the origin."""
    budget = foresee.Cache(ram=0, disk=cache, disk_size=DISK_SIZE)
    with foresee.Loader(data, batch_size=BATCH, cache=budget, epochs=1) as loader:
        for _ in loader:
            time.sleep(STEP_S)
        time.sleep(SETTLE_S)
        read = loader.stats()["operations"]["origin"]["read"]["ok"]
        return 0 if read is None else read["samples"]


def disk(home: Path) -> dict[str, float]:
    """Measure disk usage after changes and other data sets, and the maximum while three runs share the cache."""
    data, cache = write(home / "data", 255), home / "cache"
    run(data, cache)
    reads, after_changes = 0, 0.0
    for version in range(4):
        (data / "c" / "0007.bin").write_bytes(bytes([9, version]) * (FILE_BYTES // 2))
        reads = max(reads, run(data, cache))
        after_changes = max(after_changes, used(cache))
    after_others = 0.0
    others = [write(home / f"other-{seed}", seed) for seed in range(4)]
    for other in others:
        run(other, cache)
        after_others = max(after_others, used(cache))
    shared, at_once = home / "shared", 0.0
    runs = [subprocess.Popen([sys.executable, __file__, "--run", data, shared]) for data in others[:3]]
    while any(process.poll() is None for process in runs):
        if shared.exists():
            at_once = max(at_once, used(shared))
        time.sleep(POLL_S)
    return {
        "reads after one change": reads,
        "disk after four changes, of disk_size": after_changes,
        "disk after four other data sets, of disk_size": after_others,
        "disk while three runs use it, at most, of disk_size": at_once,
    }


def listing(folder: Path) -> dict[str, float]:
    """Return the resident memory of this process for a listing of ``folder``, in bytes per file."""

    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    files, before = LISTED_FOLDERS * LISTED_FILES, resident()
    index = foresee.Index.build(str(folder), layout="folder")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    after = resident()
    assert len(index) == files
    return {
        "memory during a listing, at most, bytes per file": (most - before) / files,
        "memory after a listing, index included, bytes per file": (after - before) / files,
    }


def main() -> int:
    """Run all parts; process-wide values are measured in separate processes."""
    parser = argparse.ArgumentParser(description="Disk usage of a disk cache, and memory of a listing.")
    parser.add_argument("--json", action="store_true", help="one object")
    parser.add_argument("--run", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--list", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        run(*args.run)
        return 0
    if args.list:
        print(json.dumps(listing(args.list)))
        return 0
    with tempfile.TemporaryDirectory(prefix="foresee-bench-") as home:
        results = disk(Path(home))
        many = Path(home) / "many"
        for nth in range(LISTED_FOLDERS):
            (many / f"class-{nth:03}").mkdir(parents=True)
            for i in range(LISTED_FILES):
                (many / f"class-{nth:03}" / f"sample-{i:06}.jpg").touch()
        listed = subprocess.check_output([sys.executable, __file__, "--list", many], text=True)
        results.update(json.loads(listed))
    if args.json:
        print(json.dumps(results))
    else:
        print("| measure | value |\n|---|---|")
        for name, value in results.items():
            print(f"| {name} | {value:.3g} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
