# SPDX-License-Identifier: Apache-2.0
"""I/O time of a finished job: tables by process and class, out of run folders and Darshan logs.

``ledger`` and ``darshan`` read tables, ``epochs`` reads one table per epoch, ``waits`` the waits of training loops,
``node_caches`` the caches that ranks of a node shared, and ``offers`` possible purchases. ``answers`` asks
``foresee.storage.model`` for bottlenecks and changes that meet a goal. Needs no torch; ``ledger``, ``waits`` and
``node_caches`` need the extra ``ledger``, ``darshan`` needs the extra of its name.
"""

from __future__ import annotations

from foresee.storage.analysis import answers, darshan, epochs, ledger, node_caches, offers, waits
from foresee.storage.analysis.table import IoTable, align, join

__all__ = [
    "IoTable",
    "align",
    "answers",
    "darshan",
    "epochs",
    "join",
    "ledger",
    "node_caches",
    "offers",
    "waits",
]
