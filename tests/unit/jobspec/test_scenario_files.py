# SPDX-License-Identifier: Apache-2.0
"""The shipped scenario files equal the vectors of ``testdata/models`` in every field that the simulator gets."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from support.house import ROOT

from foresee import jobspec
from foresee.planning import simulation

VECTORS = ROOT / "testdata" / "models"
SCENARIOS = {
    "1": "mnist",
    "2a": "imagenet-1k",
    "2b": "openimages",
    "3": "imagenet-22k",
    "4a": "cosmoflow",
    "4b": "cosmoflow-512",
}
MEGA = {"printed": 10**6, "script": 2**20}


def vectors() -> dict[str, dict[str, Any]]:
    """Return the vectors by the name of the shipped file."""
    papers, theses = (
        {case["id"]: case for case in json.loads((VECTORS / f"loading_{name}.json").read_text())["scenarios"]}
        for name in ("paper", "thesis")
    )
    named = {name.replace("-", "_"): case for name, case in theses.items()}
    for form in MEGA:
        for number, name in SCENARIOS.items():
            named[f"nopfs_{number}_{form}"] = papers.pop(f"{name}-{form}")
        named[f"nopfs_fig9_{form}"] = figure_9(named[f"nopfs_3_{form}"], form)
    assert not papers, "scenarios that have no file"
    return named


def figure_9(third: dict[str, Any], form: str) -> dict[str, Any]:
    """Return scenario 3 with five times the compute and preprocessing rates, and the least capacities of the figure."""
    case = copy.deepcopy(third)
    for rate in ("compute", "preprocess"):
        case["training"][rate] *= 5
    capacities = (32_000, 128_000) if form == "printed" else (32 * 1024, 128 * 1024)
    for tier, capacity in zip(case["cluster"]["tiers"], capacities, strict=True):
        tier["capacity"] = capacity * MEGA[form]
    if form == "script":
        # The other scripts have 7,272; this one omits the last digit.
        case["cluster"]["origin"][1][1] = 727 * MEGA[form]
    return case


def points(curve: list[list[int]]) -> list[tuple[int, int]]:
    return [(count, rate) for count, rate in curve]


def tier(given: dict[str, Any]) -> dict[str, Any]:
    return {
        "capacity": given["capacity"],
        "threads": given["threads"],
        "read": points(given["read"]),
        "write": None,
    }


def expected_scenario(case: dict[str, Any]) -> dict[str, Any]:
    """Return a vector as the simulator's arguments; missing values are the defaults of files."""
    cluster, data, training = case["cluster"], case["data"], case["training"]
    # Only the consumer reads staging: its published rate is the one at which it is filled.
    staging = {**tier(cluster["staging"]), "read": [(1, 1)], "write": points(cluster["staging"]["read"])}
    # A file without a seed draws sizes from seed 0; the scripts use another generator.
    size = (float(data.get("size", data.get("mean"))), float(data.get("deviation", 0)), 0)
    return {
        "data": (data["count"], *size),
        "ranks": cluster["ranks"],
        "staging": staging,
        "tiers": [tier(each) for each in cluster["tiers"]],
        "origin": points(cluster["origin"]),
        "origin_link": cluster["origin_link"],
        "origin_latency_ns": 0,
        "origin_requests": None,
        "peer_link": cluster["peer_link"],
        "batch": training["batch"],
        "epochs": training["epochs"],
        "drop_last": training["drop_last"],
        "compute": training["compute"],
        "preprocess": training["preprocess"],
        "compat": "physical",
        "order": "shuffled",
        "seed": case["seed"],
        "barrier": True,
        "readers": "all",
        "write_cost": "preprocess",
        "hand_over": "sample",
        "bucket": None,
        "node_cache": None,
        "peers": False,
    }


def test_scenarios_and_vectors_have_the_same_names() -> None:
    assert sorted(vectors()) == sorted(jobspec.scenarios())


@pytest.mark.parametrize("name", jobspec.scenarios())
def test_a_scenario_equals_its_vector_in_every_field(name: str) -> None:
    case = vectors()[name]
    read = jobspec.scenario(name)
    assert simulation.scenario_of(read, "perfect") == expected_scenario(case)
    # Values that the simulator does not get are not set, except for the name and the policies.
    assert read.cache == jobspec.Cache(policies=jobspec.CACHE_POLICIES)
    assert [tier.name for tier in read.cluster.tiers] == ["ram", "disk"]
    assert (read.gradients, read.run, read.cost) == (jobspec.Gradients(), jobspec.Run(), jobspec.Cost())


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_thesis_scenario_lists_the_policies_that_the_thesis_prints(number: int) -> None:
    published = vectors()[f"thesis_{number}"]["published"]
    others = {"hash_owner", "static_share", "foresee"}
    assert set(published) == set(jobspec.scenario(f"thesis_{number}").cache.policies) - others
