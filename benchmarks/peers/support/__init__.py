# SPDX-License-Identifier: Apache-2.0
"""Sizes, loaders, loops, runs and acceptance lines of the benchmark of nodes that exchange samples."""
