# SPDX-License-Identifier: Apache-2.0
"""``foresee node``: a real service, loaders that attach to it, and the ends of both."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket as listening
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.environment import plain_environment
from support.memory_group import JOIN, memory_group
from support.node_service import SERVICE, node_status
from support.processes import Child
from support.servers import Bucket
from support.waiting import WATCHDOG, wait_until

import foresee

HOLDER = """
    import signal
    import sys
    import foresee
    from support.processes import print_json
    with foresee.Loader(sys.argv[1], batch_size=8) as loader:
        assert sum(len(batch) for batch in loader) == 96
        print_json(is_open=True)
        signal.pause()
"""
Start = Callable[..., Child]


@pytest.fixture
def place() -> Iterator[pathlib.Path]:
    """A private directory with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="node-") as name:
        yield pathlib.Path(name)


@pytest.fixture
def socket(place: pathlib.Path) -> pathlib.Path:
    """The path of the service's socket."""
    return place / "node.sock"


@pytest.fixture
def serve(socket: pathlib.Path, started: Callable[[Child], Child]) -> Start:
    """Start a service at `socket`, and wait until it listens."""

    def start(*arguments: object) -> Child:
        child = started(
            Child(SERVICE, "--ram", "64MB", "--socket", str(socket), "--json", *map(str, arguments))
        )
        assert child.line()["socket"] == str(socket)
        return child

    return start


def node(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `foresee node` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "foresee", "node", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        env=plain_environment(environment),
        check=False,
    )


def status(socket: pathlib.Path) -> dict[str, Any]:
    """Return the object of `foresee node status --json` of a service that runs."""
    found = node_status(socket)
    assert found is not None
    return found


def events(errors: str) -> list[dict[str, Any]]:
    """Return the log of a service: all lines of stderr but the first, which is for people."""
    lines = errors.splitlines()
    assert lines[0].startswith("hosting the cache of this node at ")
    return [json.loads(line) for line in lines[1:]]


def epoch(bucket: Bucket) -> list[tuple[list[int], bytes]]:
    """Read an epoch, with the ids and bytes of each batch."""
    with foresee.Loader(bucket.uri, batch_size=8, seed=3, storage_options=bucket.options) as loader:
        return [(batch.ids.tolist(), batch.data.tobytes()) for batch in loader]


