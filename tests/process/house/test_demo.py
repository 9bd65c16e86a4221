# SPDX-License-Identifier: Apache-2.0
"""The demo, small: real torchrun, real sockets, and the origin's own counts.

The two ranks exchange nothing: each may request every sample once from the origin. Torch's own `DistributedSampler`
determines the samples, so the sums are exact, except for the hedges that the loader reports.
"""

from __future__ import annotations

import json
import os
import pathlib
import select
import signal
import subprocess
import sys
from typing import Any

import pyarrow.ipc
import pytest
import torch
from support.processes import child
from support.servers import ACCESS, SECRET, Bucket
from support.waiting import WATCHDOG

ROOT = pathlib.Path(__file__).resolve().parents[3]
DEMO = ROOT / "examples" / "demo"

SAMPLES, EPOCHS, RANKS, BATCH = 96, 2, 2, 8
# Second attempts may have 5 % of the bytes, in whole samples.
HEDGED = 1.1
SMALL = ("--samples", str(SAMPLES), "--batch", str(BATCH), "--workers", "1", "--ranks", str(RANKS))
QUICK = ("--requests-per-s", "0", "--bytes-per-s", "0", "--latency-ms", "1")


def places(tmp_path: pathlib.Path) -> tuple[str, ...]:
    """Return the options for images and run folders below ``tmp_path``."""
    return ("--data", str(tmp_path / "data"), "--runs", str(tmp_path / "runs"))


