"""Secrets of the tools file: where they stand, and what no header may be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.tools.secrets import (
    PARTS_MAX,
    SENT_MAX,
    Secret,
    SecretHeader,
    SecretText,
    SentSecrets,
    check_headers,
    header_values,
    secret_values,
    without_secrets,
)

MANY = "; ".join(f"k{n}=secret-{n}" for n in range(10, 60))


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
    sent.add([f"secret {number}" for number in range(SENT_MAX)])
    assert sent.taken_out("first") == "first", "so many are remembered"


@pytest.mark.parametrize(
    ("value", "secrets"),
    [
        ("Bearer abcd1234efgh", ["Bearer abcd1234efgh", "abcd1234efgh"]),
        ("AWS4-HMAC-SHA256 abcd1234", ["AWS4-HMAC-SHA256 abcd1234", "abcd1234"]),
        ("Basic YW5uYTpzM2NyM3Q=", ["Basic YW5uYTpzM2NyM3Q=", "YW5uYTpzM2NyM3Q="]),
        ("YW5uYTpzM2NyM3==", ["YW5uYTpzM2NyM3=="]),
        ('Token token="abc123secret"', ['Token token="abc123secret"', 'token="abc123secret"', "abc123secret"]),
        ("sessionid=abcd1234; theme=dark", ["sessionid=abcd1234; theme=dark", "abcd1234"]),
        ("id=abcd1234==,key=efgh5678", ["id=abcd1234==,key=efgh5678", "abcd1234==", "efgh5678"]),
        ("true", []),
        (MANY, [MANY, *(f"secret-{n}" for n in range(10, 10 + PARTS_MAX))]),
    ],
)
def test_the_secrets_in_a_header_sent_over_the_api(value: str, secrets: list[str]) -> None:
    assert list(SecretText(value).secrets) == secrets


def test_headers_that_are_no_secrets_stay_in_answers() -> None:
    given = {"Accept": "application/json", "User-Agent": "our-client/1.0", "x-verbose": "true", "x-key": "abcd1234"}
    headers: dict[str, Secret] = {name: SecretText(value) for name, value in given.items()}
    assert secret_values(headers, {}) == (given, ("abcd1234",))


def test_secrets_are_removed_as_json_has_them() -> None:
    secrets = SecretText('Token token="abc123/secret\\"').secrets
    for echoed in (secrets[0], json.dumps(secrets[0]), json.dumps(secrets[0]).replace("/", "\\/"), secrets[-1]):
        left = without_secrets(secrets, echoed.encode()).decode()
        assert "[removed]" in left and "abc123" not in left and "Token" not in left
    assert without_secrets(("whole secret", "secret"), b"a whole secret") == b"a [removed]"
