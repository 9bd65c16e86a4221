# SPDX-License-Identifier: Apache-2.0
"""The file of a live prediction: golden text, documented keys, other formats."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.house import ROOT

from foresee import jobspec
from foresee.errors import ConfigError
from foresee.planning import simulation
from foresee.predict import prediction_file

GOLDEN = ROOT / "testdata" / "forecast" / "prediction.json"


def golden_text() -> str:
    small = jobspec.loads(
        'version = 1\n[data]\nsamples = 8\nsize = "1 MB"\n[train]\nbatch = 2\nepochs = 2\ncompute_step = 0.5\n'
        '[cluster]\nranks = 1\n[cluster.staging]\ncapacity = "8 MB"\nthreads = 1\n[cluster.origin]\nread = 4_000_000\n'
    )
    reports: list[simulation.Report] = []
    simulated = simulation.Run(small, "foresee", order="sequential")
    while len(reports) < 2:
        simulated.advance()
        if len(simulated.report().epochs) > len(reports):
            reports.append(simulated.report())
    predicted = prediction_file.predicted(reports, 2)
    within = prediction_file.interval([predicted, predicted | {"total_s": 4.0, "first_epoch_s": 2.0}])
    measured = prediction_file.measured([2.5, 2.0], [0.5, 0.0], {"origin_read": 0.4, "copy": 0.1}, 0.5)
    return prediction_file.dumps(
        {
            "policy": "foresee",
            "profile": "profile.toml",
            "machine": "two cores",
            "job": "job.toml",
            "rank": 0,
            "ranks": 1,
            "compute": {"from": "job file", "steps": 0, "step_s": 0.5, "bytes_per_s": None},
            "after_steps": 0,
            "predicted": predicted,
            "interval": within,
            "measured": measured,
            "error": prediction_file.error(predicted, measured),
            "moved": prediction_file.moved(predicted, within, measured),
        }
    )


def test_the_golden_file_is_written_and_read_back() -> None:
    text = golden_text()
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(text)
    assert GOLDEN.read_text() == text
    document = prediction_file.read(GOLDEN)
    assert prediction_file.dumps({key: value for key, value in document.items() if key != "version"}) == text


def test_the_documentation_names_every_key() -> None:
    page = (GOLDEN.parents[2] / "docs" / "formats" / "prediction.md").read_text()
    document = json.loads(GOLDEN.read_text())
    predicted = document["predicted"]
    keys = {
        *document,
        *predicted,
        *document["measured"],
        *document["error"],
        *document["compute"],
    }
    keys |= {*document["interval"], *document["moved"]}
    keys |= {
        *predicted["first_waits_s"],
        *(cause for place in prediction_file.SOURCES.values() for cause in place),
    }
    assert not {key for key in keys if f"`{key}`" not in page}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("{", "not a prediction file"), ('{"version": 1}', "version = 1"), ("[]", "version = None")],
)
def test_a_file_of_another_format_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ConfigError, match=expected):
        prediction_file.read(tmp_path / "p.json")
