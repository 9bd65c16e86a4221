# SPDX-License-Identifier: Apache-2.0
"""Gradients under TLS: `foresee serve` with a certificate, ranks that say `tls://`; and every way in which it goes wrong."""

from __future__ import annotations

import pytest
from support import gradients
from support.between import CERTIFICATE, KEY, Between

WITH_TLS = ("--tls-cert", CERTIFICATE, "--tls-key", KEY)


@pytest.fixture
def serving(started):
    """Starts a server; where it listens."""

    def start(*arguments: str) -> str:
        told = started(gradients.serve("--bind", "127.0.0.1:0", *arguments)).line()
        assert told["tls"] == ("--tls-cert" in arguments)
        return told["address"]

    return start


@pytest.fixture
def told(started):
    """What becomes of a lone rank of a server; it ends within its patience."""

    def ask(place: str) -> dict:
        child = started(gradients.rank(0, 1, [place]))
        said = child.line()
        assert child.end()[0] == 0
        return said

    return ask


def test_ranks_train_to_the_same_bits_under_tls(started, serving) -> None:
    places = [f"tls://{serving(*WITH_TLS)}" for _ in range(2)]
    group = started(gradients.torchrun(2, places, {"FORESEE_TOKEN": gradients.TOKEN}))
    for _ in range(2):
        said = group.line()
        assert said.get("digest") == gradients.expected(2), said
    status, output, errors = group.end()
    assert status == 0, output + errors


def test_a_rank_without_tls_gets_an_error_from_a_tls_server(serving, told) -> None:
    place = serving(*WITH_TLS)
    said = told(place)
    assert said["error"] == "ConfigError", said
    assert f"{place} wants TLS, which is off here" in said["text"]


def test_a_rank_with_tls_gets_an_error_from_a_plain_server(serving, told) -> None:
    place = serving()
    said = told(f"tls://{place}")
    assert said["error"] == "ConfigError", said
    assert f"{place} does not speak TLS, which is on here" in said["text"]


def test_a_man_in_the_middle_fails_even_with_the_servers_certificate(serving, told) -> None:
    with Between(serving(*WITH_TLS), tls=True) as between:
        said = told(f"tls://{between.address}")
        assert said["error"] == "ConfigError", said
        assert f"the secret of {between.address} differs" in said["text"]
        assert between.said, "nobody sat between"
