"""How keys are made, written and refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.model.api_keys import ApiKeyRequest, digest_of, make_api_key, parse_key, secret_matches
from sessions.model.errors import BadInput
from sessions.model.types import UnixMs

NOW = UnixMs(1_750_000_000_000)


@given(st.binary(min_size=40, max_size=40), st.binary(min_size=40, max_size=40))
def test_a_key_opens_itself_and_nothing_else(one: bytes, two: bytes) -> None:
    key, written = make_api_key(ApiKeyRequest(tenant="acme"), one, now=NOW)
    name, secret = parse_key(written) or ("", "")
    assert written == f"sk-sessile-{name}-{secret}" and name == key.id
    assert secret_matches(key, secret) and key.digest == digest_of(secret)
    other, _ = make_api_key(ApiKeyRequest(tenant="acme"), two, now=NOW)
    assert secret_matches(other, secret) == (one[8:] == two[8:])
    assert not secret_matches(None, secret)


@given(st.text(max_size=100))
def test_what_is_not_written_like_a_key_is_none(text: str) -> None:
    assert parse_key(text) is None


def test_near_misses_are_none() -> None:
    _, written = make_api_key(ApiKeyRequest(tenant="acme"), bytes(40), now=NOW)
    assert parse_key(written) is not None
    for wrong in (written + "\n", written + "a", written[:-1], written.upper(), " " + written, written[3:]):
        assert parse_key(wrong) is None


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        (ApiKeyRequest(tenant=""), "tenant"),
        (ApiKeyRequest(tenant="a\nb"), "tenant"),
        (ApiKeyRequest(tenant="a" * 129), "tenant"),
        (ApiKeyRequest(tenant="acme", user=""), "user"),
        (ApiKeyRequest(tenant="acme", role="service", user="ana"), "user"),
        (ApiKeyRequest(tenant="acme", name="\x1b[2J"), "name"),
        (ApiKeyRequest(tenant="acme", expires_at=NOW), "expires_at"),
        (ApiKeyRequest(tenant="acme", scopes=()), "scopes"),
        (ApiKeyRequest(tenant="acme", scopes=("admin",)), "scopes"),
    ],
)
def test_what_cannot_be_is_refused_by_name(wanted: ApiKeyRequest, param: str) -> None:
    with pytest.raises(BadInput) as refused:
        make_api_key(wanted, bytes(40), now=NOW)
    assert refused.value.param == param
