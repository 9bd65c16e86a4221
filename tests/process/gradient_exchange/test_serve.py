# SPDX-License-Identifier: Apache-2.0
"""``foresee serve`` as a process: what it prints, how a signal ends it, and a port that is in use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from support.waiting import WATCHDOG

from foresee._native import GradientServer
from foresee.cli import main

TOKEN = "a secret of 24 characters"


@pytest.fixture
def started():
    children = []

    def start(*arguments: str, **variables: str) -> subprocess.Popen:
        child = subprocess.Popen(
            [sys.executable, "-m", "foresee", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_and_ends_cleanly_on_a_signal(started, number) -> None:
    child = started(
        "--bind", "localhost:0", "--early-buffer", "8", "--timeout", "2.5", "--json", FORESEE_TOKEN=TOKEN
    )
    settings = json.loads(child.stdout.readline())
    host, _, port = settings.pop("address").rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0
    assert settings == {
        "policy": "foresee",
        "timeout_seconds": 2.5,
        "early_buffer_bytes": 8 << 20,
        "tls": False,
    }
    child.send_signal(number)
    assert child.communicate(timeout=WATCHDOG) == ("", "")
    assert child.returncode == 0


def test_it_prints_plain_text_and_imports_no_torch(started, tmp_path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(TOKEN)
    secret.chmod(0o600)
    (tmp_path / "torch.py").write_text("raise ImportError('foresee serve imports torch')")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    child = started(
        "--bind", "127.0.0.1:0", "--secret-file", str(secret), "--policy", "mercury", PYTHONPATH=paths
    )
    assert child.stdout.readline().startswith("serving gradients at 127.0.0.1:")
    child.terminate()
    assert child.communicate(timeout=WATCHDOG) == ("", "")


def test_a_port_in_use_is_named_and_exits_with_3(capsys, monkeypatch) -> None:
    monkeypatch.setenv("FORESEE_TOKEN", TOKEN)
    server = GradientServer.start("127.0.0.1:0", timeout_s=30, early_buffer_bytes=1 << 20)
    assert main(["serve", "--bind", server.address]) == 3
    assert f"{server.address} is in use" in capsys.readouterr().err
    server.close()
