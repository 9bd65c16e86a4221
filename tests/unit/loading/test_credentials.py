# SPDX-License-Identifier: Apache-2.0
"""Credentials of functions."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from typing import Any

import pytest

from foresee._loading import credentials
from foresee.errors import PackageMissing


def test_a_function_returns_credentials_and_their_end() -> None:
    end = datetime(2030, 1, 2, tzinfo=timezone.utc)

    def plain() -> dict[str, Any]:
        return {"access_key_id": "a", "secret_access_key": "b", "token": None, "expires_at": end}

    def unending() -> dict[str, Any]:
        return {"token": "t", "expires_at": None}

    name = credentials.register(plain)
    assert credentials.register(plain) == name != credentials.register(unending)
    assert credentials.function_of(name) is plain
    assert credentials.from_function(name) == (
        {"access_key_id": "a", "secret_access_key": "b"},
        end.timestamp(),
    )
    assert credentials.from_function(credentials.register(unending)) == ({"token": "t"}, None)


def test_a_function_without_a_mapping_or_of_another_process_is_an_error() -> None:
    with pytest.raises(TypeError, match="returned a str"):
        credentials.from_function(credentials.register(lambda: "secret"))
    with pytest.raises(LookupError, match="FORESEE_NODE=off"):
        credentials.from_function("none")


def test_a_profile_without_botocore_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    with pytest.raises(PackageMissing, match=r"install botocore, or foresee\[aws\]"):
        credentials.profile_settings("lab")
