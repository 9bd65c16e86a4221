# SPDX-License-Identifier: Apache-2.0
"""The files that the spans of a rank are written to: a Chrome trace, the ledger of a run folder, both, or none."""

from __future__ import annotations

import os

from foresee.config import Settings
from foresee.errors import ConfigError
from foresee.torch._exchange import GradientExchange, TracedExchange
from foresee.torch._rank_group import RankGroup
from foresee.torch.gradients._chrome import ChromeFile, rank_path
from foresee.torch.gradients._ledger import LedgerSink
from foresee.torch.gradients._timeline import EVENTS_PER_ROUND, Sink, Timeline

__all__ = ["Tracing", "find_timeline_faults"]


def find_timeline_faults(timeline: object, servers: object) -> list[str]:
    """Return the faults of the argument ``timeline``, each with its remedy."""
    if timeline is None:
        return []
    if not isinstance(timeline, str) or not timeline:
        return [f"timeline={timeline!r}; the path of a file, or None"]
    if isinstance(servers, GradientExchange) and not isinstance(servers, TracedExchange):
        kind = type(servers).__name__
        return [f"timeline={timeline!r}: {kind} does not log its packets; pass addresses as servers="]
    return []


class Tracing:
    """The requested files: ``timeline``, the path of a Chrome trace; and ``FORESEE_TRACE``, a run folder.

    Raises:
        ConfigError: an environment variable is wrong.
    """

    def __init__(self, timeline: str | None) -> None:
        self._timeline = None if timeline is None else os.path.expanduser(timeline)
        self._run_dir = Settings.read().run_dir

    @property
    def events(self) -> int:
        """Events that the exchange retains between two calls of ``timeline()``; 0: no file is requested."""
        return 0 if self._timeline is None and self._run_dir is None else EVENTS_PER_ROUND

    def open_timeline(self, group: RankGroup) -> Timeline | None:
        """Open the files, and return the timeline of the group's exchange; None if no file is requested.

        Raises:
            ConfigError: a file cannot be written; the group is closed.
        """
        exchange = group.exchange
        if not isinstance(exchange, TracedExchange):
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
            path = rank_path(self._timeline, rank)
            try:
                sinks.append(ChromeFile(path, rank))
            except OSError as error:
                raise ConfigError(
                    f"timeline={self._timeline!r}: {path} cannot be written: {error.strerror}"
                ) from error
        if self._run_dir is not None:
            sinks.append(LedgerSink(self._run_dir, rank))
        return sinks
