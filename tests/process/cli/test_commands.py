# SPDX-License-Identifier: Apache-2.0
"""The command line in real processes with real origins: exit codes and streams."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from support.data import key
from support.processes import plain_environment
from support.servers import ACCESS, SECRET, Bucket, Testbed
from support.waiting import WATCHDOG
from torchvision.datasets import ImageFolder

import foresee

COMMAND = [sys.executable, "-m", "foresee"]


def foresee_(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `foresee`."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        env=plain_environment(environment),
        check=False,
    )


def credentials(bucket: Bucket) -> dict[str, str]:
    """Return the environment variables."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": bucket.options["endpoint"],
        "AWS_REGION": "us-east-1",
    }


def test_a_directory_is_listed_once_and_training_never_lists_it_again(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "train.fidx"
    made = foresee_("index", folder, "-o", file, "--json")
    assert made.returncode == 0, made.stderr
    facts = json.loads(made.stdout)
    theirs = ImageFolder(str(folder))
    index = foresee.Index.open(file)
    assert facts["samples"] == len(index) == len(theirs)
    assert facts["fingerprint"] == index.fingerprint
    assert index.classes == theirs.classes
    (folder / "new").mkdir()
    (folder / "new" / "x.jpg").write_bytes(b"x")
    with foresee.Loader(file, batch_size=8) as loader:
        assert sum(len(batch) for batch in loader) == len(theirs)


def test_a_bucket_is_indexed_with_credentials_of_the_environment_that_are_not_stored(
    bucket: Bucket, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    bucket.put_folder(folder)
    file = tmp_path / "train.fidx"
    made = foresee_("index", bucket.uri, "-o", file, "--json", **credentials(bucket))
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["classes"] == 3
    for text in (made.stdout.encode(), made.stderr.encode(), file.read_bytes()):
        assert SECRET.encode() not in text
    with foresee.Loader(file, batch_size=8, storage_options=bucket.options) as loader:
        assert sum(len(batch) for batch in loader) == 96


def test_update_reports_added_removed_and_changed_files(
    bucket: Bucket, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    bucket.put_folder(folder)
    file = tmp_path / "train.fidx"
    assert foresee_("index", bucket.uri, "-o", file, **credentials(bucket)).returncode == 0
    bucket.put(key(0, 96), b"other")
    bucket.put("cat/zzz.jpg", b"new")
    bucket.put("dog/new.jpg", b"new")
    bucket.delete(key(95, 96))
    made = foresee_("index", bucket.uri, "-o", file, "--update", "--json", **credentials(bucket))
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["changes"] == {"added": 2, "removed": 1, "changed": 1, "kept": 94}
    assert foresee.Index.open(file).classes == ["ant", "bee", "cat", "dog"]


def test_a_web_server_is_indexed_from_a_list_of_keys(
    folder: pathlib.Path, tmp_path: pathlib.Path, serve: Callable[[pathlib.Path], Testbed]
) -> None:
    testbed = serve(folder.parent)
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{key(sample, 96)}\n" for sample in range(96)))
    file = tmp_path / "train.fidx"
    uri = f"{testbed.url}/data"
    bare = foresee_("index", uri, "-o", file)
    assert bare.returncode != 0
    assert "--keys" in bare.stderr
    made = foresee_("index", uri, "-o", file, "--keys", keys, "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["samples"] == 96


@pytest.mark.parametrize("kind", ["empty", "absent", "no_index", "not_an_index", "no_output"])
def test_bad_input_exits_with_2_names_the_place_and_leaves_no_file(
    folder: pathlib.Path, tmp_path: pathlib.Path, kind: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "not.fidx").write_bytes(b"not an index" * 100)
    output = tmp_path / "out.fidx"
    arguments: dict[str, list[object]] = {
        "empty": ["index", tmp_path / "empty", "-o", output],
        "absent": ["index", tmp_path / "absent", "-o", output],
        "no_index": ["index", folder, "-o", output, "--update"],
        "not_an_index": ["index", "--dump", tmp_path / "not.fidx"],
        "no_output": ["index", folder],
    }
    ended = foresee_(*arguments[kind], "--json")
    assert ended.returncode == 2, ended
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    assert {"no_index": "out.fidx", "not_an_index": "not.fidx", "no_output": "-o FILE"}.get(
        kind, kind
    ) in ended.stderr
    assert not output.exists()
    assert list(tmp_path.glob("*.part")) == []


def test_an_origin_that_refuses_or_does_not_answer_exits_with_3_and_shows_no_secret(
    bucket: Bucket, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    bucket.put_folder(folder)
    output = tmp_path / "out.fidx"
    for changes in ({"AWS_SECRET_ACCESS_KEY": "wrong-secret"}, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}):
        ended = foresee_("index", bucket.uri, "-o", output, **{**credentials(bucket), **changes})
        assert ended.returncode == 3, ended
        assert bucket.uri in ended.stderr
        assert "Traceback" not in ended.stderr
        assert "wrong-secret" not in ended.stderr
        assert not output.exists()


def test_ctrl_c_ends_a_listing_that_hangs(
    bucket: Bucket, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    bucket.put_folder(folder)
    bucket.testbed.limits(latency_ms=60_000)
    with subprocess.Popen(
        [*COMMAND, "index", bucket.uri, "-o", str(tmp_path / "out.fidx")],
        stderr=subprocess.PIPE,
        text=True,
        env=plain_environment(credentials(bucket)),
    ) as process:
        try:
            while bucket.testbed.counters()["in_flight"] == 0:
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=WATCHDOG)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    assert not (tmp_path / "out.fidx").exists()


def test_the_command_line_and_the_numpy_loader_work_without_torch(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    environment = {**plain_environment(), "PYTHONPATH": f"{tmp_path}:{plain_environment()['PYTHONPATH']}"}
    program = (
        "import sys, foresee\n"
        "from foresee.cli import main\n"
        "assert main(['index', sys.argv[1], '-o', sys.argv[2]]) == 0\n"
        "with foresee.Loader(sys.argv[2], batch_size=8, shuffle=True, seed=0) as loader:\n"
        "    print(sum(len(batch) for batch in loader), loader.audit()['ok'])\n"
        "assert 'torch' not in sys.modules\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(folder), str(tmp_path / "out.fidx")],
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "96 True"


def test_a_closed_output_pipe_exits_with_141_without_a_message():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "foresee", "simulate", "--list"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")
