# SPDX-License-Identifier: Apache-2.0
"""Caching for torch's own ``DataLoader``: ``CachedDataset`` and ``PrefetchSampler``."""
