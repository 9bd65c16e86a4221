# SPDX-License-Identifier: Apache-2.0
"""``foresee bench storage``: real processes over real files, their results, and interrupts."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pyarrow.ipc
import pytest
from support.bench_places import COUNT, SIZE, empty
from support.house import ROOT
from support.pictures import texts
from support.waiting import WATCHDOG, wait_until

from foresee.cli import main

PAGE = ROOT / "docs" / "formats" / "storage-bench.md"


def rows(folder: str) -> list[dict]:
    """All entries of a run folder."""
    return [
        row
        for path in sorted(pathlib.Path(folder, "ledger").iterdir())
        for row in pyarrow.ipc.open_stream(pa.OSFile(str(path))).read_all().to_pylist()
    ]


def test_every_file_is_opened_read_and_closed_once_per_epoch_with_its_source_in_the_ledger(
    capsys, tmp_path: pathlib.Path, places: list[str]
) -> None:
    arguments = ["bench", "storage", *places, "--rates", "0,0.4,1", "--epochs", "2", "--json"]
    assert main([*arguments, "--what-if", "gfs-meta=+50", "--goal", "3600"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    result = json.loads(out)
    assert empty(tmp_path)
    assert [case["name"] for case in result["cases"]] == ["4096-origin-global", "4096-origin-local"]
    assert result["epoch"] == 1
    for case in result["cases"]:
        assert [at["rate"] for at in case["rates"]] == [0, 0.4, 1]
        assert [at["cached_files"] for at in case["rates"]] == [0, 4, 10]
        assert case["answers"]["goal"]["met"]
        assert case["answers"]["what_if"]["GFS-META"] == 50
        held: set[int] = set()
        for at in case["rates"]:
            entries = rows(at["folder"])
            seen = Counter((row["epoch"], row["op"], row["subject_id"]) for row in entries)
            assert set(seen) == {
                (epoch, op, number)
                for epoch in (0, 1)
                for op in ("open", "read", "close")
                for number in range(COUNT)
            }
            assert set(seen.values()) == {1}
            assert {row["bytes"] for row in entries if row["op"] == "read"} == {SIZE}
            assert {row["bytes"] for row in entries if row["op"] != "read"} == {0}
            assert Counter(row["rank"] for row in entries) == {0: 30, 1: 30}
            cached = {row["subject_id"] for row in entries if row["source"] == "disk"}
            assert len(cached) == at["cached_files"]
            assert held <= cached
            held = cached
            (one,) = [each for each in case["answers"]["tables"] if each["rate"] == at["rate"]]
            assert one["slowest"] == at["epochs"][1]["slowest"]
            assert at["epochs"][1]["seconds"] >= one["slowest"]["seconds"] * 0.999
    page = PAGE.read_text()
    for key in [*result, *result["asked"], *result["cases"][0], *result["cases"][0]["rates"][0]]:
        assert f"`{key}`" in page, f"{PAGE.name} does not describe {key}"
    assert json.loads((tmp_path / "run" / "storage.json").read_text()) == result
    drawn = {
        name: texts(tmp_path / "run" / "4096-origin-local" / name)
        for name in ("bars.svg", "epochs.svg", "epoch-bars.svg")
    }
    for name in drawn:
        assert f"`CASE/{name}`" in page, f"{PAGE.name} does not describe {name}"
    # Two epochs at three rates: the duration and the I/O of the slowest process, and bars with and without the changes.
    assert drawn["epochs.svg"].count("I/O of the slowest process") == 2
    assert [drawn["epoch-bars.svg"].count(f"epoch {epoch}") for epoch in (0, 1, 2)] == [1, 1, 0]
    assert any("faint: with GFS-META +50 %" in text for text in drawn["epoch-bars.svg"])


def test_foresee_analyze_reads_its_run_folders(capsys, tmp_path: pathlib.Path, places: list[str]) -> None:
    more = ["--rates", "0,1", "--epochs", "2", "--shuffle", "global"]
    assert main(["bench", "storage", *places, *more]) == 0
    out = capsys.readouterr().out
    assert "4096-origin-global: 10 files, 0 MB, 2 processes, epoch 1" in out
    assert "names and inodes were not" in out
    command = next(line for line in out.splitlines() if line.startswith("foresee analyze"))
    assert main([*command.split()[1:], "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    result = json.loads((tmp_path / "run" / "storage.json").read_text())
    assert again["tables"] == result["cases"][0]["answers"]["tables"]


def test_a_throttle_slows_the_origin_and_not_the_cache(
    capsys, tmp_path: pathlib.Path, places: list[str]
) -> None:
    more = ["--rates", "0,1", "--epochs", "1", "--shuffle", "local", "--throttle", "slow=200KB/s,100/s"]
    assert main(["bench", "storage", *places, *more, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (case,) = result["cases"]
    assert case["name"] == "4096-slow-local"
    assert case["throttle"] == {"bytes_per_s": 200e3, "opens_per_s": 100.0}
    # All processes share both limits.
    first, last = case["rates"]
    assert first["epochs"][0]["seconds"] >= COUNT * SIZE / 200e3
    assert sum(case["answers"]["tables"][0]["sums"][name] for name in ("GFS-READ", "GFS-META")) >= 0.1
    assert last["epochs"][0]["slowest"]["by_class"]["GFS-READ"] == 0
    assert any("slow: a token bucket in this reader" in limit for limit in result["limits"])


def begun(places: list[str], *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "foresee", "bench", "storage", *places, "--json", *more]
    # A new session: Ctrl-C at a terminal reaches every process of its foreground.
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for(path: pathlib.Path, process: subprocess.Popen[str]) -> None:
    def there() -> bool:
        assert process.poll() is None, process.communicate()
        return path.exists()

    wait_until(there, what=f"{path.name} of the bench")


def gone(group: int) -> bool:
    """Return whether a process group is empty; Python's resource tracker ends with a short delay."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_prints_completed_cases_and_leaves_no_file_or_process(
    tmp_path: pathlib.Path, places: list[str], how: signal.Signals
) -> None:
    # The first cache rate does not read the origin, and at the second the origin never finishes.
    more = ["--rates", "0,1", "--epochs", "1", "--shuffle", "global"]
    slow = ["--throttle", "none", "--throttle", "slow=1B/s"]
    with begun(places, *more, *slow) as process:
        wait_for(tmp_path / "run" / f"{SIZE}-slow-global" / "0" / "ledger" / "rank-1.arrow", process)
        (os.killpg if how == signal.SIGINT else os.kill)(process.pid, how)
        out, err = process.communicate(timeout=WATCHDOG)
    assert process.returncode == 130, err
    result = json.loads(out)
    assert result["interrupted"]
    assert [(case["name"], len(case["rates"])) for case in result["cases"]] == [(f"{SIZE}-full-global", 2)]
    assert empty(tmp_path)
    wait_until(lambda: gone(process.pid), what="the end of all its processes")


