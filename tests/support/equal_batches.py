# SPDX-License-Identifier: Apache-2.0
"""Equality of two batches for training code: types, shapes, dtypes and values."""

from __future__ import annotations

from typing import Any

import torch


def assert_same(ours: Any, theirs: Any) -> None:
    """Both are equal, containers too."""
    assert type(ours) is type(theirs), f"{type(ours)} for {type(theirs)}"
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs), f"{ours} for {theirs}"
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for name, value in theirs.items():
            assert_same(ours[name], value)
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert ours == theirs
