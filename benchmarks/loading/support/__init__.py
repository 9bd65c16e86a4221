# SPDX-License-Identifier: Apache-2.0
"""Data, origins, processes and acceptance lines, shared by all arms."""
