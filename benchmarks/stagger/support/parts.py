# SPDX-License-Identifier: Apache-2.0
"""The parts of the benchmark, with interleaved arms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .models import NETWORKS, PAIRS
from .session import Session

PARTS = ("calibration", "pairs", "networks", "several")
SEVERAL = (
    ("inception_v3", "resnet50", "efficientnet_b0"),
    ("inception_v3", "resnet50", "efficientnet_b0", "vgg16"),
)
#: Starts of the paper's exhaustive search, in percent of the leader's run alone.
SEARCH = tuple(range(0, 101, 10))
QUICK_PAIR, QUICK_SEARCH = PAIRS[1], (0,)


def calibration(session: Session, repeats: int, each: Sequence[Sequence[str]]) -> None:
    """Measure the cost of each pair's calibration, in both forms."""
    for _ in range(repeats):
        for names in each:
            session.calibrate(names, "short", cost=True)
            session.calibrate(names, "long", cost=True)


def pairs(session: Session, repeats: int, each: Sequence[Sequence[str]]) -> None:
    """Measure each pair in both orders at every start, and once as the command runs it."""
    made = []
    for names in each:
        catalog = session.calibrate(names, "long")
        made.append((names, catalog, session.predict(names, catalog)))
    for repeat in range(repeats):
        for names, catalog, facts in made:
            for order in facts["orders"]:
                _search(session, "pairs", order, SEARCH)
            if repeat == 0:
                session.command("command", names, catalog)


def networks(session: Session, repeats: int) -> None:
    """Measure two networks that train, in both orders."""
    catalog = session.calibrate(NETWORKS, "long")
    facts = session.predict(NETWORKS, catalog)
    for _ in range(repeats):
        for order in facts["orders"]:
            _search(session, "networks", order, (0,))


def several(session: Session, repeats: int, each: Sequence[Sequence[str]] = SEVERAL) -> None:
    """Measure three and four jobs as the command runs them."""
    catalogs = [session.calibrate(names, "short") for names in each]
    for _ in range(repeats):
        for names, catalog in zip(each, catalogs, strict=True):
            session.command("several", names, catalog)


def quick(session: Session) -> None:
    """Measure one pair in its better order, and three jobs."""
    catalog = session.calibrate(QUICK_PAIR, "quick", cost=True)
    facts = session.predict(QUICK_PAIR, catalog)
    best = next(each for each in facts["orders"] if each["leader"] == facts["best"]["leader"])
    _search(session, "pairs", best, QUICK_SEARCH)
    session.command("command", QUICK_PAIR, catalog)
    several(session, 1, SEVERAL[:1])


def _search(session: Session, part: str, order: dict[str, Any], percents: Sequence[int]) -> None:
    names = [order["leader"], order["follower"]]
    rows = {round(row["percent"]): row for row in order["table"]}
    for percent in percents:
        row = rows[percent]
        session.run_pair(part, names, str(percent), row["start"], row["makespan"])
    session.run_pair(part, names, "best", order["best"]["start"], order["best"]["makespan"])
    session.run_pair(part, names, "sequential", None, order["sequential"]["makespan"])
