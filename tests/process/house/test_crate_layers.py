# SPDX-License-Identifier: Apache-2.0
"""The allowed dependencies between crates.

`Cargo.toml` has the rules, in `[[workspace.metadata.layers]]` and `[workspace.metadata.only]`; `cargo metadata` has the
edges. `violations` compares the two, and planted edges test it. Dev-dependencies are not restricted, because they are
in no wheel.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.house import ROOT

#: Bands whose crates use no clock, file, thread, socket, environment or hash order.
PURE = ("nouns", "decide")

Edges = dict[str, set[str]]


def violations(rules: dict[str, Any], inside: Edges, outside: Edges) -> list[str]:
    """Return all violations of the rules, each with its remedy.

    Args:
        rules: ``layers``: bands from the lowest up, each with ``uses`` and ``crates``; ``apart``: families of crates,
            by the beginning of their names, of which no two may use one another; ``only``: for each outside
            library the crates that may use it.
        inside: workspace crates that each workspace crate uses directly.
        outside: third-party libraries that each crate reaches without passing another workspace crate.
    """
    bands = rules["layers"]
    band_of = {crate: band["band"] for band in bands for crate in band["crates"]}
    uses = {band["band"]: set(band["uses"]) for band in bands}
    names = [band["band"] for band in bands]
    place = {crate: i for i, crate in enumerate(crate for band in bands for crate in band["crates"])}
    faults = []
    for i, band in enumerate(bands):
        faults += [
            f"band {band['band']!r} uses {other!r}, which is not below it; bands stand from the lowest up"
            for other in sorted(set(band["uses"]) - set(names[:i]))
        ]
    faults += [
        f"{crate} stands in no band; add it to one" for crate in sorted(inside.keys() - band_of.keys())
    ]
    faults += [
        f"{crate} is in a band but not in the workspace" for crate in sorted(band_of.keys() - inside.keys())
    ]
    for crate, used in sorted(inside.items()):
        for other in sorted(used):
            if crate not in band_of or other not in band_of:
                continue
            here, there = band_of[crate], band_of[other]
            if here == there and place[other] > place[crate]:
                faults.append(
                    f"{crate} uses {other}, which stands after it in band {here!r}; turn the edge round"
                )
            elif here != there and there not in uses[here]:
                faults.append(
                    f"{crate} ({here}) uses {other} ({there}), but {here!r} may use {sorted(uses[here])} alone; "
                    "move the code to where it may stand"
                )
    for families in (each["families"] for each in rules["apart"]):
        faults += [
            f"{crate} uses {other}: {here}* and {there}* are paths apart; move what both need below them"
            for crate, used in sorted(inside.items())
            for other in sorted(used)
            for here, there in itertools.permutations(families, 2)
            if crate.startswith(here) and other.startswith(there)
        ]
    for library, allowed in sorted(rules["only"].items()):
        faults += [
            f"{crate} reaches {library}, which only {', '.join(allowed)} may; go through that crate"
            for crate, reached in sorted(outside.items())
            if library in reached and crate not in allowed
        ]
    return faults


@functools.cache
def metadata() -> dict[str, Any]:
    """Return cargo's metadata of this workspace and platform, without network and without changing the lock file."""
    version = subprocess.run(["rustc", "-vV"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    host = version.split("host: ")[1].split()[0]
    return cargo_metadata(ROOT, "--locked", "--filter-platform", host)


def cargo_metadata(folder: Path, *flags: str) -> dict[str, Any]:
    """Run ``cargo metadata`` in ``folder``."""
    command = ["cargo", "metadata", "--format-version", "1", *flags]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    whole: dict[str, Any] = json.loads(answer.stdout)
    return whole


def direct(whole: dict[str, Any]) -> Edges:
    """Return the workspace crates that each workspace crate uses."""
    ours = {package["name"] for package in whole["packages"] if package["id"] in whole["workspace_members"]}
    return {
        package["name"]: {
            used["name"] for used in package["dependencies"] if used["name"] in ours and used["kind"] != "dev"
        }
        for package in whole["packages"]
        if package["name"] in ours
    }


def reached(whole: dict[str, Any]) -> Edges:
    """Return the third-party libraries below each crate, not counting those below its workspace dependencies."""
    name = {package["id"]: package["name"] for package in whole["packages"]}
    ours = set(whole["workspace_members"])
    below = {
        node["id"]: [
            used["pkg"] for used in node["deps"] if any(kind["kind"] != "dev" for kind in used["dep_kinds"])
        ]
        for node in whole["resolve"]["nodes"]
    }
    result = {}
    for crate in ours:
        seen: set[str] = set()
        front = [crate]
        while front:
            for package in below[front.pop()]:
                if package not in ours and package not in seen:
                    seen.add(package)
                    front.append(package)
        result[name[crate]] = {name[package] for package in seen}
    return result


def test_the_workspace_follows_the_layers() -> None:
    whole = metadata()
    faults = violations(whole["metadata"], direct(whole), reached(whole))
    assert not faults, "\n".join(["the layers law of Cargo.toml is broken:", *faults])


@pytest.mark.parametrize(
    ("crate", "used", "expected"),
    [
        ("foresee-data-tier", "foresee-data-plan", "foresee-data-tier (do) uses foresee-data-plan (decide)"),
        ("foresee-units", "foresee-model", "foresee-units (nouns) uses foresee-model (decide)"),
        ("foresee-data-order", "foresee-data-plan", "which stands after it in band 'decide'"),
        (
            "foresee-data-plan",
            "foresee-data-loader",
            "foresee-data-plan (decide) uses foresee-data-loader (drive)",
        ),
        ("foresee-grad-queue", "foresee-data-plan", "foresee-data-* are paths apart"),
        ("foresee-data-loader", "foresee-grad-queue", "foresee-grad-* are paths apart"),
        (
            "foresee-data-loader",
            "foresee-testbed",
            "foresee-data-loader (drive) uses foresee-testbed (tools)",
        ),
    ],
)
def test_a_planted_edge_is_refused(crate: str, used: str, expected: str) -> None:
    whole = metadata()
    inside = direct(whole)
    inside[crate] |= {used}
    (fault,) = violations(whole["metadata"], inside, reached(whole))
    assert expected in fault


@pytest.mark.parametrize(
    ("crate", "library"),
    [("foresee-data-plan", "tokio"), ("foresee-data-loader", "object_store"), ("foresee-ledger", "pyo3")],
)
def test_a_planted_outside_library_is_refused(crate: str, library: str) -> None:
    whole = metadata()
    outside = reached(whole)
    outside[crate] |= {library}
    (fault,) = violations(whole["metadata"], direct(whole), outside)
    assert fault.startswith(f"{crate} reaches {library}")


def test_a_crate_without_band_and_a_band_without_crate_are_refused() -> None:
    whole = metadata()
    inside = direct(whole)
    inside["foresee-new"] = inside.pop("foresee-model")
    faults = violations(whole["metadata"], inside, {})
    assert "foresee-new stands in no band; add it to one" in faults
    assert "foresee-model is in a band but not in the workspace" in faults


def test_a_band_may_not_use_one_above_it() -> None:
    rules = {"layers": [{"band": "low", "uses": ["high"], "crates": []}], "apart": [], "only": {}}
    assert violations(rules, {}, {}) == [
        "band 'low' uses 'high', which is not below it; bands stand from the lowest up"
    ]


def test_an_edge_planted_in_the_manifests_is_seen_through_cargo(tmp_path: Path) -> None:
    (tmp_path / "Cargo.toml").write_text((ROOT / "Cargo.toml").read_text())
    for manifest in (ROOT / "crates").glob("*/Cargo.toml"):
        copy = tmp_path / "crates" / manifest.parent.name
        (copy / "src").mkdir(parents=True)
        (copy / "src" / "lib.rs").touch()
        (copy / "Cargo.toml").write_text(manifest.read_text())
    planted = tmp_path / "crates" / "foresee-data-tier" / "Cargo.toml"
    edge = "[dependencies]\nforesee-data-plan.workspace = true\n"
    planted.write_text(planted.read_text().replace("[dependencies]\n", edge))
    whole = cargo_metadata(tmp_path, "--no-deps", "--offline")
    (fault,) = violations(whole["metadata"], direct(whole), {})
    assert "foresee-data-tier (do) uses foresee-data-plan (decide)" in fault


def test_every_pure_crate_denies_impure_calls() -> None:
    crates = [
        crate for band in metadata()["metadata"]["layers"] if band["band"] in PURE for crate in band["crates"]
    ]
    assert crates
    for crate in crates:
        text = (ROOT / "crates" / crate / "src" / "lib.rs").read_text()
        denied = "".join(re.findall(r"#!\[deny\((.*?)\)\]", text, flags=re.DOTALL))
        for lint in ("clippy::disallowed_methods", "clippy::disallowed_types"):
            assert lint in denied, (
                f"crates/{crate}/src/lib.rs is pure: open it with #![deny({lint}, reason = ...)]"
            )
