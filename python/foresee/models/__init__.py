# SPDX-License-Identifier: Apache-2.0
"""Models: what a step should cost, before and beside measuring it.

``network`` answers for a step whose gradients cross a network; ``trace`` reads and writes the figures of a model
that it is asked about; ``loading`` for a whole run, under any policy of loading. Formulas and simulators of these stand
in the Rust core; here are their faces, with shapes and units. ``cost``
is what a run costs, ``prices`` the book that it is asked with, ``window`` how often a cache before a bucket misses,
``storage`` what in the storage holds a job back, ``stagger`` when jobs that read the same data should start: numpy and
plain arithmetic. Needs no torch.
"""

from __future__ import annotations

from foresee.models import cost, loading, network, prices, stagger, storage, trace, window

__all__ = ["cost", "loading", "network", "prices", "stagger", "storage", "trace", "window"]
