# SPDX-License-Identifier: Apache-2.0
"""The price book: dates and sources of the shipped rows, precedence of a user's rows, and faults."""

from __future__ import annotations

import datetime as dt
import doctest
import importlib
from pathlib import Path

import pytest
from support.house import ROOT

from foresee.errors import ConfigError, NotMeasured
from foresee.planning import prices

PAGE = ROOT / "docs" / "formats" / "prices.md"
HEAD = "version = 1\n[[price]]\n"
VM = 'kind = "vm"\nprovider = "p"\nregion = "r"\nname = "n"\ndate = 2026-01-02\nsource = "s"\n'


def test_the_examples_in_the_docstrings_are_true() -> None:
    result = doctest.testmod(importlib.import_module("foresee.planning.prices"))
    assert result.attempted
    assert not result.failed


def test_every_shipped_row_has_a_source_and_a_date_in_the_past() -> None:
    book = prices.load()
    assert book.price
    for row in book.price:
        # A transcript is no price page and is not cited as one.
        assert row.source.startswith(("https://", "transcript")) or "IC2E" in row.source
        assert row.provider == "deli" or row.source.startswith("transcript")
        assert "transcript" not in (row.note or "")
        assert dt.date(2020, 1, 1) < row.date < dt.date(2026, 11, 23)
        assert row.currency == "USD"
    papers = [row.base for row in book.price if row.provider == "deli"]
    assert papers == [0.05, 0.002]


@pytest.mark.parametrize(
    ("provider", "region", "name"),
    [("aws", "us-east-1", "standard"), ("azure", "westus2", "hot"), ("gcp", "us-central1", "standard")],
)
def test_a_bucket_of_each_cloud_can_be_paid(provider: str, region: str, name: str) -> None:
    book = prices.load()
    assert 0.01 < book.find("bucket", provider, region, name).base < 0.03
    assert book.find("list", provider, region, name).base == pytest.approx(0.05)
    assert book.find("get", provider, region, name).base == pytest.approx(0.004)


def test_units_lead_to_one() -> None:
    row = prices.loads(
        HEAD + VM.replace('"vm"', '"bucket"') + 'price = 0.001\nunit = "EUR/GiB-h"\ndiscount = 50'
    ).price[0]
    assert row.base == pytest.approx(0.001 * 730 * 1e9 / 2**30 / 2)
    assert row.currency == "EUR"
    row = prices.loads(HEAD + VM.replace('"vm"', '"get"') + 'price = 3\nunit = "USD/1000000 requests"').price[
        0
    ]
    assert row.base == pytest.approx(0.03)


def test_egress_has_tiers() -> None:
    text = 'unit = "USD/GiB"\ntiers = [{up_to = "10 TB", price = 0.12}, {price = 0.08}]'
    row = prices.loads(HEAD + VM.replace('"vm"', '"egress"') + text).price[0]
    gib = 2**30 / 1e9
    assert row.tariff == ((1e13, pytest.approx(0.12 / gib)), (float("inf"), pytest.approx(0.08 / gib)))


def test_a_users_book_overrides_the_shipped_one(tmp_path: Path) -> None:
    shipped = prices.load().find("get", "gcp", "us-central1", "standard")
    path = tmp_path / "prices.toml"
    path.write_text(
        HEAD + 'kind = "get"\nprovider = "gcp"\nregion = "us-central1"\nname = "standard"\nprice = 1\n'
        'unit = "USD/10000 requests"\ndate = 2026-01-02\nsource = "our contract"\n'
    )
    book = prices.load(path)
    assert book.find("get", "gcp", "us-central1", "standard").base == 1.0 != shipped.base
    assert len(book.price) == len(prices.load().price)


def test_a_missing_row_is_not_zero() -> None:
    with pytest.raises(
        NotMeasured, match=r"price of vm n1-standard-5 at gcp in us-central1 .* did you mean n1-standard-4"
    ):
        prices.load().find("vm", "gcp", "us-central1", "n1-standard-5")
    with pytest.raises(NotMeasured, match="known names are none"):
        prices.load().find("vm", "aws", "eu-west-1", "p5")


def test_old_prices_cause_a_warning() -> None:
    book = prices.loads(HEAD + VM + 'price = 1\nunit = "USD/h"')
    assert prices.stale(list(book.price), dt.date(2027, 1, 2)) == []
    (result,) = prices.stale(list(book.price), dt.date(2027, 1, 3))
    assert result.startswith("1 price of p is of 2026-01-02, older than a year")


def test_the_page_has_every_kind_and_unit_and_its_example_is_a_book() -> None:
    page = PAGE.read_text()
    for kind, units in prices.KINDS.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"| `{kind}` |")]
        for unit in units:
            assert f"`{unit}`" in line
    assert prices.loads(page.split("```toml\n")[1].split("```")[0]).price


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "version is missing"),
        ("version = 3", "version = 3"),
        ("version = 1\nprices = 1", "did you mean price?"),
        (
            HEAD + VM + "price = -1\nunit = 'USD/h'",
            "price[0].price = -1; a finite number expected, 0 or more",
        ),
        (HEAD + VM + "price = nan\nunit = 'USD/h'", "price[0].price = nan"),
        (HEAD + VM + "unit = 'USD/h'", "a vm has a price and no tiers"),
        (HEAD + VM + "price = 1\nunit = 'USD/GB'", 'price[0].unit = "USD/GB"; of a vm, in any currency'),
        (HEAD + VM + "price = 1\nunit = '$/h'", 'price[0].unit = "$/h"'),
        (HEAD + VM + "price = 1", "price[0].unit is missing"),
        (
            HEAD + VM.replace("date = 2026-01-02\n", "") + "price = 1\nunit = 'USD/h'",
            "price[0].date is missing",
        ),
        (HEAD + VM.replace('source = "s"\n', "") + "price = 1\nunit = 'USD/h'", "price[0].source is missing"),
        (HEAD + VM.replace('"vm"', '"cpu"') + "price = 1\nunit = 'USD/h'", "one of vm, gpu, disk"),
        (HEAD + VM + "price = 1\nunit = 'USD/h'\ndiscount = 101", "price[0].discount = 101"),
        (
            HEAD + VM.replace('"vm"', '"egress"') + "price = 1\nunit = 'USD/GB'",
            "egress has tiers and no price",
        ),
        (
            HEAD
            + VM.replace('"vm"', '"egress"')
            + "unit = 'USD/GB'\ntiers = [{price = 1}, {up_to = 3, price = 1}]",
            "ascending expected",
        ),
        (
            HEAD + VM + "price = 1\nunit = 'USD/h'\n[[price]]\n" + VM + "price = 1\nunit = 'USD/h'",
            "is given twice",
        ),
    ],
)
def test_every_fault_is_named(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        prices.read(path)
    (fault,) = caught.value.faults
    assert fault.startswith(f"{path}: ")
    assert expected in fault
