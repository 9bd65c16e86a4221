# SPDX-License-Identifier: Apache-2.0
"""Parts of the benchmark of staggering: its jobs, its origin, what is measured, and how that is judged."""
