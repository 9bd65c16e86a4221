# SPDX-License-Identifier: Apache-2.0
"""Ranks of one node list their data once, and each has the index that it would have alone."""

from __future__ import annotations

import json
import pathlib
import signal
from typing import Any

from support.data import CLASSES, make_folder
from support.node_ranks import digests, job_folder, launched, outcomes, ranks
from support.node_service import node_status, service
from support.processes import child
from support.servers import Bucket

RANKS = 4
SIZES = [900 + 37 * (sample % 11) for sample in range(96)]


def lists_of(bucket: Bucket, job: pathlib.Path, count: int, **env: str) -> tuple[int, list[list[str]]]:
    """Run a job of ``count`` ranks; return its requests of listings, and the batches of each rank."""
    bucket.testbed.reset()
    plan = {"root": bucket.uri, "storage_options": bucket.options, "epochs": 2}
    with ranks(job, [plan] * count, env=env) as programs:
        found = outcomes(programs)
    for file in job.glob("end-*"):
        file.unlink()
    assert [errors for _, errors in found] == [""] * count
    return bucket.testbed.counters()["lists"], [digests(lines) for lines, _ in found]


def test_four_ranks_request_exactly_the_listings_of_one(
    bucket: Bucket, job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    bucket.put_folder(make_folder(tmp_path / "data", SIZES))
    alone, _ = lists_of(bucket, job, 1)
    assert alone > 0
    separate, expected = lists_of(bucket, job, RANKS, FORESEE_NODE="off")
    assert separate == RANKS * alone
    shared, found = lists_of(bucket, job, RANKS)
    assert shared == alone
    assert found == expected
    # The same launcher's variables again, as those of a job that torchrun starts without a run id.
    bucket.put(f"{CLASSES[0]}/new.jpg", b"new")
    again, newer = lists_of(bucket, job, RANKS)
    assert again == alone
    assert newer != found


def test_two_jobs_of_a_node_list_once_each(bucket: Bucket, job: pathlib.Path, tmp_path: pathlib.Path) -> None:
    bucket.put_folder(make_folder(tmp_path / "data", SIZES))
    alone, _ = lists_of(bucket, job, 1)
    bucket.testbed.reset()
    plan = {"root": bucket.uri, "storage_options": bucket.options}
    with job_folder() as other:
        sockets = {"XDG_RUNTIME_DIR": str(job)}
        with (
            ranks(job, [plan] * 2, env={**sockets, "TORCHELASTIC_RUN_ID": "first"}) as first,
            ranks(other, [plan] * 2, env={**sockets, "TORCHELASTIC_RUN_ID": "second"}) as second,
        ):
            found = outcomes(first) + outcomes(second)
    assert [errors for _, errors in found] == [""] * 4
    assert bucket.testbed.counters()["lists"] == 2 * alone


def test_two_jobs_of_a_service_list_once_each_and_read_the_origin_once(
    bucket: Bucket, job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The second job may see other objects, so it lists too. The service only tries the origin, once."""
    bucket.put_folder(make_folder(tmp_path / "data", SIZES))
    alone, _ = lists_of(bucket, job, 1)
    bucket.testbed.reset()
    plan, socket = {"root": bucket.uri, "storage_options": bucket.options}, job / "node.sock"
    with service(socket) as warm, job_folder() as other:
        warm.line()
        env = {"XDG_RUNTIME_DIR": str(job), "FORESEE_NODE": str(socket)}
        with (
            ranks(job, [plan] * 2, env={**env, "TORCHELASTIC_RUN_ID": "first"}) as first,
            ranks(other, [plan] * 2, env={**env, "TORCHELASTIC_RUN_ID": "second"}) as second,
        ):
            found = outcomes(first) + outcomes(second)
        status = node_status(socket)
    assert [errors for _, errors in found] == [""] * 4
    assert bucket.testbed.counters()["lists"] == 2 * alone + 1
    assert status is not None
    assert status["origin"]["bytes"] == sum(SIZES)


def test_without_access_each_rank_raises_the_error_of_its_own_listing(
    bucket: Bucket, job: pathlib.Path
) -> None:
    plan = {"root": bucket.uri, "storage_options": {**bucket.options, "secret_access_key": "wrong"}}
    with ranks(job, [plan] * 3) as programs:
        found = outcomes(programs, fails=range(3))
    for lines, errors in found:
        assert lines == []
        assert "OriginDenied" in errors.splitlines()[-1]
        assert "alone" not in errors


ONE_LISTER = """
    import json, pathlib, sys
    from foresee import _native
    from support.node_ranks import meet
    from support.processes import print_json
    from support.waiting import wait_until
    plan = json.loads(sys.argv[1])
    def build():
        print_json(lists=True)
        if plan["hold"]:
            wait_until((pathlib.Path(plan["job"]) / "go").exists, what="the test's signal")
        return _native.Index.build(plan["root"], layout="folder"), 5, 6
    index, elements, files = _native.share_listing(bytes(range(16)), build)
    meet(plan["job"], "end")
    print_json(found=[index.fingerprint, index.uri, len(index), index.outside, elements, files])
"""


def rank(job: pathlib.Path, root: pathlib.Path, number: int, *, hold: bool) -> Any:
    """A rank of three that shares one listing."""
    plan = json.dumps({"job": str(job), "root": str(root), "hold": hold})
    return child(ONE_LISTER, plan, env=launched(number, 3, job))


def test_another_rank_lists_when_the_one_that_lists_is_killed(
    job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root = make_folder(tmp_path / "data", SIZES)
    (root / "outside.jpg").touch()
    with rank(job, root, 0, hold=True) as first:
        assert first.line() == {"lists": True}
        with rank(job, root, 1, hold=False) as second, rank(job, root, 2, hold=False) as third:
            first.send(signal.SIGKILL)
            first.wait()
            (job / "killed-0").touch()
            found = [lines for lines, _ in outcomes([second, third])]
    assert sorted(len(lines) for lines in found) == [1, 2], "one of both lists"
    assert found[0][-1] == found[1][-1]
    assert found[0][-1]["found"][2:] == [len(SIZES), 1, 5, 6]


SOURCES = """
    import json, sys
    import numpy as np
    from foresee._loading import data_source
    from support.node_ranks import meet
    from support.processes import print_json
    plan = json.loads(sys.argv[1])
    store = dict(options=None)
    table = data_source.table([("image", plan["rows"])], root=plan["root"], sizes=[None], allow_missing=False, **store)
    cut = dict(dtype=np.dtype("u2"), length=7, stride=7, drop_tail=True, exclude=None)
    windows, *unused = data_source.windows(plan["root"] + "/tokens", **cut, **store)
    folder = data_source.resolve(plan["root"], exclude=(name for name in ["tokens/"]))
    meet(plan["job"], "before")
    if plan["first"]:
        open(plan["new"], "wb").close()
    meet(plan["job"], "after")
    newer = data_source.resolve(plan["root"], exclude=["tokens/"])
    sources = [table, windows, folder, newer]
    print_json(sources=[[one.fingerprint, one.uri, one.listed, len(one)] for one in sources], unused=unused)
    meet(plan["job"], "end")
"""


def test_tables_windows_and_a_second_listing_are_those_of_a_rank_that_lists_alone(
    job: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root, found = make_folder(tmp_path / "data", SIZES), {}
    (root / "tokens").mkdir()
    (root / "tokens" / "0.bin").write_bytes(bytes(2 * 100))
    rows = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))
    new = root / CLASSES[0] / "new.jpg"
    plan = {"root": str(root), "rows": rows[::3], "new": str(new)}
    plans = [{**plan, "first": number == 0} for number in range(2)]
    for node in ("", "off"):
        with ranks(job, plans, source=SOURCES, env={"FORESEE_NODE": node}) as programs:
            found[node] = outcomes(programs)
        new.unlink()
        for file in job.glob("*-?"):
            file.unlink()
    (shared, second), alone = found[""], found["off"]
    assert shared == second, "both ranks have equal sources"
    lines, errors = shared
    for sources in (lines, alone[0][0]):
        # The file that the last listing has in addition is new in each run.
        sources[0]["sources"][3][0] = None
    assert lines == alone[0][0]
    assert errors == ""
    counts = [one[3] for one in lines[0]["sources"]]
    assert counts[3] == counts[2] + 1, "the second listing is new"
    assert lines[0]["unused"] == [2, 1]
