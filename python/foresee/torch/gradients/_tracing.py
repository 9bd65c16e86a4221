# SPDX-License-Identifier: Apache-2.0
"""Which files the spans of a rank go to: a Chrome trace that the user asks for, the ledger of a run folder, or none."""

from __future__ import annotations

import os

from foresee.config import Settings
from foresee.errors import ConfigError
from foresee.torch._exchange import GradientExchange, Traced
from foresee.torch._rank_group import RankGroup
from foresee.torch.gradients._chrome import ChromeFile, file_of
from foresee.torch.gradients._ledger import LedgerSink
from foresee.torch.gradients._timeline import EVENTS_PER_ROUND, Sink, Timeline

__all__ = ["Tracing", "timeline_faults"]


def timeline_faults(timeline: object, servers: object) -> list[str]:
    """What is wrong with the argument ``timeline``, with its remedy."""
    if timeline is None:
        return []
    if not isinstance(timeline, str) or not timeline:
        return [f"timeline={timeline!r}; the path of a file, or None"]
    if isinstance(servers, GradientExchange) and not isinstance(servers, Traced):
        kind = type(servers).__name__
        return [
            f"timeline={timeline!r}: {kind} does not tell what its packets do; pass addresses as servers="
        ]
    return []


class Tracing:
    """What is asked for: ``timeline``, the path of a Chrome trace; and ``FORESEE_TRACE``, a run folder.

    Raises:
        ConfigError: an environment variable is wrong.
    """

    def __init__(self, timeline: str | None) -> None:
        self._timeline = None if timeline is None else os.path.expanduser(timeline)
        self._run_dir = Settings.read().run_dir

    @property
    def events(self) -> int:
        """How many the exchange logs between two calls of ``timeline()``; 0: nothing is asked for."""
        return 0 if self._timeline is None and self._run_dir is None else EVENTS_PER_ROUND

    def of(self, group: RankGroup) -> Timeline | None:
        """The timeline of a group's exchange with its files open; None where nothing is asked for.

        Raises:
            ConfigError: a file cannot be written. The group is closed then.
        """
        exchange = group.exchange
        if not isinstance(exchange, Traced):
            return None
        try:
            sinks = self._sinks(exchange.rank)
        except BaseException:
            group.close()
            raise
        return Timeline(exchange, sinks) if sinks else None

    def _sinks(self, rank: int) -> list[Sink]:
        sinks: list[Sink] = []
        if self._timeline is not None:
            path = file_of(self._timeline, rank)
            try:
                sinks.append(ChromeFile(path, rank))
            except OSError as error:
                raise ConfigError(
                    f"timeline={self._timeline!r}: {path} cannot be written: {error.strerror}"
                ) from error
        if self._run_dir is not None:
            sinks.append(LedgerSink(self._run_dir, rank))
        return sinks
