# SPDX-License-Identifier: Apache-2.0
"""The pure parts of benchmarks/bucket: sizes, proof of work, values, and acceptance lines."""

from __future__ import annotations

import dataclasses
import gzip
import zlib
from pathlib import Path

import numpy as np
import pytest
from support.benchmark_modules import Run, Runs, key, module_of, proof, run

data, lines, measures, sizes, table, task = (
    module_of("bucket", name) for name in ("data", "lines", "measures", "sizes", "table", "task")
)
IDS = np.array([2, 0, 3, 1], np.uint64)
CRCS = np.array([10, 20, 30, 40], np.uint64)


def epoch(**changes: object) -> object:
    """An epoch of 4 samples of 8 bytes, delivered in the order of ``IDS``."""
    whole = task.Epoch(samples=4, bytes=32, order=proof.order_checksum(IDS), checksum=100)
    return dataclasses.replace(whole, **changes)


def line_of(found: list[Run], name: str) -> object:
    return next(line for line in lines.judge(Runs(found)) if line.name == name)


def test_ranks_compute_so_long_that_they_need_60_percent_of_the_native_rate() -> None:
    size = next(size for size in sizes.FULL if size.is_deli)
    assert size.ranks / size.compute_s(3000.0) == pytest.approx(0.6 * 3000.0)
    assert size.window == 1024
    assert size.cache_bytes == 2048 * size.sample_bytes


def test_every_rank_has_equally_many_samples() -> None:
    for size in [*sizes.FULL, *sizes.QUICK]:
        assert size.samples % size.ranks == 0, size.part


def test_direct_reads_end_with_a_whole_batch_or_with_the_epoch() -> None:
    size = dataclasses.replace(sizes.QUICK[0], samples=900, ranks=3, batch=64, direct_samples=100)
    assert size.read_of_epoch("direct") == 128
    assert size.read_of_epoch("ours") == 300
    assert dataclasses.replace(size, direct_samples=290).read_of_epoch("threads") == 300
    assert dataclasses.replace(size, direct_samples=0).read_of_epoch("direct") == 300


def test_the_quick_run_judges_at_least_half_of_the_lines() -> None:
    found = []
    for size in sizes.QUICK:
        for arm in sizes.ARMS[size.theme]:
            values = ("waited_s", "step_s", "hit_over_dict_us", "first_epoch_s", "second_epoch_s")
            found.append(run(size.part, arm, **dict.fromkeys(values, 1.0)))
    judged = lines.judge(Runs(found))
    assert 2 * sum(line.holds is not None for line in judged) >= len(judged)


def test_an_epoch_in_the_expected_order_is_accepted() -> None:
    assert proof.void([[epoch()]], [[IDS]], CRCS, 8) == ""


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"samples": 3}, "samples 3"),
        ({"bytes": 31}, "bytes 31"),
        ({"order": proof.order_checksum(np.sort(IDS))}, "order"),
        ({"checksum": 101}, "checksum 101"),
    ],
)
def test_an_epoch_that_differs_voids_its_run(changes: dict[str, int], named: str) -> None:
    assert proof.void([[epoch(**changes)]], [[IDS]], CRCS, 8).startswith(f"rank 0, epoch 0: {named}")


def test_a_missing_epoch_voids_its_run() -> None:
    assert proof.void([[]], [[IDS]], CRCS, 8) == "rank 0 had 0 epochs, expected 1"


def test_the_order_of_batches_adds_up_to_that_of_the_epoch() -> None:
    assert proof.order_checksum(IDS[2:], proof.order_checksum(IDS[:2])) == proof.order_checksum(IDS)


def test_times_of_a_part_of_an_epoch_are_scaled_to_the_epoch() -> None:
    size = dataclasses.replace(sizes.QUICK[0], samples=8, ranks=1, sample_bytes=8)
    result = task.Result(
        epochs=[
            epoch(seconds=3.0, waits_s=[1.0, 0.5], steps_s=[1.0, 2.0]),
            epoch(seconds=2.0, waits_s=[0.5]),
        ],
        cpu_s=0.4,
    )
    values = measures.values_of(size, [result], {"requests_total": 8, "body_bytes": 64}, read=4)
    assert values["waited_s"] == 4.0
    assert (values["first_epoch_s"], values["second_epoch_s"], values["seconds"]) == (6.0, 4.0, 10.0)
    assert values["origin_over_delivered"] == 1.0
    assert values["cpu_s_per_sample"] == pytest.approx(0.05)


