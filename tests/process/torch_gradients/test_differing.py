# SPDX-License-Identifier: Apache-2.0
"""Errors that are equal on all ranks: class, named rank, first difference, and remedy."""

from __future__ import annotations

import pytest
import torch
from support import differing_ranks

DIFFERENCES = {
    "comm_dtype": "dtype on the wire is f32 on rank 0 and bf16 on rank 1; pass the same comm_dtype= on all ranks",
    "overlap": "overlap= is 'forward' on rank 0 and 'backward' on rank 1, so weights would drift apart; give every rank "
    "the same",
    "buffers": "tensor '1.running_mean' is given on rank 0 and missing on rank 1; every rank must build the same model and "
    "pass the same buffers=",
    "recover": "recover= is True on rank 0 and False on rank 1, so not every rank would wait for a lost server's "
    "replacement; give every rank the same",
    "clip": "clip= is None on rank 0 and 'exact' on rank 1, so weights would drift apart; give every rank the same",
}


def store():
    return torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_an_argument_that_differs_is_named_on_every_rank_with_both_values(started):
    rendezvous = store()
    ranks = [started(differing_ranks.rank(one, 2, rendezvous.port, "arguments")) for one in range(2)]
    assert differing_ranks.ARGUMENTS.keys() == DIFFERENCES.keys()
    for case, text in DIFFERENCES.items():
        for child in ranks:
            report = child.line()
            assert (report["case"], report["error"], report["text"]) == (case, "ConfigError", text)


@pytest.mark.parametrize("api", ["synchronize", "ddp_hook"])
def test_a_rank_lost_with_the_server_in_its_process_is_named_by_the_others(started, api):
    rendezvous = store()
    ranks = [started(differing_ranks.rank(one, 3, rendezvous.port, "lost", api)) for one in range(3)]
    for child in (ranks[0], ranks[2]):
        report = child.line()
        assert (report["error"], report["rank"]) == ("RankLost", 1), report
        assert report["text"].startswith("lost rank 1: "), report
        assert "look at " in report["text"], report
        assert "start the server first" not in report["text"], report
