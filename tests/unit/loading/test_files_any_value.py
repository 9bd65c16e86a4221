# SPDX-License-Identifier: Apache-2.0
"""User-written files with any value at any key are read, or refused with all faults."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.house import ROOT
from support.properties import TEXTS, properties

from foresee import jobspec
from foresee._schema import toml
from foresee._schema.checked import build
from foresee.errors import ConfigError
from foresee.jobspec import Job, Profile
from foresee.planning.prices import PriceBook
from foresee.storage.analysis.offers import Offers

FILES = {
    "job": (Job, ROOT / "testdata" / "job" / "full.toml"),
    "cost": (Job, ROOT / "testdata" / "job" / "cost.toml"),
    "profile": (Profile, ROOT / "testdata" / "job" / "profile.toml"),
    "prices": (PriceBook, ROOT / "testdata" / "job" / "prices.toml"),
    "offers": (Offers, ROOT / "docs" / "formats" / "offers.md"),
}

scalars = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    TEXTS,
    st.dates(),
    st.datetimes(),
    st.times(),
    st.sampled_from(
        ["120 GB", "-1 GB", "1e400 GB/s", "20 ms", "NaN", "1 Gb/s", "", "\0", 10**400, -(10**400)]
    ),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


def table(name: str) -> dict[str, Any]:
    """The golden file, as TOML has it."""
    text = FILES[name][1].read_text()
    return toml.parse(text.split("```toml\n")[1].split("```")[0] if text.startswith("<!--") else text)


def places(within: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every key of a table, of its tables and lists."""
    found = [path] if path else []
    keys = within if isinstance(within, dict) else range(len(within)) if isinstance(within, list) else ()
    for key in keys:
        found += places(within[key], (*path, key))
    return found


def change(within: Any, path: tuple[Any, ...], value: Any, key: str | None) -> None:
    """Set a value at a random place, or next to it under another key."""
    for part in path[:-1]:
        within = within[part]
    within[path[-1] if key is None or isinstance(within, list) else key] = value


@pytest.mark.parametrize("name", FILES)
@given(st.data())
@properties(soak=50)
def test_any_value_is_read_or_refused(name: str, data: st.DataObject) -> None:
    content = table(name)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(content)))
        key = data.draw(st.one_of(st.none(), TEXTS))
        change(content, path, data.draw(values), key)
    messages = faults(lambda: build(FILES[name][0], content))
    assert all(fault and "\n" not in fault for fault in messages)


@given(st.data())
@properties(soak=50)
def test_a_job_is_read_from_any_table_with_its_paths_and_profile(data: st.DataObject) -> None:
    content = table("job")
    content["cluster"].pop("profile")
    path = data.draw(st.sampled_from(places(content)))
    change(content, path, data.draw(values), None)
    messages = faults(lambda: jobspec.file._job(content, "/nowhere", None))
    assert all(messages)


@given(st.data())
@properties(soak=50)
def test_a_profile_completes_any_table(data: st.DataObject) -> None:
    profile = build(Profile, table("profile"))
    content = table("job")["cluster"]
    path = data.draw(st.sampled_from(places(content)))
    change(content, path, data.draw(values), None)
    completed = profile.complete(content)
    assert set(completed) >= set(content)


def faults(make: Callable[[], Any]) -> list[str]:
    """Return the faults; any other error fails the test."""
    try:
        make()
    except ConfigError as error:
        return error.faults or [""]
    except FileNotFoundError as error:  # a missing profile
        return [str(error)]
    return []


def test_dates_are_no_times() -> None:
    with pytest.raises(ConfigError, match="a date expected"):
        Profile(machine="a", date=dt.datetime(2026, 1, 2))  # noqa: DTZ001 - as TOML gives it
