# SPDX-License-Identifier: Apache-2.0
"""The pure parts of the paper's figures in benchmarks/bucket: points, miss rates, predictions, and tables."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support.benchmark_modules import Run, Runs, module_of, run

figure_points, figure_table, measures, predictions, sizes, task, trials = (
    module_of("bucket", name)
    for name in ("figure_points", "figure_table", "measures", "predictions", "sizes", "task", "trials")
)
MNIST, CIFAR = (size for size in sizes.FULL if size.is_figures)
TIMES = predictions.Times(read_s=0.02, download_s=0.025, hit_s=1e-5, file_s=2e-5)
COMPUTE_S = 0.004


def trial_of(size: Any, **wanted: object) -> Any:
    """Return the one point of a part with these fields."""
    (found,) = (
        trial
        for trial in trials.trials(size, quick=False)
        if all(getattr(trial, name) == value for name, value in wanted.items())
    )
    return found


def point_run(trial: Any, part: str = "figures_mnist", repeat: int = 0, **values: float) -> Run:
    """Return a run of a point, as its raw line has it."""
    known = {f"figure_{figure}": 1.0 for figure in trial.figures} | {"partition": 875.0}
    settings = {f"setting_{name}": float(n) for name, n in trial.settings.items()}
    return run(part, trial.arm, repeat, **known, **settings, **values)


@pytest.mark.parametrize("quick", [False, True])
def test_each_figure_has_points(quick: bool) -> None:
    for size in sizes.QUICK_FIGURES if quick else (MNIST, CIFAR):
        found = trials.trials(size, quick=quick)
        assert {figure for trial in found for figure in trial.figures} == set(range(3, 10))
        assert all(trial.arm in sizes.ARMS[size.theme] for trial in found)


def test_a_point_of_several_figures_is_measured_once() -> None:
    found = trials.trials(MNIST, quick=False)
    assert len({(trial.arm, *trial.settings.values()) for trial in found}) == len(found)
    assert trial_of(MNIST, cache=128, fetch=64, threshold=64).figures == (3, 4, 8, 9)


def test_sizes_have_the_ratios_of_the_paper() -> None:
    for size, partition in ((MNIST, 14_000), (CIFAR, 11_667)):
        assert size.cache_samples / size.partition == pytest.approx(2048 / partition, rel=1e-3)
        assert size.batch / size.cache_samples == 512 / 2048
        assert size.compute_s(1 / 0.0552) * partition == pytest.approx(
            14.7 if size is MNIST else 147.2, rel=2e-3
        )


def test_one_rank_of_three_runs() -> None:
    assert (MNIST.ranks, MNIST.hosts) == (3, 1)
    assert all(size.hosts == size.ranks for size in sizes.FULL if not size.is_figures)


def test_the_quick_run_has_the_figures_only_by_name() -> None:
    assert not any(size.is_figures for size in sizes.sizes_of(None, quick=True))
    assert [size.theme for size in sizes.sizes_of(["figures_cifar"], quick=True)] == ["figures_cifar"]
    assert sizes.sizes_of(None, quick=False) == sizes.FULL
    assert sizes.sizes_of([], quick=False) == []


def test_a_request_that_joins_a_read_counts_as_a_miss() -> None:
    epochs = [
        task.Epoch(counts={"cache_hits": 2.0, "cache_joins": 1.0, "cache_misses": 7.0}),
        task.Epoch(counts={"cache_hits": 8.0, "cache_joins": 4.0, "cache_misses": 8.0}),
    ]
    assert measures.miss_rates(task.Result(epochs=epochs)) == {
        "first_miss_rate": 0.8,
        "first_join_rate": 0.1,
        "second_miss_rate": 0.4,
        "second_join_rate": 0.3,
    }


def test_an_arm_without_a_cache_has_no_miss_rate() -> None:
    assert measures.miss_rates(task.Result(epochs=[task.Epoch()])) == {}


def test_direct_reads_are_predicted_by_the_time_of_one_read() -> None:
    values = predictions.predicted(MNIST, trial_of(MNIST, arm="direct_obstore"), TIMES, COMPUTE_S, 1)
    assert values["predicted_first_waited_s"] == pytest.approx(875 * 0.02)
    assert values["predicted_waited_s"] == pytest.approx(2 * 875 * 0.02)
    assert "predicted_first_miss_rate" not in values


def test_a_cache_of_everything_misses_the_first_epoch_and_two_thirds_of_the_second() -> None:
    values = predictions.predicted(MNIST, trial_of(MNIST, arm="cache", cache=0), TIMES, COMPUTE_S, 1)
    assert values["predicted_first_miss_rate"] == 1.0
    assert values["predicted_second_miss_rate"] == pytest.approx(2 / 3, abs=0.03)


def test_a_point_without_latency_has_no_predicted_time() -> None:
    values = predictions.predicted(MNIST, trial_of(MNIST, arm="cache", cache=438), TIMES, COMPUTE_S, 1)
    assert sorted(values) == ["predicted_first_miss_rate", "predicted_second_miss_rate"]
    assert values["predicted_second_miss_rate"] == pytest.approx(0.953, abs=0.03)


def test_two_halves_are_predicted_to_miss_less_than_one_large_fetch() -> None:
    half = predictions.predicted(
        CIFAR, trial_of(CIFAR, cache=128, fetch=64, threshold=64), TIMES, COMPUTE_S, 1
    )
    full = predictions.predicted(CIFAR, trial_of(CIFAR, cache=128, fetch=128), TIMES, COMPUTE_S, 1)
    assert half["predicted_second_miss_rate"] < full["predicted_second_miss_rate"]


def test_points_of_a_figure_have_their_repeats_together() -> None:
    half = trial_of(MNIST, cache=128, fetch=64, threshold=64)
    found = [point_run(half, repeat=n, waited_s=waited) for n, waited in enumerate((1.0, 5.0, 2.0))]
    found.append(dataclasses.replace(found[0], void="samples 3, expected 4"))
    found.append(point_run(trial_of(MNIST, arm="disk"), waited_s=0.1))
    (point,) = figure_points.points(Runs(found), "figures_mnist", 9)
    assert (point.measured("waited_s"), point.each("waited_s")) == (2.0, [1.0, 5.0, 2.0])
    assert (point.cache, point.fetch, point.threshold) == (128, 64, 64)
    assert point.measured("step_s") is None
    assert len(figure_points.points(Runs(found), "figures_mnist")) == 2


def test_numbers_of_the_text_stand_next_to_the_measurement_and_the_model() -> None:
    found = [
        point_run(trial_of(MNIST, arm="direct_obstore"), waited_s=40.0, predicted_waited_s=36.0),
        point_run(trial_of(MNIST, cache=128, fetch=64, threshold=64), waited_s=4.0, predicted_waited_s=9.0),
    ]
    rows = figure_table.markdown(Runs(found)).splitlines()
    assert (
        rows[2] == "| 3 | loading time saved by 50/50 against direct reads | MNIST | 0.856 | 0.900 | 0.750 |"
    )
    # The disk was not measured.
    assert rows[3].endswith("| MNIST | 8 to 16 |  |  |")


def test_caches_of_figure_5_are_found_by_their_share_of_the_partition() -> None:
    found = [
        point_run(trial, second_miss_rate=1 - trial.cache / 10_000, predicted_second_miss_rate=0.5)
        for trial in trials.trials(MNIST, quick=False)
        if 5 in trial.figures
    ]
    text = figure_table.markdown(Runs(found))
    assert (
        "| 5 | miss rate of epoch 2, cache of 25 % of a partition | MNIST | 0.989 | 0.978 | 0.500 |" in text
    )
    assert "| 5 | the same, 75 % | MNIST | 0.887 | 0.934 | 0.500 |" in text
    assert "| 5 | the same, no limit | MNIST | 0.667 | 1.000 | 0.500 |" in text


def test_a_row_of_a_point_has_both_epochs_and_the_model() -> None:
    rates = {
        "first_miss_rate": 0.5,
        "second_miss_rate": 0.25,
        "first_join_rate": 0.125,
        "second_join_rate": 0.0,
    }
    model = {
        "predicted_first_miss_rate": 0.75,
        "predicted_second_miss_rate": 0.625,
        "predicted_waited_s": 3.0,
    }
    one = point_run(
        trial_of(CIFAR, cache=64, fetch=64, threshold=16), "figures_cifar", waited_s=2.0, **rates, **model
    )
    last = figure_table.markdown(Runs([one])).splitlines()[-1]
    assert last == (
        "| 4, 8 | CIFAR-10 | window | 64 | 64 | 16 | 0.500, 0.250 | 0.125, 0.000 | 0.750, 0.625 | 2.00 | 3.00 |"
    )


def test_the_table_of_arms_leaves_the_figures_out() -> None:
    disk = point_run(trial_of(MNIST, arm="disk"), waited_s=1.0)
    void = dataclasses.replace(disk, void="bytes 1, expected 2")
    other = run("hit", "hit", hit_us=3.0)
    assert figure_table.without_figures(Runs([disk, void, other])).all == [void, other]
    assert figure_table.has_figures(Runs([disk]))
    assert not figure_table.has_figures(Runs([other, void]))
