# SPDX-License-Identifier: Apache-2.0
"""Ranks started by a real Ray and its torch trainer, in a separate environment."""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Callable

import pytest
from support import framework_runs as runs
from support import gradients
from support.processes import ROOT, Child, plain_environment
from support.recorded_example import write_rows

PYTHON = ROOT / ".ray-venv" / "bin" / "python"
RANKS = 2

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]


def trained(folder: pathlib.Path, servers: str, **variables: str) -> list[dict]:
    """Train, and return the final report of each rank."""
    paths = f"{ROOT / 'python'}:{ROOT / 'tests'}"
    env = plain_environment({"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0", **variables})
    done = subprocess.run(
        [PYTHON, "-m", "support.ray_job", str(folder), str(RANKS), servers],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"rank-{rank}").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("place", ["a server", "colocated"])
def test_ranks_started_by_ray_have_the_bits_of_the_reference(
    started: Callable[[Child], Child], tmp_path: pathlib.Path, place: str
) -> None:
    # Ray sets the number of local ranks, so the ranks of a node exchange hierarchically.
    expected = started(gradients.reference(RANKS, RANKS)).line()["digest"]
    if place == "colocated":
        # Without a configured secret, the process group's store provides one.
        reports = trained(tmp_path, "colocated")
    else:
        server = started(gradients.serve("--bind", "127.0.0.1:0"))
        reports = trained(tmp_path, server.line()["address"], FORESEE_TOKEN=gradients.TOKEN)
    assert [one["digest"] for one in reports] == [expected] * RANKS
    if place == "a server":
        assert [bool(one["stats"]["sent_bytes"]) for one in reports] == [True, False]


# The example with recording loaders; a worker of the first attempt fails in its second epoch.
FAILING_WORKER = """
    import json, logging, os, pathlib, sys
    import ray
    from support import recorded_example
    from torch.utils.data import DistributedSampler

    train = recorded_example.example("ray")
    ray.cloudpickle.register_pickle_by_value(train)
    original = train.work

    def work(given):
        import foresee.torch as ft
        folder = pathlib.Path(given["path"]).parent
        rank = ray.train.get_context().get_world_rank()
        is_first = ray.train.get_checkpoint() is None
        os.environ["RECORDED"] = str(folder / ("first" if is_first else "rest"))
        recorded_example.install()

        class Failing(recorded_example.TorchLoader):
            def __iter__(self):
                for batch in super().__iter__():
                    if is_first and rank == 1 and self.state_dict()["epoch"] == 1:
                        raise RuntimeError("this worker is lost")
                    yield batch

        ft.DataLoader = Failing
        original(given)

        # Ray's own call accepts the loader, reads it one batch ahead, and causes a warning.
        messages = []
        logging.getLogger("foresee").addFilter(lambda message: messages.append(message.getMessage()) or False)
        loader = recorded_example.TorchLoader.__bases__[0](ft.ArrayDataset(given["path"]), batch_size=8, shuffle=True, seed=0)
        ids = [round(float(row[0]) * 64) for batch in ray.train.torch.prepare_data_loader(loader) for row in batch]
        (folder / f"messages-{rank}").write_text(json.dumps([ids, messages]))

    train.work = work
    ray.init(num_cpus=3, include_dashboard=False)
    sys.argv = ["train.py", *sys.argv[1:]]
    train.main()
    ray.shutdown()
"""


def test_workers_read_their_shares_and_resume_mid_epoch_after_a_failure(
    tmp_path: pathlib.Path,
) -> None:
    rows = write_rows(tmp_path / "rows.npy", 51)
    for name in ("first", "rest"):
        (tmp_path / name).mkdir()
    arguments = [rows, "--every", 3, "--checkpoints", tmp_path / "checkpoints"]
    runs.run_text(FAILING_WORKER, tmp_path, *arguments, place=PYTHON.parent, RAY_USAGE_STATS_ENABLED="0")
    for rank in range(RANKS):
        whole = runs.expected(51, rank=rank, ranks=RANKS)
        first = runs.batches(tmp_path / "first", rank)
        assert first == whole[: len(first)]
        # A worker was lost after the fourth step; the last checkpoint is from the third.
        assert len(first) >= 4
        assert runs.batches(tmp_path / "rest", rank) == whole[3:]
        ids, messages = json.loads((tmp_path / f"messages-{rank}").read_text())
        assert ids == [i for epoch, batch in whole if epoch == 0 for i in batch]
        assert ["prepare_data_loader() requests one batch more" in text for text in messages] == [True]
