# SPDX-License-Identifier: Apache-2.0
"""Shared by all benchmarks: the description of the host, verdicts, and result files."""
