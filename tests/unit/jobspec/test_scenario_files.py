# SPDX-License-Identifier: Apache-2.0
"""The scenario files that ship are the vectors of ``testdata/models``, field by field, as the simulator is given them."""

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
    """By the name of the file that ships."""
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
    """Scenario 3 with five times the rates of computing and preprocessing, and the least room that the figure has."""
    case = copy.deepcopy(third)
    for rate in ("compute", "preprocess"):
        case["training"][rate] *= 5
    rooms = (32_000, 128_000) if form == "printed" else (32 * 1024, 128 * 1024)
    for tier, room in zip(case["cluster"]["tiers"], rooms, strict=True):
        tier["capacity"] = room * MEGA[form]
    if form == "script":
        # The other scripts have 7,272, of which this one lets the last digit go.
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


def told(case: dict[str, Any]) -> dict[str, Any]:
    """A vector in the simulator's words; what it leaves out is what files leave to their defaults."""
    cluster, data, training = case["cluster"], case["data"], case["training"]
    # Nobody reads staging but the consumer: the rate that is published for it is the one at which it is filled.
    staging = {**tier(cluster["staging"]), "read": [(1, 1)], "write": points(cluster["staging"]["read"])}
    # A file without a seed of its own draws sizes from 0: that of the scripts belongs to another generator.
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
    }


def test_every_scenario_has_a_vector_and_every_vector_a_file() -> None:
    assert sorted(vectors()) == sorted(jobspec.scenarios())


@pytest.mark.parametrize("name", jobspec.scenarios())
def test_a_scenario_is_its_vector_in_every_field(name: str) -> None:
    case = vectors()[name]
    read = jobspec.scenario(name)
    assert simulation.scenario_of(read, "perfect") == told(case)
    # What the simulator does not see is not set, but for the name and the policies.
    assert read.cache == jobspec.Cache(policies=jobspec.CACHE_POLICIES)
    assert [tier.name for tier in read.cluster.tiers] == ["ram", "disk"]
    assert (read.gradients, read.run, read.cost) == (jobspec.Gradients(), jobspec.Run(), jobspec.Cost())


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_thesis_scenario_lists_the_policies_that_the_thesis_prints(number: int) -> None:
    published = vectors()[f"thesis_{number}"]["published"]
    assert set(published) == set(jobspec.scenario(f"thesis_{number}").cache.policies) - {"foresee"}
