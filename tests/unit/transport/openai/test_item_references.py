"""What a reference is, and how many answers a request may name."""

from __future__ import annotations

import pytest

from sessions.model.errors import BadInput, TooLarge
from sessions.model.types import (
    ItemId,
    Message,
    OutputText,
    ResponseId,
    SessionId,
    SessionKey,
    TenantId,
    UnixMs,
)
from transport.openai.item_references import LOOKUPS_MAX, State, has_references, is_reference, resolve_references
from transport.openai.request_models import InputItem


def test_a_reference_is_known_by_its_type_or_by_having_nothing_but_an_id() -> None:
    assert is_reference(InputItem(type="item_reference", id="msg_1")) and is_reference(InputItem(id="msg_1"))
    assert not is_reference(InputItem(role="user", content="x", id="msg_1"))
    assert not has_references("x") and not has_references(None) and has_references([InputItem(id="msg_1")])


async def find(response_id: ResponseId) -> SessionKey:
    return SessionKey(TenantId("t"), SessionId(response_id.removeprefix("resp_")))


async def load(key: SessionKey) -> State:
    text = (OutputText(text=f"of {key.session}"),)
    item = Message(
        id=ItemId(f"msg_{key.session}_0"),
        parent_id=None,
        role="assistant",
        content=text,
        status="completed",
        created_at=UnixMs(1),
    )
    return {"items": [item], "head": item.id}


def references(count: int) -> list[InputItem]:
    return [InputItem(id=f"msg_s{number}_0") for number in range(count)]


async def test_each_is_looked_up_once_and_not_without_end() -> None:
    resolved = await resolve_references([*references(3), *references(3)], find=find, load=load)
    assert [item.content for item in resolved.items or () if isinstance(item, InputItem)] == [
        f"of s{number}" for number in (0, 1, 2, 0, 1, 2)
    ]
    with pytest.raises(BadInput) as caught:
        await resolve_references(references(LOOKUPS_MAX + 1), find=find, load=load)
    assert "previous_response_id" in caught.value.public_message


async def test_one_item_named_often_is_no_way_round_the_size_of_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,096 names of an item of a megabyte were four gigabytes of messages."""
    monkeypatch.setattr("transport.openai.item_references.TEXT_MAX", 200)
    with pytest.raises(TooLarge) as caught:
        await resolve_references(references(1) * 50, find=find, load=load)
    assert caught.value.param is not None and caught.value.param.startswith("input[")
    assert (await resolve_references(references(1) * 5, find=find, load=load)).items
