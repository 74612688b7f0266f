"""Secrets of the tools file: where they stand, and what no header may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.tools.secrets import (
    SENT_MAX,
    Secret,
    SecretHeader,
    SentSecrets,
    check_headers,
    header_values,
    secret_values,
    without_secrets,
)


def test_values_stand_in_files_and_in_the_environment(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("word\n")
    given: dict[str, Secret] = {
        "a": SecretHeader(file=str(tmp_path / "s"), prefix="Bearer "),
        "b": SecretHeader(env="B"),
        "c": "plain",
    }
    assert secret_values(given, {"B": "x"}) == ({"a": "Bearer word", "b": "x", "c": "plain"}, ("word", "x"))
    with pytest.raises(ValueError, match="B is not set"):
        secret_values(given, {})
    with pytest.raises(ValueError, match="either"):
        SecretHeader()


@pytest.mark.parametrize("name", ["Host", "content-length", "Idempotency-Key"])
def test_headers_that_are_ours(name: str) -> None:
    with pytest.raises(ValueError, match="set by the server"):
        check_headers({name: "x"})


def test_signs_that_no_header_has() -> None:
    with pytest.raises(ValueError, match="signs"):
        header_values({"a": SecretHeader(env="A")}, {"A": "x\ny"})
    with pytest.raises(ValueError, match="signs"):
        check_headers({"a": "x\ny"})
    with pytest.raises(ValueError, match="twice"):
        check_headers({"a": "x", "A": "y"})


def test_what_was_sent_is_taken_out_of_answers() -> None:
    assert without_secrets(("secret", "abc"), b"a secret, abc") == b"a [removed], abc"
    sent = SentSecrets()
    sent.add(("first", "second"))
    sent.add(("third",))
    assert sent.taken_out("first second third \ud800") == "[removed] [removed] [removed] \ud800"
    sent.add(f"secret {number}" for number in range(SENT_MAX))
    assert sent.taken_out("first") == "first", "so many are remembered"
