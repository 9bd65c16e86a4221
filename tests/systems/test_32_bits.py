# SPDX-License-Identifier: Apache-2.0
"""Orders and plans on 32 bits: the tests of the crates that decide, with the golden files of 64 bits.

All nodes of a job compute one plan, so a plan must not depend on the width of `usize`. The target has a C library of its
own, and rustup's linker suffices for it. Crates with dependencies in C are left out.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.environment import plain_environment
from support.house import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from setup import TARGET_32_BIT
from steps import BUILD_BIN

#: What is run, with the tests that compare with golden files or hashes of 64 bits.
RUNS = {
    "-p foresee-units -p foresee-model -p foresee-data-order -p foresee-data-plan -p foresee-data-fetch": [
        "distributed_sampler_matches_torch_in_6480_epochs_of_all_ranks",
        "seedable_shard_matches_accelerate_in_2304_epochs_of_all_ranks",
        "golden::every_golden_placement_is_unchanged",
        "golden::the_hash_of_a_plan_depends_on_its_inputs_alone",
    ],
    "-p foresee-sim --test planner": ["golden::every_golden_plan_is_unchanged"],
}

# Minutes to compile, seconds to run.
pytestmark = [pytest.mark.systems, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(
    ("selection", "golden"), RUNS.items(), ids=["orders and placements", "plans of ranks"]
)
def test_deciders_on_32_bits_pass_their_tests_with_the_golden_files_of_64_bits(
    selection: str, golden: list[str]
) -> None:
    linker = f"CARGO_TARGET_{TARGET_32_BIT.upper().replace('-', '_')}_LINKER"
    paths = os.pathsep.join([os.environ["PATH"], str(BUILD_BIN)])
    environment = plain_environment(
        {linker: "rust-lld", "CARGO_TARGET_DIR": str(ROOT / "target"), "PATH": paths}
    )
    # It would write golden files.
    environment.pop("UPDATE_GOLDEN", None)
    command = ["cargo", "nextest", "run", "--locked", "--target", TARGET_32_BIT, "--status-level", "pass"]
    done = subprocess.run(
        [*command, *selection.split()],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name for name in golden if name not in done.stderr] == []
