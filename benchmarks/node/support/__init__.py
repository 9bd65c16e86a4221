# SPDX-License-Identifier: Apache-2.0
"""Processes, origins, measurements and acceptance lines of the benchmark of a node's cache."""
