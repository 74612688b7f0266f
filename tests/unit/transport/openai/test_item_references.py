"""What a reference is, and how many answers a request may name."""

from __future__ import annotations

import pytest

from sessions.model.errors import BadInput, TooLarge
from sessions.model.types import (
    CallId,
    FunctionCall,
    ItemId,
    Message,
    OutputText,
    ResponseId,
    SessionId,
    SessionKey,
    TenantId,
    UnixMs,
)
from transport.openai import item_references
from transport.openai.item_references import (
    LOOKUPS_MAX,
    State,
    has_references,
    is_reference,
    is_same_input,
    resolve_references,
)
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


def called(arguments: str | None, name: str = "f") -> InputItem:
    return InputItem(type="function_call", call_id="c", name=name, arguments=arguments)


def test_arguments_are_read_as_json_only_where_their_texts_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch of megabytes of equal arguments kept the loop busy for a second."""
    assert is_same_input(called('{"a": 1, "b": 2}'), called('{"b":2,"a":1.0}'))
    assert not is_same_input(called('{"a": 1}'), called('{"a": 2}'))
    monkeypatch.delattr(item_references, "compared_arguments")
    assert is_same_input(called('{"a": 1}'), called('{"a": 1}'))
    assert is_same_input(called(None), called(None)) and not is_same_input(called(None), called(""))
    assert not is_same_input(called('{"a": 1}'), called('{"a":1}', "g"))


async def test_a_request_that_names_the_last_item_alone_reads_no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    async def load_calls(key: SessionKey) -> State:
        state = await load(key)
        first = state["items"][0]
        call = FunctionCall(
            id=ItemId(f"fc_{key.session}_1"),
            parent_id=first.id,
            call_id=CallId("c"),
            name="f",
            arguments="{}",
            status="completed",
            created_at=UnixMs(1),
        )
        return {"items": [first, call], "head": call.id}

    monkeypatch.delattr(item_references, "compared_arguments")
    resolved = await resolve_references([InputItem(id="fc_s0_1")], find=find, load=load_calls)
    assert resolved.session is None and [item.name for item in resolved.items or () if isinstance(item, InputItem)] == [
        "f"
    ]
