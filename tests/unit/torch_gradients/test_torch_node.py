# SPDX-License-Identifier: Apache-2.0
"""Which ranks of a node exchange as one, and how its members find their leader."""

from __future__ import annotations

from pathlib import Path

import pytest

from foresee._runtime.ranks import World, detect
from foresee.errors import ConfigError, RankLost
from foresee.torch import _node
from foresee.torch._node import LeaderAddress, leader_rank, wait_for_leader


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.parametrize(
    ("world", "first"),
    [
        (World(5, 8, 1, 4, True), 4),
        (World(4, 8, 0, 4, True), 4),
        (World(0, 2, 0, 2, True), 0),
        (World(3, 4, 0, 1, True), None),
        # Uneven, not in the order of the nodes, or unknown.
        (World(1, 5, 1, 2, True), None),
        (World(1, 4, 0, 2, True), None),
        (World(1, 2, 1, 2, False), None),
    ],
)
def test_ranks_of_equal_nodes_in_order_exchange_as_one(world: World, first: int | None) -> None:
    assert leader_rank(world) == first


def test_the_local_size_is_known_only_from_a_launcher() -> None:
    both = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert detect(environ=both).local_size_known
    assert detect(1, 2, environ=both).local_size_known
    del both["LOCAL_WORLD_SIZE"]
    assert detect(environ=both) == World(1, 2, 1, 2, local_size_known=False)
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}
    assert not detect(environ=slurm).local_size_known
    assert detect(environ=slurm | {"SLURM_NTASKS_PER_NODE": "2"}).local_size_known


def test_a_folder_that_other_users_can_access_is_refused(tmp_path: Path) -> None:
    folder = Path(_node._path("job", 0)).parent
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match="not this user's alone"):
        LeaderAddress("job", 0, "127.0.0.1:5", 0.1)


def test_a_wait_for_the_leader_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_node, "LOG_EVERY_S", 0.0)
    answers = iter([None, None, "127.0.0.1:6"])
    monkeypatch.setattr(_node, "find_leader", lambda job, leader: next(answers))
    assert wait_for_leader("job", 4, 60.0) == "127.0.0.1:6"
    assert "waiting for rank 4, which exchanges for this node" in caplog.text


def test_a_missing_leader_is_named_after_a_limit() -> None:
    with pytest.raises(
        RankLost, match=r"rank 4, which exchanges for this node, did not come .* within 0 s"
    ) as lost:
        wait_for_leader("job", 4, 0.1)
    assert lost.value.rank == 4
