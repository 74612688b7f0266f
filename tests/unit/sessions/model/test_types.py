"""Ids, token packing and usage: the small functions that everything stands on."""

from __future__ import annotations

import msgspec
import pytest

from sessions.model.types import (
    LOCAL_PRINCIPAL,
    CommandId,
    ItemId,
    Message,
    OutputText,
    Refusal,
    Sampling,
    UnixMs,
    Usage,
    derived_session_id,
    pack_tokens,
    unpack_tokens,
)


def test_a_principal_is_its_key_and_the_user_that_it_acts_for() -> None:
    assert LOCAL_PRINCIPAL.id == "local"
    assert msgspec.structs.replace(LOCAL_PRINCIPAL, user="ana").id == "local/ana"


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


def test_a_derived_session_follows_from_principal_and_command() -> None:
    first = derived_session_id(LOCAL_PRINCIPAL, CommandId("c"))
    assert first == derived_session_id(LOCAL_PRINCIPAL, CommandId("c")) and first.startswith("ses_")
    assert first != derived_session_id(LOCAL_PRINCIPAL, CommandId("d"))
    assert first != derived_session_id(msgspec.structs.replace(LOCAL_PRINCIPAL, user="ana"), CommandId("c"))


def test_tokens_are_four_bytes_each() -> None:
    packed = pack_tokens([1, 2**32 - 1])
    assert packed == b"\x01\0\0\0\xff\xff\xff\xff" and list(unpack_tokens(packed)) == [1, 2**32 - 1]
    with pytest.raises(ValueError, match="multiple"):
        unpack_tokens(packed[:-1])


@pytest.mark.parametrize(("stop", "stops"), [(None, ()), ("a", ("a",)), (("a", "b"), ("a", "b"))])
def test_stop_strings(stop: str | tuple[str, ...] | None, stops: tuple[str, ...]) -> None:
    assert Sampling(stop=stop).stops == stops


def test_a_messages_text_leaves_refusals_out() -> None:
    parts = (OutputText("a"), Refusal("no"), OutputText("b"))
    message = Message(
        id=ItemId("i"), parent_id=None, role="assistant", content=parts, status="completed", created_at=UnixMs(0)
    )
    assert message.text == "ab"


def test_usage_in_the_shape_of_responses() -> None:
    shown = Usage(5, 2, cached_tokens=3).public()
    assert shown["total_tokens"] == 7 and shown["input_tokens_details"] == {"cached_tokens": 3}