def test_the_first_step_of_each_epoch_of_the_recipe_does_not_count() -> None:
    epochs = [task.Epoch(seconds=7.0, steps_s=[5.0, 1.0, 1.0]), task.Epoch(seconds=3.0, steps_s=[2.0, 1.0])]
    assert measures.step_s(task.Result(epochs=epochs)) == 1.0


def test_a_reduction_is_the_median_of_the_repeats() -> None:
    found = [run("deli_mnist_20ms", "direct", repeat, waited_s=100.0) for repeat in range(3)]
    found += [
        run("deli_mnist_20ms", "ours", repeat, waited_s=waited) for repeat, waited in enumerate((1, 4, 9))
    ]
    line = line_of(found, "deli_mnist_20ms_waited_reduction")
    assert (line.value, line.holds) == (0.96, True)


def test_waits_are_compared_with_the_disk_by_the_ranges_of_the_repeats() -> None:
    found = [
        run("deli_cifar_57ms", "ours", repeat, waited_s=waited) for repeat, waited in enumerate((1.1, 1.4))
    ]
    found += [
        run("deli_cifar_57ms", "disk", repeat, waited_s=waited) for repeat, waited in enumerate((0.9, 1.2))
    ]
    line = line_of(found, "deli_cifar_57ms_waited_over_disk")
    assert line.holds
    assert line.value == pytest.approx(1.1 / 1.2, abs=1e-4)


def test_the_best_peer_is_that_of_the_same_repeat() -> None:
    found = [run("peers", "ours", repeat, first_epoch_s=1.0) for repeat in range(2)]
    found += [
        run("peers", "boto3", repeat, first_epoch_s=seconds) for repeat, seconds in enumerate((4.0, 2.0))
    ]
    found += [run("peers", "litdata_raw", 0, first_epoch_s=2.0)]
    assert line_of(found, "peers_first_epoch_over_best").value == 0.5


def test_a_line_without_runs_has_the_reason() -> None:
    line = line_of([Run("hit", "hit", 0, 1, 1, void="3 samples differ")], "hit_us")
    assert (line.holds, line.why) == (None, "hit: 3 samples differ")


def test_tasks_and_results_survive_the_way_between_processes() -> None:
    place = task.Place("/folder", "http://127.0.0.1:1", "data", "x/")
    one = task.Task("ours", place, 8, 8, 2, 1, 0, 0, 1, 0.0, 64, 0, 8, "/scratch", {"threads": 2})
    assert task.Task.from_json(one.to_json()) == one
    result = task.Result(epochs=[task.Epoch(samples=3)], values={"hit_us": 1.0})
    assert task.Result.from_json(result.to_json()) == result


def test_pictures_become_samples_that_start_with_their_number(tmp_path: Path) -> None:
    rows = np.arange(3 * 784, dtype=np.uint32).astype(np.uint8).reshape(3, 784)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(b"\0" * 16 + rows.tobytes()))
    size = dataclasses.replace(sizes.QUICK[0], samples=3)
    with pytest.raises(ValueError, match="fewer than 4 pictures"):
        data.read_pictures(file, 4)
    assert np.array_equal(data.read_pictures(file, 3), rows)
    data.write_rows(tmp_path / "bucket", rows)
    sample = (tmp_path / "bucket" / key(2)).read_bytes()
    assert sample == (2).to_bytes(8, "little") + rows[2].tobytes()
    assert len(sample) == size.sample_bytes
    assert int(proof.checksums(tmp_path / "bucket", 3)[2]) == zlib.crc32(sample)


def test_a_row_of_the_table_has_the_setting_and_the_spread() -> None:
    found = [
        run("peers", "boto3", repeat, waited_s=waited, setting_workers=4)
        for repeat, waited in enumerate((1, 3))
    ]
    rows = table.markdown(Runs(found)).splitlines()
    assert rows[2].startswith("| peers | boto3 | workers 4 | 1 | 2.000 (1.000 to 3.000) |")
