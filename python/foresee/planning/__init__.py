# SPDX-License-Identifier: Apache-2.0
"""Planning a run before it starts: its time, the machine that it needs, and its price.

``simulation`` simulates a run under any loading policy, ``sizing`` searches for the smallest machine that meets a goal,
``cost`` computes the price of a run, and ``prices`` reads the price book. ``window`` counts misses of a cache in front
of a bucket, and ``bucket_window`` has the times of its prefetch window.

``compat="paper"`` follows a source to the letter, so that its numbers can be checked; the default is physical.
Needs no torch.
"""
