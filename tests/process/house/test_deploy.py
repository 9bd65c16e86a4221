# SPDX-License-Identifier: Apache-2.0
"""The service files of ``deploy/`` are valid for systemd and Kubernetes, and agree with each other."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml
from support.house import ROOT
from support.waiting import WATCHDOG

UNIT = ROOT / "deploy" / "foresee-node.service"
MANIFEST = ROOT / "deploy" / "foresee-node.yaml"
OPTIONS = {"--ram", "--disk", "--disk-size", "--socket", "--idle-exit", "--allow-uid"}


def verify(unit: pathlib.Path) -> str:
    """Return the complaints of systemd; empty if there are none."""
    ended = subprocess.run(
        ["systemd-analyze", "verify", str(unit)],
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    return ended.stdout + ended.stderr


@pytest.mark.systemd
def test_systemd_accepts_the_unit_and_refuses_a_misspelt_setting(tmp_path: pathlib.Path) -> None:
    # The program of the unit is not installed here.
    text = UNIT.read_text().replace("/usr/local/bin/foresee", str(shutil.which("true")))
    unit = tmp_path / "foresee-node.service"
    unit.write_text(text)
    assert verify(unit) == ""
    unit.write_text(text.replace("MemoryMax=", "MemoryMaximum="))
    assert "MemoryMaximum" in verify(unit)


def resources() -> dict[str, Any]:
    """Return the resources of the manifest by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text())}


def test_kubernetes_accepts_the_manifest_and_refuses_a_misspelt_field() -> None:
    found = resources()
    assert set(found) == {"Namespace", "DaemonSet", "Pod"}
    for resource in found.values():
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)
    container = found["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]
    container["livenesProbe"] = container.pop("livenessProbe")
    with pytest.raises(kubernetes_validate.ValidationError, match="livenesProbe"):
        kubernetes_validate.validate(found["DaemonSet"], kubernetes_validate.latest_version(), strict=True)


def test_training_pods_find_the_socket_that_the_service_creates() -> None:
    found = resources()
    service, training = found["DaemonSet"]["spec"]["template"]["spec"], found["Pod"]["spec"]
    arguments = dict(each.split("=", 1) for each in service["containers"][0]["args"])
    assert set(arguments) <= OPTIONS
    (variable,) = training["containers"][0]["env"]
    assert (variable["name"], variable["value"]) == ("FORESEE_NODE", arguments["--socket"])
    paths = []
    for pod in (service, training):
        (volume,) = (each for each in pod["volumes"] if each["name"] == "socket")
        (mount,) = (each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "socket")
        assert arguments["--socket"].startswith(f"{mount['mountPath']}/")
        paths.append(volume["hostPath"]["path"])
    assert paths[0] == paths[1]
    assert str(training["containers"][0]["securityContext"]["runAsUser"]) == arguments["--allow-uid"]


def test_the_unit_uses_options_of_the_command_and_a_limit_above_its_memory() -> None:
    text = UNIT.read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert set(re.findall(r"--[a-z-]+", command)) <= OPTIONS
    (ram,), (limit,) = (
        re.findall(r"--ram (\d+)GB", command),
        re.findall(r"^MemoryMax=(\d+)G$", text, re.MULTILINE),
    )
    assert int(limit) * 2**30 > int(ram) * 10**9
