# SPDX-License-Identifier: Apache-2.0
"""Models: what a step should cost, before and beside measuring it.

``network`` answers for a step whose gradients cross a network; ``trace`` reads and writes the figures of a model
that it is asked about. Formulas stand in the Rust core; here are their faces, with shapes and units. Needs no torch.
"""

from __future__ import annotations

from foresee.models import network, trace

__all__ = ["network", "trace"]
