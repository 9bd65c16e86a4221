# SPDX-License-Identifier: Apache-2.0
"""A fake of Slurm's commands, after sbatch(1) and scontrol(1), in the virtual time of ``fake_clock``.

The real Slurm is in ``support.slurm``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foresee.stagger.slurm_commands import refusal
from support.fake_clock import FakeClock

__all__ = ["FakeController"]


class FakeController:
    """Collects commands, and returns configured answers."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.calls: list[str] = []
        """Commands in order."""
        self.environment: dict[str, str] = {}
        """Variables of the last submission."""
        self.job = ""
        """Output of ``scontrol show job``."""
        self.fails: dict[str, str] = {}
        """Output of failing commands, by name."""
        self.takes = 0.0
        """Seconds until a command of ``start`` ends."""

    def run(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        """Like ``Controller``."""
        self.calls.append(" ".join(words))
        if environment is not None:
            self.environment = dict(environment)
        return self.answer(words)

    def start(self, *words: str) -> _PendingCommand:
        """Like ``Controller``."""
        self.calls.append(" ".join(words))
        return _PendingCommand(self, words, self._clock, self.takes)

    def answer(self, words: Sequence[str]) -> str:
        """Return the output of a command at this moment."""
        if words[0] in self.fails:
            raise refusal(words[0], self.fails[words[0]])
        if words[0] == "sbatch":
            return "17;here\n"
        return self.job if "show" in words else ""


class _PendingCommand:
    """The future of a command, whose output is computed when it ends."""

    def __init__(
        self, controller: FakeController, words: tuple[str, ...], clock: FakeClock, takes: float
    ) -> None:
        self._controller, self._words, self._clock = controller, words, clock
        self._due = clock.now() + takes

    def done(self) -> bool:
        """Whether the command has ended."""
        return self._clock.now() >= self._due

    def result(self, timeout: float | None = None) -> str:
        """Wait for the output."""
        del timeout
        if not self.done():
            self._clock.sleep(self._due - self._clock.now())
        return self._controller.answer(self._words)
