# SPDX-License-Identifier: Apache-2.0
"""``foresee stagger predict`` of plans: three jobs and more, coalescing caches, late arrivals, and simulated plans."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.table_one import MODELS, TOML, facts, write

from foresee.cli import main


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    return [write(tmp_path, "resnet"), write(tmp_path, "efficientnet")]


def test_a_cache_that_coalesces_takes_any_number_of_jobs(tmp_path: Path, capsys) -> None:
    files = []
    for name, step, epochs in (("a", 300, 1), ("b", 250, 1), ("c", 500, 2)):
        path = tmp_path / f"{name}.toml"
        values = {"data": "d", "epochs": epochs, "seed": 0, "start": 0, "compute": step}
        path.write_text(TOML.format(stagger="wait_cached = 0", **values).replace("1560", "1000"))
        files.append(str(path))
    for read in ("750s", "750", "12.5 min"):
        result = facts(capsys, *files, "--coalesces", "--read", read)
        assert result["plan"] == {
            "leader": "c",
            "case": "behind",
            "starts": [950, 1000, 0],
            "runs": [300, 250, 1250],
            "within_cache": [True, True, True],
            "makespan": 1250,
            "gpu_seconds": 1800,
            "from_now": None,
            "at_once": {"makespan": 1250, "gpu_seconds": 2750},
            "sequential": 1800,
        }
    assert result["jobs"][0]["estimated"] == ["wait", "wait_conc"]
    assert main(["stagger", "predict", *files, "--coalesces", "--read", "750s"]) == 0
    out = capsys.readouterr().out
    assert "  leads" in out
    assert "34.5 % less than all at once; only GPU-seconds are to be gained" in out
    assert "* estimated" in out


def test_more_than_two_jobs_start_so_that_none_catches_up(tmp_path: Path, pair: list[str], capsys) -> None:
    files = [*pair, write(tmp_path, "resnet2", "wait = 0.5\nwait_cached = 0", epochs=2)]
    plan = facts(capsys, *files, "--slack", "0")["plan"]
    # The fastest pipeline leads; the job of two epochs ends last.
    assert plan["leader"] == "efficientnet"
    assert plan["makespan"] == pytest.approx(1560 * (0.748 + 0.3036))
    assert plan["at_once"] is None
    assert plan["starts"][1] == 0
    for i in (0, 2):
        assert plan["starts"][i] + plan["runs"][i] == pytest.approx(plan["makespan"])
    assert main(["stagger", "predict", *files]) == 0
    assert "no job catches up" in capsys.readouterr().out


def test_jobs_of_a_plan_may_arrive_later(tmp_path: Path, capsys) -> None:
    files = [write(tmp_path, "resnet", start=100), write(tmp_path, "efficientnet", start=2000)]
    plan = facts(capsys, *files, "--coalesces", "--read", "1166.88 s", "--simulate")["plan"]
    assert plan["leader"] == "resnet"
    assert plan["starts"] == [0, 1900]
    # It arrives so late that it waits for nothing: the plan starts it at once.
    assert plan["at_once"] == pytest.approx({key: plan[key] for key in ("makespan", "gpu_seconds")})
    assert plan["played"]["makespan"] == pytest.approx(plan["makespan"])


def test_a_plan_with_late_jobs_is_compared_with_sequential_runs(tmp_path: Path, capsys) -> None:
    # The first job computes all the time; the second reads faster and leads, so no job may start before it.
    files = []
    for name, step, epochs, start in (("a", 500, 2, 0), ("b", 100, 9, 10)):
        path = tmp_path / f"{name}.toml"
        values = {"data": "d", "epochs": epochs, "seed": 0, "start": start, "compute": step}
        path.write_text(TOML.format(stagger="wait_cached = 0", **values).replace("1560", "1000"))
        files.append(str(path))
    arguments = [*files, "--coalesces", "--read", "100 s"]
    plan = facts(capsys, *arguments)["plan"]
    assert (plan["leader"], plan["makespan"]) == ("b", 1010)
    assert plan["at_once"] == pytest.approx({"makespan": 1000, "gpu_seconds": 1900})
    assert main(["stagger", "predict", *arguments]) == 0
    assert "0.0 % less than all at once, which take 1,000.0 s" in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--coalesces", "--read", "1166.88 s"]])
def test_of_several_jobs_the_first_may_run_already(
    tmp_path: Path, pair: list[str], options: list[str], capsys
) -> None:
    files = [*pair, write(tmp_path, "resnet2", "wait = 0.5\nwait_cached = 0.04")]
    result = facts(capsys, *files, *options, "--running", "90")
    plan, elapsed = result["plan"], 0.9 * result["jobs"][0]["alone_seconds"]
    assert plan["leader"] == "resnet"
    assert plan["starts"][0] == 0
    # None starts before now, and all start behind it; the slowest ends last.
    assert min(plan["starts"][1:]) == pytest.approx(elapsed)
    assert plan["makespan"] == pytest.approx(elapsed + 1560 * (0.3036 + 0.04))
    assert plan["starts"][1] + plan["runs"][1] == pytest.approx(plan["makespan"])


def test_jobs_that_do_not_wait_start_at_once(tmp_path: Path, capsys) -> None:
    nothing = "wait = 0\nwait_cached = 0\nwait_conc = 0"
    files = [write(tmp_path, name, nothing) for name in ("resnet", "efficientnet")]
    for order in facts(capsys, *files)["orders"]:
        assert order["best"]["start"] == 0
    files.append(write(tmp_path, "resnet2", nothing, epochs=2))
    for options in ([], ["--coalesces", "--read", "100 s"]):
        assert facts(capsys, *files, *options)["plan"]["starts"] == [0, 0, 0]


def test_a_plan_may_be_simulated(pair: list[str], capsys) -> None:
    plan = facts(capsys, *pair, "--coalesces", "--read", "1166.88 s", "--simulate")["plan"]
    assert plan["played"]["makespan"] == pytest.approx(plan["makespan"])
    assert plan["played"]["gpu_seconds"] == pytest.approx(plan["gpu_seconds"])
    assert main(["stagger", "predict", *pair, "--coalesces", "--read", "1166.88 s", "--simulate"]) == 0
    assert "played step by step: makespan 1,166.9 s" in capsys.readouterr().out


def test_starts_that_are_better_in_the_simulation_are_predicted(tmp_path: Path, capsys) -> None:
    files = []
    for name, epochs in (("a", 1), ("b", 1), ("c", 4)):
        path = tmp_path / f"{name}.toml"
        values = {"data": "d", "epochs": epochs, "seed": 0, "start": 0, "compute": 250}
        given = "wait = 0.75\nwait_cached = 0\nwait_conc = 0.05"
        path.write_text(TOML.format(stagger=given, **values).replace("1560", "100"))
        files.append(str(path))
    plan = facts(capsys, *files)["plan"]
    assert (plan["case"], plan["starts"]) == ("together", [0, 0, 0])
    assert plan["within_cache"] == [True, True, True]
    assert main(["stagger", "predict", *files]) == 0
    assert "all as early as they can" in capsys.readouterr().out


def test_a_cache_that_is_too_small_for_several_jobs_is_reported(tmp_path: Path, capsys) -> None:
    files = [write(tmp_path, name, "wait = 0.45\nwait_cached = 0.04") for name in MODELS]
    files.append(write(tmp_path, "resnet2", "wait = 0.45\nwait_cached = 0.04", start=900))
    plan = facts(capsys, *files, "--cache", "0.1", "--running", "0", code=1)["plan"]
    assert plan["leader"] == "resnet"
    assert plan["within_cache"] == [True, False, False]
