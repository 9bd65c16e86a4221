# SPDX-License-Identifier: Apache-2.0
"""``foresee serve``: its messages and exit codes."""

from __future__ import annotations

import pytest

from foresee.cli import main

TOKEN = "a secret of 24 characters"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--bind", "127.0.0.1"], "is no address"),
        (["--bind", "::1:7000"], "write host:port, or [address]:port"),
        (["--bind", "127.0.0.1:99999"], "is no address"),
        (["--bind", "nobody.invalid:7000"], "no address is known of host 'nobody.invalid'"),
        (["--policy", "best"], "one of foresee, mercury"),
        (["--timeout", "0"], "10 ms to 24 h"),
        (["--timeout", "nan"], "a number of seconds"),
        (["--early-buffer", "0"], "--early-buffer 0"),
        (["--tls-key", "key.pem"], "give both or neither"),
        (["--tls-key", "no.pem", "--tls-cert", "no.pem"], "no.pem cannot be used for TLS"),
        (["--secret-file", "no-such-file"], "the secret cannot be read from no-such-file"),
    ],
)
def test_bad_input_has_exit_code_2(capsys, monkeypatch, arguments, words) -> None:
    monkeypatch.setenv("FORESEE_TOKEN", TOKEN)
    assert main(["serve", "--bind", "127.0.0.1:0", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


def test_a_missing_short_or_open_secret_has_exit_code_2(capsys, monkeypatch, tmp_path) -> None:
    assert main(["serve", "--bind", "127.0.0.1:0"]) == 2
    assert "FORESEE_TOKEN is not set" in capsys.readouterr().err
    monkeypatch.setenv("FORESEE_TOKEN", "short")
    assert main(["serve", "--bind", "127.0.0.1:0"]) == 2
    assert "has 5 bytes" in capsys.readouterr().err
    secret = tmp_path / "secret"
    secret.write_text(TOKEN)
    secret.chmod(0o644)
    assert main(["serve", "--bind", "127.0.0.1:0", "--secret-file", str(secret)]) == 2
    assert "chmod 600" in capsys.readouterr().err
