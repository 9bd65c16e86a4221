# SPDX-License-Identifier: Apache-2.0
"""Signals that end a command that has started processes."""

from __future__ import annotations

import subprocess
import sys

from support.waiting import WATCHDOG


def test_simultaneous_signals_do_not_interrupt_the_cleanup() -> None:
    source = (
        "import os, signal\nfrom foresee.cli._signals import signals_as_interrupt\nwith signals_as_interrupt():\n    try:\n"
        "        signal.pthread_sigmask(signal.SIG_BLOCK, [1, 2, 15])\n"
        "        for number in (1, 2, 15):\n            os.kill(os.getpid(), number)\n"
        "        signal.pthread_sigmask(signal.SIG_UNBLOCK, [1, 2, 15])\n        signal.pause()\n"
        "    except KeyboardInterrupt:\n        signal.sigtimedwait([], 0.1)\n        print('cleaned up')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False, timeout=WATCHDOG
    )
    assert (done.returncode, done.stdout) == (0, "cleaned up\n"), done.stderr


def test_a_deferred_interrupt_waits_for_a_check_or_the_end_and_is_never_lost() -> None:
    program = (
        "import os, signal\nfrom foresee.cli._signals import deferred_interrupt\n"
        "def interrupt(): os.kill(os.getpid(), signal.SIGINT)\n"
        "for at_end in (False, True):\n    done = []\n    try:\n        with deferred_interrupt() as check:\n"
        "            check()\n            interrupt()\n            done.append('body')\n"
        "            if not at_end:\n                check()\n                done.append('after the check')\n"
        "        done.append('after the block')\n    except KeyboardInterrupt:\n        print(done)\n"
        "try:\n    interrupt()\nexcept KeyboardInterrupt:\n    print('at once')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=WATCHDOG
    )
    assert ran.stdout.splitlines() == ["['body']", "['body']", "at once"], ran.stderr
