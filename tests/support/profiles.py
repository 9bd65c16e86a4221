# SPDX-License-Identifier: Apache-2.0
"""A minimal machine profile for predictions of a run in memory."""

from __future__ import annotations

PROFILE = """
version = 1
machine = "here"
date = 2026-11-22
[[figure]]
name = "tier.ram.read"
at = 1
value = 5.0
unit = "GB/s"
[[figure]]
name = "origin.read"
at = 1
value = 100.0
unit = "MB/s"
"""
