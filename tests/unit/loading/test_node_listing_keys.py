# SPDX-License-Identifier: Apache-2.0
"""Which listings the ranks of a node share."""

from __future__ import annotations

import pathlib

import pytest

from foresee import _native
from foresee._loading import data_source, node_listing
from foresee._runtime import ranks


def test_equal_listings_of_a_process_have_keys_that_depend_only_on_their_number() -> None:
    found = []
    for _ in range(2):
        node_listing._listings.clear()
        found.append([node_listing._numbered(("index", place)) for place in ("/a", "/a", "/b", "/a")])
    assert found[0] == found[1]
    assert len(set(found[0])) == 4
    assert {len(key) for key in found[0]} == {16}


@pytest.mark.parametrize(
    ("env", "shares"),
    [
        ({}, False),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, False),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"}, True),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "many"}, False),
    ],
)
def test_only_a_launcher_of_several_ranks_makes_peers(env: dict[str, str], shares: bool) -> None:
    assert ranks.has_local_peers(env) is shares


def test_a_single_rank_and_a_table_with_known_sizes_ask_no_other_rank(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    (tmp_path / "a.bin").write_bytes(b"abc")
    monkeypatch.setattr(_native, "share_listing", lambda *_: pytest.fail("another rank is asked"))
    known = {"root": str(tmp_path), "allow_missing": False, "options": None}
    alone = data_source.table([("file", ["a.bin"])], sizes=[None], **known)  # type: ignore[arg-type]
    monkeypatch.setattr(ranks, "has_local_peers", lambda: True)
    sized = data_source.table([("file", ["a.bin"])], sizes=[np.array([3])], **known)  # type: ignore[arg-type]
    assert alone.index.size(0) == sized.index.size(0) == 3
