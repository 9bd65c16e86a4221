# SPDX-License-Identifier: Apache-2.0
"""Gradients over TLS: `foresee serve` with a certificate, ranks with `tls://`, and every mismatch."""

from __future__ import annotations

import pytest
from support import gradients
from support.recording_proxy import CERTIFICATE, KEY, RecordingProxy

WITH_TLS = ("--tls-cert", CERTIFICATE, "--tls-key", KEY)


@pytest.fixture
def serving(started):
    """Start a server; returns its address."""

    def start(*arguments: str) -> str:
        report = started(gradients.serve("--bind", "127.0.0.1:0", *arguments)).line()
        assert report["tls"] == ("--tls-cert" in arguments)
        return report["address"]

    return start


@pytest.fixture
def report_of(started):
    """Return the report of a single rank of a server, which ends within its timeout."""

    def run_rank(address: str) -> dict:
        child = started(gradients.rank(0, 1, [address]))
        report = child.line()
        assert child.end()[0] == 0
        return report

    return run_rank


def test_ranks_train_to_the_same_bits_under_tls(started, serving) -> None:
    addresses = [f"tls://{serving(*WITH_TLS)}" for _ in range(2)]
    group = started(gradients.torchrun(2, addresses, {"FORESEE_TOKEN": gradients.TOKEN}))
    for _ in range(2):
        report = group.line()
        assert report.get("digest") == gradients.expected(2), report
    status, output, errors = group.end()
    assert status == 0, output + errors


def test_a_rank_without_tls_gets_an_error_from_a_tls_server(serving, report_of) -> None:
    address = serving(*WITH_TLS)
    report = report_of(address)
    assert report["error"] == "ConfigError", report
    assert f"{address} uses TLS, which is off here" in report["text"]


def test_a_rank_with_tls_gets_an_error_from_a_plain_server(serving, report_of) -> None:
    address = serving()
    report = report_of(f"tls://{address}")
    assert report["error"] == "ConfigError", report
    assert f"{address} does not use TLS, which is on here" in report["text"]


def test_a_man_in_the_middle_fails_even_with_the_servers_certificate(serving, report_of) -> None:
    with RecordingProxy(serving(*WITH_TLS), tls=True) as proxy:
        report = report_of(f"tls://{proxy.address}")
        assert report["error"] == "ConfigError", report
        assert f"the secret of {proxy.address} differs" in report["text"]
        assert proxy.sent, "no bytes went through the man in the middle"