def test_a_loader_attaches_and_the_next_one_reads_nothing_from_the_origin(
    bucket: Bucket,
    folder: pathlib.Path,
    sizes: list[int],
    serve: Start,
    socket: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket.put_folder(folder)
    with monkeypatch.context() as plain:
        plain.setenv("FORESEE_OFF", "1")
        expected = epoch(bucket)
    service = serve()
    monkeypatch.setenv("FORESEE_NODE", str(socket))
    assert epoch(bucket) == expected
    first = status(socket)["origin"]
    assert first["bytes"] == sum(sizes)
    with foresee.Loader(bucket.uri, batch_size=8, seed=3, storage_options=bucket.options) as loader:
        again = [(batch.ids.tolist(), batch.data.tobytes()) for batch in loader]
        # The loader also reads ahead into the next epoch.
        wait_until(lambda: status(socket)["consumers"][0]["samples"] >= 96, what="96 answered samples")
        (consumer,) = status(socket)["consumers"]
        text = node("status", FORESEE_NODE=str(socket))
    assert again == expected
    assert (consumer["rank"], consumer["uid"], consumer["hit_rate"]) == (0, os.geteuid(), 1.0)
    assert consumer["saved_bytes"] >= sum(sizes)
    assert bucket.uri in consumer["data_set"]
    assert text.returncode == 0, text.stderr
    assert "100%" in text.stdout
    assert bucket.uri in text.stdout
    assert status(socket)["origin"] == first
    wait_until(lambda: status(socket)["consumers"] == [], what="the end of the consumer")
    service.send(signal.SIGTERM)
    code, _, errors = service.end()
    assert code == 0, errors
    log = events(errors)
    names = [event["event"] for event in log]
    assert names[0] == "listening"
    assert names.count("attached") == names.count("detached") == 2
    assert (names[-1], log[-1]["why"]) == ("ended", "SIGTERM")
    assert all(event["time"].endswith("+00:00") for event in log)
    assert bucket.options["secret_access_key"] not in errors
    assert not socket.exists()


def test_an_interrupt_ends_the_service_and_its_consumer_goes_on(
    folder: pathlib.Path, serve: Start, socket: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = serve()
    monkeypatch.setenv("FORESEE_NODE", str(socket))
    with foresee.Loader(folder, batch_size=8) as loader:
        assert sum(len(batch) for batch in loader) == 96
        service.send(signal.SIGINT)
        code, _, errors = service.end()
        assert code == 0, errors
        assert events(errors)[-1]["why"] == "SIGINT"
        assert sum(len(batch) for batch in loader) == 96


def test_a_service_ends_when_its_last_consumer_has_been_gone_for_the_idle_time(
    folder: pathlib.Path, serve: Start, socket: pathlib.Path, started: Callable[[Child], Child]
) -> None:
    service = serve("--idle-exit", "2s")
    holder = started(Child(HOLDER, str(folder), env={"FORESEE_NODE": str(socket)}))
    assert holder.line() == {"is_open": True}
    assert len(status(socket)["consumers"]) == 1
    holder.send(signal.SIGKILL)
    code, _, errors = service.end()
    assert code == 0, errors
    assert "--idle-exit" in events(errors)[-1]["why"]
    assert not socket.exists()


def test_a_second_service_at_a_socket_is_refused_and_the_first_stays(
    serve: Start, socket: pathlib.Path
) -> None:
    serve()
    second = node("--ram", "64MB", "--socket", socket)
    assert second.returncode == 3
    assert f"another host of a node's cache has {socket}" in second.stderr
    assert "--socket" in second.stderr
    assert status(socket)["consumers"] == []


def test_the_socket_of_a_killed_service_is_taken_over(serve: Start, socket: pathlib.Path) -> None:
    killed = serve()
    killed.send(signal.SIGKILL)
    killed.wait()
    assert socket.exists()
    stale = node("status", "--socket", socket)
    assert stale.returncode == 3
    assert "has ended and left its socket; start `foresee node` again" in stale.stderr
    service = serve()
    assert status(socket)["pid"] == service.pid


def test_status_without_a_service_names_the_remedy(socket: pathlib.Path) -> None:
    ended = node("status", "--socket", socket, "--json")
    assert (ended.returncode, ended.stdout) == (3, "")
    assert f"no host of a node's cache is at {socket}; start `foresee node`" in ended.stderr


def test_watch_prints_the_status_until_an_interrupt(
    serve: Start, socket: pathlib.Path, started: Callable[[Child], Child]
) -> None:
    serve()
    watch = started(Child(SERVICE, "status", "--watch", "--socket", str(socket)))
    while watch.text() != "no consumers\n":
        assert watch.process.poll() is None
    watch.send(signal.SIGINT)
    code, _, errors = watch.end()
    assert code == 0, errors


def test_a_directory_that_another_user_owns_or_can_write_to_is_refused(place: pathlib.Path) -> None:
    place.chmod(0o777)
    ended = node("--ram", "64MB", "--socket", place / "node.sock")
    assert ended.returncode == 3
    assert f"the directory {place} is refused" in ended.stderr
    assert "chmod" in ended.stderr


def test_more_memory_than_there_is_is_refused_with_both_sizes(socket: pathlib.Path) -> None:
    ended = node("--ram", "40TB", "--socket", socket)
    assert ended.returncode == 3
    assert "exceeds the" in ended.stderr
    assert "--ram" in ended.stderr
    assert not socket.exists()


def test_more_memory_than_the_control_group_allows_is_refused_with_both_sizes(socket: pathlib.Path) -> None:
    with memory_group(512 << 20) as group:
        service = Child(JOIN + SERVICE, "--ram", "1GB", "--socket", str(socket), str(group))
        code, _, errors = service.end()
    assert code == 3
    assert "1.0 GB" in errors
    assert "536.9 MB" in errors
    assert "--ram" in errors
    assert not socket.exists()


#: A loader that attaches to a service.
ATTACHES = """
    import sys
    import foresee
    index, endpoint = sys.argv[1:]
    options = {"endpoint": endpoint, "region": "us-east-1", "skip_signature": "true"}
    with foresee.Loader(index, batch_size=8, storage_options=options) as loader:
        next(iter(loader))
"""


def test_a_second_interrupt_ends_a_service_whose_origin_hangs(
    serve: Start, socket: pathlib.Path, place: pathlib.Path, bucket: Bucket, started: Callable[[Child], Child]
) -> None:
    bucket.put("a/0.jpg", b"0")
    foresee.Loader(bucket.uri, batch_size=1, storage_options=bucket.options).index.save(place / "data.fidx")
    service = serve()
    with listening.socket() as origin:
        origin.bind(("127.0.0.1", 0))
        origin.listen()
        endpoint = f"http://127.0.0.1:{origin.getsockname()[1]}"
        env = {"FORESEE_NODE": str(socket)}
        started(Child(ATTACHES, str(place / "data.fidx"), endpoint, env=env))
        request, _ = origin.accept()
        with request:
            service.send(signal.SIGINT)
            wait_until(lambda: not socket.exists(), what="the end of the socket")
            assert service.process.poll() is None
            service.send(signal.SIGINT)
            code, _, _ = service.end()
    assert code == -signal.SIGINT
