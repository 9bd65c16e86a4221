#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check Foresee on a host with a GPU: copies, gradients, mixed precision, and loading next to computing.

Needs this checkout, torch, numpy, and foresee: its wheel, or ``PYTHONPATH=python`` with the built extension module. No
network and no build tools. Takes less than five minutes. ``--device cpu`` runs all parts without a GPU, except
page-locked memory and streams, which the table reports.

Exit status: 0 all parts passed, 1 one failed, 3 the device or a package is missing.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import os
import secrets
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "tests")]
try:
    import gpu_ranks
    import numpy as np
    import torch
    from support.tensors import assert_same_bits

    import foresee
    import foresee.torch as ft
except ImportError as error:
    print(f"gpu_check: {error}; install torch, numpy and the wheel of foresee", file=sys.stderr)
    raise SystemExit(3) from error

_RANKS_SECONDS = 240
_ROWS, _WIDTH, _BATCH = 4096, 256, 64
_SIDE_STREAMS = 3


@dataclass
class Part:
    """One line of the table."""

    name: str
    passed: bool
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


def main(arguments: list[str] | None = None) -> int:
    """Run the parts, and write the table."""
    parser = argparse.ArgumentParser(description="check Foresee on a GPU")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="seconds of loading next to computing (10)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.add_argument("--output", metavar="FILE", help="write the table, as Markdown, there too")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "gpu_check: torch sees no CUDA device; --device cpu runs the parts without one", file=sys.stderr
        )
        return 3
    gpu_ranks.prepare(options.device)
    with tempfile.TemporaryDirectory(prefix="foresee-gpu-") as name:
        folder = Path(name)
        parts = [run("copies in side streams", lambda: copies(options.device, folder))]
        parts += trainings(options.device, folder)
        parts.append(
            run(
                "loader next to compute",
                lambda: load_while_computing(options.device, folder, options.seconds),
            )
        )
    facts = {**machine(options.device), "parts": [asdict(part) for part in parts]}
    text = table(facts)
    if options.output is not None:
        Path(options.output).write_text(text, encoding="utf-8")
    print(json.dumps(facts) if options.json else text, end="" if not options.json else "\n")
    return 0 if all(part.passed for part in parts) else 1


def run(name: str, body: Callable[[], dict[str, Any]]) -> Part:
    """Run one part; print an error to stderr, and return it as a line of the table."""
    begun = time.monotonic()
    try:
        figures = body()
    except Exception as error:  # noqa: BLE001 - any failure is a line of the table
        traceback.print_exc()
        return Part(name, False, time.monotonic() - begun, error=f"{type(error).__name__}: {error}")
    return Part(name, True, time.monotonic() - begun, figures)


def copies(device: str, folder: Path) -> dict[str, Any]:
    """Check that batches in page-locked memory, copied asynchronously in side streams, have the bits of the data."""
    rows = numbers(folder)
    is_cuda = device == "cuda"
    checked, in_flight = 0, []
    for threads in (0, 2):
        loader = ft.DataLoader(
            ft.ArrayDataset(folder / "rows.npy", transform=torch.clone if threads else None),
            _BATCH,
            shuffle=True,
            seed=3,
            pin_memory=is_cuda,
            transform_threads=threads,
        )
        streams = [torch.cuda.Stream() for _ in range(_SIDE_STREAMS)] if is_cuda else [None]
        assert loader.sampler is not None, "a seeded order has a sampler"
        order = list(loader.sampler)
        for step, batch in enumerate(loader):
            if is_cuda and not batch.is_pinned():
                raise AssertionError(f"batch {step} is not in page-locked memory")
            stream = streams[step % len(streams)]
            if stream is None:
                copied = batch.to(device, non_blocking=True).clone()
            else:
                with torch.cuda.stream(stream):
                    copied = batch.to(device, non_blocking=True) * 1
                # As torch's documentation requires for memory that another stream uses.
                copied.record_stream(torch.cuda.current_stream())
            in_flight.append((stream, copied, order[step * _BATCH : (step + 1) * _BATCH]))
            del batch
            if len(in_flight) > _SIDE_STREAMS:
                checked += compare(*in_flight.pop(0), rows)
        while in_flight:
            checked += compare(*in_flight.pop(0), rows)
        loader.close()
    return {"samples": checked, "pinned": is_cuda, "streams": _SIDE_STREAMS if is_cuda else 0}


def numbers(folder: Path) -> Any:
    """Return rows of random bits, which are in a file too."""
    path = folder / "rows.npy"
    if not path.exists():
        np.save(path, np.random.default_rng(0).standard_normal((_ROWS, _WIDTH), dtype=np.float32))
    return torch.from_numpy(np.load(path))


def compare(stream: Any, copied: Any, ids: list[int], rows: Any) -> int:
    """Compare a batch on the device with its rows, bit by bit."""
    if stream is not None:
        stream.synchronize()
    if not torch.equal(copied.cpu().view(torch.int32), rows[ids].view(torch.int32)):
        raise AssertionError(f"samples {ids[0]}, ... differ from the data")
    return len(ids)


