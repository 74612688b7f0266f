"""Ids, token packing and usage: the small functions that everything stands on."""

from __future__ import annotations

import msgspec
import pytest

from sessions.model.types import (
    LOCAL_PRINCIPAL,
    pack_tokens,
    unpack_tokens,
)


def test_users_of_two_issuers_have_ids_of_their_own() -> None:
    users = [
        ("jwt:https://idp/a", "x"),
        ("jwt:https://idp", "a/x"),
        ("jwt:https://idp", "a%2Fx"),
        ("jwt:https://idp", "/x"),
        ("jwt:https://idp/", "x"),
    ]
    ids = {msgspec.structs.replace(LOCAL_PRINCIPAL, key_id=key_id, user=user).id for key_id, user in users}
    assert len(ids) == len(users)


def test_tokens_are_four_bytes_each() -> None:
    packed = pack_tokens([1, 2**32 - 1])
    assert packed == b"\x01\0\0\0\xff\xff\xff\xff" and list(unpack_tokens(packed)) == [1, 2**32 - 1]
    with pytest.raises(ValueError, match="multiple"):
        unpack_tokens(packed[:-1])
