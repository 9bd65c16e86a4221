# SPDX-License-Identifier: Apache-2.0
"""Hosts, workloads, parts and acceptance lines of the gradients benchmark."""