def trainings(device: str, folder: Path) -> list[Part]:
    """Check that two ranks on one device train to the bits of one process: a part for each training."""
    ranks = run("two ranks on one device", lambda: ranks_of(device, folder))
    if not ranks.passed:
        return [ranks]
    expected: dict[str, Any] = {}
    reference = run("reference in one process", lambda: expected.update(gpu_ranks.references(device)) or {})

    def check(name: str) -> dict[str, Any]:
        states = [
            torch.load(folder / f"{name}.{rank}.pt", weights_only=True) for rank in range(gpu_ranks.WORLD)
        ]
        for rank, state in enumerate(states):
            assert_same_bits(state, expected[name], f"rank {rank}")
        figures: dict[str, Any] = {"tensors": len(states[0]["model"])}
        return figures | ({"scale": states[0]["scaler"]["scale"]} if "scaler" in states[0] else {})

    names = {
        "as_one_node": "gradients, ranks averaged first",
        "each_by_itself": "gradients, each rank by itself",
        "amp": "autocast with GradScaler",
    }
    return [ranks, reference, *(run(text, partial(check, name)) for name, text in names.items())]


def ranks_of(device: str, folder: Path) -> dict[str, Any]:
    """Run the rank processes to their end."""
    shared = {
        "WORLD_SIZE": str(gpu_ranks.WORLD),
        "LOCAL_WORLD_SIZE": str(gpu_ranks.WORLD),
        "FORESEE_ADDRESS": "127.0.0.1",
        "FORESEE_JOB": f"gpu-check-{os.getpid()}",
        "FORESEE_TOKEN": secrets.token_hex(16),
    }
    command = [sys.executable, str(_HERE / "gpu_ranks.py"), str(folder), device]
    processes = [
        start(command, {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(gpu_ranks.WORLD)
    ]
    failed = []
    try:
        for rank, process in enumerate(processes):
            _, errors = process.communicate(timeout=_RANKS_SECONDS)
            if process.returncode:
                failed.append(f"rank {rank} ended with {process.returncode}:\n{errors}")
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    if failed:
        raise RuntimeError("\n".join(failed))
    return {"ranks": gpu_ranks.WORLD}


def start(command: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    """Start a rank."""
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def load_while_computing(device: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Load while the device computes, and measure the loop's wait for data."""
    numbers(folder)
    loader = ft.DataLoader(
        ft.ArrayDataset(folder / "rows.npy"), _BATCH, shuffle=True, seed=5, pin_memory=device == "cuda"
    )
    weight = torch.randn(_WIDTH, _WIDTH, device=device) / _WIDTH**0.5
    measured = ft.measure(loader)
    steps, begun = 0, time.monotonic()
    while time.monotonic() - begun < seconds:
        for batch in measured:
            x = batch.to(device, non_blocking=True)
            for _ in range(8):
                x = torch.tanh(x @ weight)
            if not math.isfinite(float(x.sum())):
                raise AssertionError(f"step {steps} has no finite sum")
            steps += 1
            if time.monotonic() - begun >= seconds:
                break
    stats, waits = measured.stats(), loader.stats()["waits"]
    loader.close()
    wait, compute = stats["wait_seconds"], stats["compute_seconds"]
    causes = {cause: each["seconds"] for cause, each in waits.items() if each is not None}
    longest = max(causes, key=lambda cause: causes[cause])
    return {
        "steps": steps,
        "wait_us_per_step": round(wait * 1e6, 1),
        "compute_us_per_step": round(compute * 1e6, 1),
        "wait_pct": round(100 * wait / (wait + compute), 2),
        "longest_wait": longest,
    }


def machine(device: str) -> dict[str, Any]:
    """Return date, card and versions."""
    card, driver = None, None
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        card = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        driver = torch.version.cuda
    return {
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "device": device,
        "card": card,
        "cuda": driver,
        "torch": torch.__version__,
        "foresee": foresee.__version__,
        "cores": os.cpu_count(),
    }


def table(facts: dict[str, Any]) -> str:
    """Return the facts as a table in Markdown."""
    card = facts["card"] or "no GPU: page-locked memory and streams were not checked"
    cuda = "" if facts["cuda"] is None else f", CUDA {facts['cuda']}"
    lines = [
        f"{facts['date']}, {card}{cuda}, torch {facts['torch']}, foresee {facts['foresee']}, {facts['cores']} cores",
        "",
        "| part | result | seconds | figures |",
        "|---|---|---|---|",
    ]
    for part in facts["parts"]:
        figures = ", ".join(f"{name} {value}" for name, value in part["figures"].items())
        error = "" if part["error"] is None else part["error"].splitlines()[0].replace("|", "/")
        result = "passed" if part["passed"] else "FAILED"
        lines.append(f"| {part['name']} | {result} | {part['seconds']:.1f} | {figures or error} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
