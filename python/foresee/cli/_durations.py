# SPDX-License-Identifier: Apache-2.0
"""Durations on the command line: a number with a unit."""

from __future__ import annotations

import re

from foresee.errors import ConfigError


def read_seconds(option: str, text: str, *, zero: bool) -> float:
    """Return the seconds of ``text``, such as ``"10m"`` or ``"7d"``; ``zero``: whether 0 is allowed.

    Raises:
        ConfigError: it is none; the message names ``option``.

    >>> read_seconds("--idle-exit", "10m", zero=False)
    600.0
    """
    from foresee._schema.values import Refused, Time

    try:
        # `m` are minutes, as for sleep(1) and systemd. Job files have `min` only, where `m` could be read as metres.
        return Time(zero=zero).read(re.sub(r"(?<=[0-9])\s*m\s*$", " min", text))
    except Refused as error:
        least = "a time" if zero else "a time above 0"
        raise ConfigError(
            f"{option} {text!r}: {least} with its unit expected, such as 10m (ms, s, m, h, d)"
        ) from error
