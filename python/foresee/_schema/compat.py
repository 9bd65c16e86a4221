# SPDX-License-Identifier: Apache-2.0
"""Whether a model follows its paper to the letter."""

from __future__ import annotations

from typing import Literal

Compat = Literal["physical", "paper"]
