# SPDX-License-Identifier: Apache-2.0
"""``foresee calibrate`` with real targets: a bucket, a web server, a full disk, other ranks; and Ctrl-C.

Measured values are not compared with numbers. The tests check that they exist, are above 0 and have conditions.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
from support.data import key
from support.gradients import under_torchrun
from support.processes import Child, plain_environment
from support.servers import ACCESS, SECRET, Bucket, Testbed
from support.waiting import WATCHDOG, wait_until

from foresee.jobspec import Profile, profile

COMMAND = [sys.executable, "-m", "foresee", "calibrate", "--seconds", "0.3"]


def start(*arguments: object, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=plain_environment(env),
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        output, errors = process.communicate(timeout=WATCHDOG)
    finally:
        process.kill()
    return process.returncode, output, errors


def credentials(bucket: Bucket) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": bucket.options["endpoint"],
        "AWS_REGION": "us-east-1",
    }


def names(made: Profile) -> set[str]:
    return {figure.name for figure in made.figure}


def test_a_bucket_is_measured_over_the_network_and_no_secret_is_stored(
    bucket: Bucket, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    bucket.put_folder(folder)
    file = tmp_path / "profile.toml"
    bucket.testbed.reset()
    code, output, errors = end(
        start("--origin", bucket.uri, "--only", "origin", "-o", file, "--json", env=credentials(bucket))
    )
    assert code == 0, errors
    made = profile.read(file)
    assert names(made) - {"origin.requests"} == {"origin.read", "origin.latency"}
    for figure in made.figure:
        assert figure.base > 0
        assert figure.conditions is not None
        assert "one request per reader, 96 samples" in figure.conditions
        assert bucket.uri in figure.conditions
    assert json.loads(output)["file"] == str(file)
    assert bucket.testbed.counters()["body_bytes"] > 0
    for text in (output, errors, file.read_text()):
        assert SECRET not in text


def test_a_web_server_is_measured_from_a_list_of_keys(
    folder: pathlib.Path, tmp_path: pathlib.Path, serve: Callable[[pathlib.Path], Testbed]
) -> None:
    uri = f"{serve(tmp_path).url}/{folder.name}"
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{key(sample, 96)}\n" for sample in range(96)))
    file = tmp_path / "profile.toml"
    code, _, errors = end(start("--origin", uri, "--only", "origin", "-o", file))
    assert code == 3, errors
    assert "--keys" in errors
    code, _, errors = end(start("--origin", uri, "--keys", keys, "--only", "origin", "-o", file))
    assert code == 0, errors
    assert names(profile.read(file)) - {"origin.requests"} == {"origin.read", "origin.latency"}


def test_an_origin_that_does_not_answer_exits_with_3_and_leaves_no_file(
    bucket: Bucket, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    bucket.put_folder(folder)
    file = tmp_path / "profile.toml"
    nowhere = {**credentials(bucket), "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    code, output, errors = end(start("--origin", bucket.uri, "-o", file, env=nowhere))
    assert (code, output) == (3, ""), errors
    assert bucket.uri in errors
    assert "Traceback" not in errors
    assert not file.exists()


def nameless(process: int) -> bool:
    """Whether a process has a deleted file open."""
    folder = pathlib.Path(f"/proc/{process}/fd")
    try:
        return any(os.readlink(entry).endswith(".tmp (deleted)") for entry in folder.iterdir())
    except OSError:
        return False


def test_ctrl_c_leaves_neither_profile_nor_temporary_file(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "profile.toml"
    process = start("--seconds", "60", "--disk", tmp_path, "--only", "disk", "-o", file)
    try:
        wait_until(lambda: nameless(process.pid), what="a file on the disk")
        process.send_signal(signal.SIGINT)
        code, output, errors = end(process)
    finally:
        process.kill()
    assert (code, output) == (130, ""), errors
    assert "interrupted" in errors
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_wait_for_an_origin_that_hangs(
    bucket: Bucket, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    bucket.put_folder(folder)
    index, file = tmp_path / "x.fidx", tmp_path / "profile.toml"
    command = [sys.executable, "-m", "foresee", "index", bucket.uri, "-o", str(index)]
    subprocess.run(command, check=True, env=plain_environment(credentials(bucket)), capture_output=True)
    bucket.testbed.limits(latency_ms=60_000)
    process = start("--origin", index, "--only", "origin", "-o", file, env=credentials(bucket))
    try:
        wait_until(lambda: bucket.testbed.counters()["in_flight"], what="a request")
        process.send_signal(signal.SIGINT)
        code, _, errors = end(process)
    finally:
        process.kill()
    assert code == 130, errors
    assert list(tmp_path.glob("profile*")) == []


def free_ports() -> int:
    """Return a port that was free together with the next one."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def test_three_ranks_measure_their_links_and_rank_0_writes(tmp_path: pathlib.Path) -> None:
    port = str(free_ports())
    rendezvous = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        start("--only", "network", "-o", tmp_path / f"{rank}.toml", env={**rendezvous, "RANK": str(rank)})
        for rank in range(3)
    ]
    for rank, process in enumerate(started):
        code, output, errors = end(process)
        assert code == 0, errors
        assert rank == 0 or (output == "" and f"rank {rank}: rank 0 writes the profile" in errors)
    assert [path.name for path in tmp_path.iterdir()] == ["0.toml"]
    made = profile.read(tmp_path / "0.toml")
    assert names(made) == {"network.rate", "network.latency"}
    for figure in made.figure:
        assert figure.base > 0
        assert figure.conditions is not None
        assert "rank 0 to 2 others in turn" in figure.conditions


def test_it_runs_under_torchrun(tmp_path: pathlib.Path, started: Callable[[Child], Child]) -> None:
    # The port after torchrun's own is one of those that the kernel gives to outgoing connections, as of other tests.
    options = ["--only", "network,memcpy", "--port", str(free_ports()), "-o", str(tmp_path / "p.toml")]
    arguments = [*COMMAND[3:], *options]
    status, _, errors = started(under_torchrun(2, "foresee.cli", *arguments)).end()
    assert status == 0, errors
    assert names(profile.read(tmp_path / "p.toml")) == {"network.rate", "network.latency", "memcpy.rate"}


@pytest.mark.parametrize(("size", "code"), [("8m", 3), ("64m", 0)])
@pytest.mark.hosts
def test_a_full_disk_is_refused_and_a_disk_in_memory_is_noted(
    tmp_path: pathlib.Path, size: str, code: int
) -> None:
    disk, file = tmp_path / "disk", tmp_path / "profile.toml"
    disk.mkdir()
    script = f'mount -t tmpfs -o size={size} none "$0" && "$@" && rest=$(ls -A "$0") && test -z "$rest"'
    command = [*COMMAND, "--disk", str(disk), "--only", "disk", "-o", str(file)]
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, str(disk), *command],
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        env=plain_environment(),
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    if code:
        assert f"{disk}: 8.4 MB free, at least 16.8 MB needed" in ended.stderr
        assert not file.exists()
    else:
        made = profile.read(file)
        assert {"tier.disk.read", "tier.disk.write"} <= names(made)
        for figure in made.figure:
            assert figure.name == "tier.disk.capacity" or "a file system in memory" in (
                figure.conditions or ""
            )
