# SPDX-License-Identifier: Apache-2.0
"""What all benchmarks share: the machine they run on, how a verdict is told, and where results go."""
