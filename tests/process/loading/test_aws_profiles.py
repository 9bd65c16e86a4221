# SPDX-License-Identifier: Apache-2.0
"""AWS profiles through botocore: keys, processes, expiry during a run, and errors.

The gateway checks each signature, so a read succeeds only with the credentials of the profile.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import pickle
import sys

import pytest
from support.data import content, key
from support.node_ranks import outcomes, ranks, read_until_hold
from support.node_service import service
from support.processes import run
from support.servers import ACCESS, SECRET, Bucket

import foresee
import foresee.torch as ft
from foresee._loading import credentials
from foresee.errors import OriginDenied, OriginError

SAMPLES = 12

# Prints credentials that end in ARGV[2] seconds, and adds a line to ARGV[1].
PROCESS = f"""
import datetime, json, sys
with open(sys.argv[1], "a") as calls:
    calls.write("called\\n")
end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=float(sys.argv[2]))
print(json.dumps({{
    "Version": 1, "AccessKeyId": "{ACCESS}", "SecretAccessKey": "{SECRET}", "Expiration": end.isoformat(),
}}))
"""

WORKER = """
    import pickle, sys
    from support.processes import print_json
    with open(sys.argv[1], "rb") as file:
        dataset = pickle.load(file)
    print_json(bytes=len(bytes(dataset[3][0].numpy())))
"""


@pytest.fixture(autouse=True)
def filled(bucket: Bucket) -> None:
    """Fill the bucket."""
    for sample in range(SAMPLES):
        bucket.put(key(sample, SAMPLES), content(sample, 100))


@pytest.fixture
def aws(bucket: Bucket, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The configuration file of a user whose profiles have region and endpoint of the bucket."""
    script, calls = tmp_path / "credentials.py", tmp_path / "calls"
    script.write_text(PROCESS)
    place = f"region = us-east-1\nendpoint_url = {bucket.testbed.url}\n"
    config = tmp_path / "config"
    config.write_text(
        f"[profile lab]\n{place}aws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n"
        f"[profile wrong]\n{place}aws_access_key_id = {ACCESS}\naws_secret_access_key = notthesecret\n"
        f"[profile short]\n{place}credential_process = {sys.executable} {script} {calls} 2\n"
        f"[profile long]\n{place}credential_process = {sys.executable} {script} {calls} 3600\n"
        f"[profile broken]\n{place}credential_process = {sys.executable} -c raise(SystemExit(1))\n"
        f"[profile nothing]\n{place}"
        f"[profile sso]\n{place}sso_session = lab\nsso_account_id = 1\nsso_role_name = reader\n"
        "[sso-session lab]\nsso_region = us-east-1\nsso_start_url = https://lab.example/start\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    return calls


def read_all(bucket: Bucket, options: dict[str, str] | None) -> list[bytes]:
    """Return all samples, in order."""
    with foresee.Loader(bucket.uri, batch_size=SAMPLES, storage_options=options) as loader:
        batch = next(iter(loader))
        return [bytes(batch.data[batch.offsets[i] : batch.offsets[i + 1]]) for i in range(SAMPLES)]


@pytest.mark.usefixtures("aws")
def test_a_profile_has_credentials_region_and_endpoint(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_all(bucket, {"profile": "lab"}) == [content(i, 100) for i in range(SAMPLES)]
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert read_all(bucket, None) == [content(i, 100) for i in range(SAMPLES)]


def test_credentials_that_end_during_a_run_are_renewed(bucket: Bucket, aws: pathlib.Path) -> None:
    with foresee.Loader(
        bucket.uri, batch_size=4, cache=foresee.Cache(ram=0), storage_options={"profile": "short"}
    ) as loader:
        bucket.testbed.limits(latency_ms=15)
        while aws.read_text().count("called") < 3:
            assert sum(1 for _ in loader) == SAMPLES / 4
        assert loader.audit()["ok"]


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize(
    ("profile", "error", "message"),
    [
        ("wrong", OriginDenied, "SignatureDoesNotMatch"),
        ("none", OriginError, r'"profile" is not usable.*none.*list-profiles'),
        ("nothing", OriginError, r'the AWS profile "nothing": .*aws configure --profile nothing'),
        ("broken", OriginError, r'the AWS profile "broken": .*custom-process'),
        ("sso", OriginError, r'the AWS profile "sso": .*aws sso login --profile sso'),
    ],
)
def test_a_profile_that_cannot_be_used_is_named_with_its_remedy(
    bucket: Bucket, profile: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        read_all(bucket, {"profile": profile})
    assert "notthesecret" not in str(caught.value)


@pytest.mark.usefixtures("aws")
def test_a_worker_process_opens_a_profile_itself_and_no_secret_is_pickled(
    bucket: Bucket, tmp_path: pathlib.Path
) -> None:
    dataset = ft.FolderDataset(bucket.uri, storage_options={"profile": "lab"})
    pickled = pickle.dumps(dataset)
    assert b"lab" in pickled
    assert SECRET.encode() not in pickled
    (tmp_path / "dataset").write_bytes(pickled)
    (line,) = run(WORKER, str(tmp_path / "dataset"), env={"AWS_CONFIG_FILE": os.environ["AWS_CONFIG_FILE"]})
    assert line == {"bytes": 100}


def test_the_host_of_a_nodes_cache_obtains_the_credentials_of_a_profile_itself(
    bucket: Bucket, aws: pathlib.Path, job: pathlib.Path
) -> None:
    socket, env = job / "node.sock", {"AWS_CONFIG_FILE": os.environ["AWS_CONFIG_FILE"]}
    plan = {"root": bucket.uri, "storage_options": {"profile": "long"}, "epochs": 2, "hold_at": [1]}
    with contextlib.ExitStack() as stack:
        stack.enter_context(service(socket, env=env)).line()
        (program,) = stack.enter_context(ranks(job, [plan], env={**env, "FORESEE_NODE": str(socket)}))
        begun = read_until_hold(program)
        called = aws.read_text().count("called")
        (job / "go-1").touch()
        ((lines, errors),) = outcomes([program])
    assert errors == ""
    assert lines[-1]["stats"]["node"]["attached"]
    assert begun
    assert called == 2, "the rank has listed, and the host has read"


def test_region_and_endpoint_of_a_profile_are_storage_options(aws: pathlib.Path) -> None:
    config = aws.with_name("config")
    config.write_text(
        "[profile lab]\nregion = eu-1\nendpoint_url = http://all\nservices = lab\n"
        "[services lab]\ns3 =\n  endpoint_url = http://s3\n[profile plain]\nregion = eu-2\n"
    )
    assert credentials.profile_settings("lab") == {"region": "eu-1", "endpoint_url": "http://s3"}
    assert credentials.profile_settings("plain") == {"region": "eu-2"}
    assert credentials.profile_settings(None) == {}
    config.write_text("[profile lab\n")
    with pytest.raises(LookupError, match="list-profiles"):
        credentials.profile_settings("lab")