def start(tmp_path: pathlib.Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the demo as a user does."""
    return subprocess.Popen(
        [sys.executable, str(DEMO / "run.py"), *SMALL, *places(tmp_path), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


#: The demo with a torchrun whose processes are forked: each import of torch takes seconds of a core.
WARM = f"""
    import sys
    from support.warm import torchrun_from_a_copy
    sys.path.insert(0, {str(DEMO)!r})
    import run
    torchrun = torchrun_from_a_copy()
    rank = run.HERE / "train.py"

    def start(command, environment):
        # Without the interpreter and torchrun's module, and with the rank as a module.
        at = command.index(str(rank))
        return torchrun([*command[3:at], "-m", "train", *command[at + 1 :]], environment)

    run.start = start
    sys.exit(run.main())
"""


def run(tmp_path: pathlib.Path, *arguments: str, **variables: str) -> dict[str, Any]:
    """Run the demo, which must succeed; returns its JSON."""
    words = (*SMALL, *places(tmp_path), "--json", *arguments)
    with child(WARM, *words, env=variables, warm=True) as demo:
        status, out, err = demo.end()
    assert status == 0, err
    result: dict[str, Any] = json.loads(out)
    assert "expected duration" in err.splitlines()[0]
    assert "identical bit for bit" in err
    return result


def ranks_of(result: dict[str, Any], loader: str) -> list[dict[str, Any]]:
    folder = pathlib.Path(result["run_folder"]) / loader
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]


def losses(ranks: list[dict[str, Any]]) -> list[list[list[str]]]:
    return [[epoch["losses"] for epoch in rank["epochs"]] for rank in ranks]


def test_both_loaders_train_alike_and_the_origin_counts_the_expected_reads(tmp_path: pathlib.Path) -> None:
    result = run(tmp_path, "--epochs", str(EPOCHS), *QUICK)
    stock, ours = ranks_of(result, "torch"), ranks_of(result, "foresee")

    assert result["identical"] is True
    assert losses(stock) == losses(ours)
    steps = SAMPLES // RANKS // BATCH
    assert [[len(epoch) for epoch in rank] for rank in losses(ours)] == [[steps] * EPOCHS] * RANKS

    # Samples are in the order of their keys.
    sizes = [path.stat().st_size for path in sorted((tmp_path / "data").glob("pictures-*/*/*.jpg"))]
    assert len(sizes) == SAMPLES
    counted = [epoch["origin"] for epoch in stock[0]["epochs"]]
    assert counted == [{"requests": SAMPLES, "listings": 0, "bytes": sum(sizes)}] * EPOCHS
    assert stock[0]["listing"]["origin"] == {"requests": 1, "listings": 1, "bytes": 0}

    # The ranks share the cache of their node, which reads each sample once; hedges read some twice.
    needed = set().union(*(samples_of(rank) for rank in range(RANKS)))
    total = sum(sizes[sample] for sample in needed)
    counted = [epoch["origin"] for epoch in ours[0]["epochs"]]
    reads = sum(count["requests"] - count["listings"] for count in counted)
    assert len(needed) <= reads <= HEDGED * len(needed)
    assert total <= sum(count["bytes"] for count in counted) <= HEDGED * total
    # No cache has samples of the first epoch yet.
    assert counted[0]["requests"] - counted[0]["listings"] >= SAMPLES
    assert ours[0]["listing"]["origin"]["requests"] == ours[0]["listing"]["origin"]["listings"]
    assert ours[0]["listing"]["origin"]["bytes"] == 0

    folder = pathlib.Path(result["run_folder"])
    for rank in range(RANKS):
        with pyarrow.ipc.open_stream(folder / "ledger" / f"rank-{rank}.arrow") as ledger:
            assert ledger.read_all().num_rows > 0
    assert json.loads((folder / "stats.json").read_text()).keys() == {"rank-0", "rank-1"}
    assert json.loads((folder / "versions.json").read_text())["torch"] == str(torch.__version__).split("+")[0]
    assert "identical bit for bit" in (folder / "table.txt").read_text()


def samples_of(rank: int) -> set[int]:
    """Return all samples that a rank needs."""
    data: Any = range(SAMPLES)
    sampler: Any = torch.utils.data.DistributedSampler(data, RANKS, rank, shuffle=True, seed=0)
    needed: set[int] = set()
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        needed.update(sampler)
    return needed


def test_a_bucket_with_signatures_gives_the_same_losses_and_reports_missing_counts(
    tmp_path: pathlib.Path, bucket: Bucket
) -> None:
    pictures = tmp_path / "pictures"
    subprocess.run([sys.executable, DEMO / "pictures.py", pictures, "--samples", str(SAMPLES)], check=True)
    bucket.put_folder(pictures)
    result = run(
        tmp_path,
        # The last of several equal options applies.
        *("--origin", bucket.uri, "--epochs", "1", "--ranks", "1"),
        AWS_ENDPOINT_URL=bucket.options["endpoint"],
        AWS_ACCESS_KEY_ID=ACCESS,
        AWS_SECRET_ACCESS_KEY=SECRET,
        AWS_REGION="us-east-1",
        AWS_DEFAULT_REGION="us-east-1",
    )
    assert losses(ranks_of(result, "torch")) == losses(ranks_of(result, "foresee"))
    (stock,), (ours,) = (result["loaders"][name]["epochs"] for name in ("torch", "foresee"))
    assert (stock["requests"], stock["bytes"], stock["counted_by"]) == (None, None, None)
    # Hedges count as requests; they are at most a twentieth of the bytes.
    assert SAMPLES <= ours["requests"] <= SAMPLES * 1.1
    assert ours["counted_by"] == "loader"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_all_processes_of_the_demo_end_with_the_demo(
    tmp_path: pathlib.Path, number: signal.Signals, status: int
) -> None:
    demo = start(tmp_path, "--epochs", "100000", "--ranks", "1", *QUICK)
    assert demo.stderr is not None
    for line in demo.stderr:
        if "epoch 2 of" in line:
            break
    else:
        pytest.fail(f"the demo ended with status {demo.wait()}")
    # The origin, torchrun, a rank and its worker.
    family = descendants(demo.pid)
    assert len(family) >= 4
    handles = [os.pidfd_open(pid) for pid in family]
    demo.send_signal(number)
    try:
        demo.communicate(timeout=WATCHDOG)
        assert demo.returncode == status
        for handle in handles:
            # A pidfd becomes readable when its process ends.
            assert select.select([handle], [], [], WATCHDOG)[0], f"one of {len(family)} processes is left"
    finally:
        for handle in handles:
            os.close(handle)


def descendants(pid: int) -> list[int]:
    """Return all current descendants of ``pid``."""
    found: list[int] = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for process in map(int, (task / "children").read_text().split()):
            found += [process, *descendants(process)]
    return found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--origin", "http://localhost/pictures"), "s3://BUCKET/PREFIX"),
        (("--epochs", "0"), "--epochs is 1 or more (got 0)"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_starts(
    tmp_path: pathlib.Path, arguments: tuple[str, ...], message: str
) -> None:
    demo = start(tmp_path, *arguments)
    _, err = demo.communicate(timeout=WATCHDOG)
    assert demo.returncode == 2
    assert message in err
    assert list(tmp_path.iterdir()) == []
