# SPDX-License-Identifier: Apache-2.0
"""Processes that end with their parent, also when it is killed."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send ``by`` to this process when its parent ends (Linux, ``man 2 prctl``)."""
    parent = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(by)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os.kill(os.getpid(), by)
