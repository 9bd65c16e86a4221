# SPDX-License-Identifier: Apache-2.0
"""I/O time of a finished job: tables by process and class, out of run folders and Darshan logs.

``table`` is what both become, ``ledger`` and ``darshan`` read them, ``offers`` reads what could be bought, ``answers``
asks what holds the job back and what would meet a goal, of ``foresee.storage.model``, which knows no file, ``epochs``
tells run folders' epochs apart, and ``waits`` reads what their training loops waited for. Needs no torch; ``ledger``
and ``waits`` need the extra ``ledger``, ``darshan`` needs the extra of its name.
"""

from __future__ import annotations

from foresee.storage.analysis import answers, darshan, epochs, ledger, offers, waits
from foresee.storage.analysis.table import IoTable, align, join

__all__ = ["IoTable", "align", "answers", "darshan", "epochs", "join", "ledger", "offers", "waits"]
