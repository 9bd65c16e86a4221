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
    """Writes down what it is asked, and answers what it was told to."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.calls: list[str] = []
        """What it was asked, in order."""
        self.environment: dict[str, str] = {}
        """Variables of the last submission."""
        self.job = ""
        """What ``scontrol show job`` prints."""
        self.fails: dict[str, str] = {}
        """What commands print that fail, by their names."""
        self.takes = 0.0
        """Seconds until the answer to a command of ``start`` is there."""

    def run(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        """As ``Controller``."""
        self.calls.append(" ".join(words))
        if environment is not None:
            self.environment = dict(environment)
        return self.answer(words)

    def start(self, *words: str) -> _PendingCommand:
        """As ``Controller``."""
        self.calls.append(" ".join(words))
        return _PendingCommand(self, words, self._clock, self.takes)

    def answer(self, words: Sequence[str]) -> str:
        """What a command prints now."""
        if words[0] in self.fails:
            raise refusal(words[0], self.fails[words[0]])
        if words[0] == "sbatch":
            return "17;here\n"
        return self.job if "show" in words else ""


class _PendingCommand:
    """The future of a command; its output is that of the moment at which it ends."""

    def __init__(
        self, controller: FakeController, words: tuple[str, ...], clock: FakeClock, takes: float
    ) -> None:
        self._controller, self._words, self._clock = controller, words, clock
        self._due = clock.now() + takes

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._clock.now() >= self._due

    def result(self, timeout: float | None = None) -> str:
        """Wait for the answer."""
        del timeout
        if not self.done():
            self._clock.sleep(self._due - self._clock.now())
        return self._controller.answer(self._words)
