# SPDX-License-Identifier: Apache-2.0
"""Models: what a step should cost, before and beside measuring it.

``network`` answers for a step whose gradients cross a network; ``trace`` reads and writes the figures of a model
that it is asked about. Their formulas stand in the Rust core; here are their faces, with shapes and units. ``stagger``
answers for jobs that read the same data, in numpy alone. Needs no torch.
"""

from __future__ import annotations

from foresee.models import network, stagger, trace

__all__ = ["network", "stagger", "trace"]