def test_an_interrupt_before_the_first_result_removes_all_files(
    tmp_path: pathlib.Path, places: list[str]
) -> None:
    with begun(places, "--throttle", "1B/s", "--rates", "0", "--shuffle", "global") as process:
        wait_for(tmp_path / "run" / f"{SIZE}-throttled-global" / "0" / "ledger" / "rank-1.arrow", process)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=WATCHDOG)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert empty(tmp_path)


def test_a_goal_that_no_case_meets_exits_with_1(capsys, places: list[str]) -> None:
    more = ["--rates", "1", "--epochs", "1", "--shuffle", "local", "--goal", "1 ns"]
    assert main(["bench", "storage", *places, *more]) == 1
    assert "goal 1e-09 s: not met" in capsys.readouterr().out


@pytest.mark.loops
def test_a_kernel_throttle_slows_its_disk_and_is_removed(
    capsys, tmp_path: pathlib.Path, places: list[str]
) -> None:
    more = ["--rates", "0", "--epochs", "2", "--shuffle", "global", "--throttle-by", "kernel"]
    slow = ["--files", "1MB:4", "--throttle", "slow=8MB/s"]
    assert main(["bench", "storage", *places, *more, *slow, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert empty(tmp_path)
    assert (
        str(tmp_path)
        not in subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout
    )
    assert str(tmp_path) not in pathlib.Path("/proc/mounts").read_text()
    (case,) = [case for case in result["cases"] if case["name"] == "1MB-slow-global"]
    # The kernel does not throttle its first slice, hence half of the time.
    assert case["rates"][0]["epochs"][1]["seconds"] >= 4e6 / 8e6 / 2
    assert any("slow: the kernel throttles reads" in limit for limit in result["limits"])


@pytest.mark.loops
def test_an_interrupt_during_a_kernel_throttle_removes_the_disk(
    tmp_path: pathlib.Path, places: list[str]
) -> None:
    # The kernel delays a read for minutes, and no signal ends a process within it.
    more = ["--rates", "0", "--epochs", "1", "--shuffle", "global", "--throttle-by", "kernel"]
    with begun(places, *more, "--throttle", "none", "--throttle", "slow=1KB/s") as process:
        wait_for(tmp_path / "run" / f"{SIZE}-slow-global" / "0" / "ledger" / "rank-1.arrow", process)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=WATCHDOG)
    assert process.returncode == 130, err
    assert [case["name"] for case in json.loads(out)["cases"]] == [f"{SIZE}-full-global"]
    assert empty(tmp_path)
    assert str(tmp_path) not in pathlib.Path("/proc/mounts").read_text()
    wait_until(lambda: gone(process.pid), what="the end of all its processes")
