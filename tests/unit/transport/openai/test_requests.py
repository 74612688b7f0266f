"""Requests: histories, references, tools, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import Request
from pydantic import BaseModel, ValidationError

from sessions.model import commands as cm
from sessions.model.errors import BadInput, TooLarge
from sessions.model.types import (
    CallId,
    InputFile,
    InputImage,
    InputText,
    ItemId,
    McpSource,
    Message,
    OutputText,
    ResponseId,
    SessionId,
    SessionKey,
    TenantId,
    UnixMs,
)
from tests.support.doors.transport import function_call
from transport.anthropic.request import MessageParam, MessagesRequest, units_of
from transport.openai import item_references
from transport.openai.compaction import behind_compaction, compaction_item, place_of
from transport.openai.completion_models import CompletionRequest, ModerationRequest
from transport.openai.item_references import (
    LOOKUPS_MAX,
    State,
    has_references,
    is_reference,
    is_same_input,
    resolve_references,
)
from transport.openai.mcp.approvals import decisions_of
from transport.openai.mcp.request import mcp_tool
from transport.openai.request_models import (
    PARTS_MAX,
    UNKNOWN_MAX,
    ChatMessageParam,
    ChatRequest,
    InputItem,
    McpToolParam,
    ResponsesRequest,
)
from transport.openai.turn_starter import naming_input
from transport.openai.unknown_parameters import NAMES_MAX, leave_out, take_out, warning
from transport.retrieval.embedding_models import EmbeddingsRequest
from transport.retrieval.vector_store_models import NewFileBatch

NAME, SESSION = ItemId("cmp_abc"), SessionId("s-1")


def message(name: str, parent: str | None, text: str, role: Any = "user") -> Message:
    part = OutputText(text=text) if role == "assistant" else InputText(text=text)
    return Message(
        id=ItemId(name),
        parent_id=None if parent is None else ItemId(parent),
        role=role,
        content=(part,),
        status="completed",
        created_at=UnixMs(0),
    )


STATE: dict[str, Any] = {
    "items": [
        message("a", None, "one"),
        message("b", "a", "two", "assistant"),
        message("c", "b", "three"),
        message("d", "c", "four", "assistant"),
    ],
    "compactions": [{"summary": message(NAME, None, "short"), "read_item_id": ItemId("b")}],
}


def given(*texts: str) -> list[InputItem]:
    items = [InputItem(**compaction_item(SESSION, NAME))]
    roles: list[Any] = ["user", "assistant"]
    return items + [InputItem(role=roles[index % 2], content=text) for index, text in enumerate(texts)]


@pytest.mark.parametrize("content", [None, "", "%%%", "Y21w", "w7w=", compaction_item(SESSION, ItemId("x"))])
def test_what_is_no_item_of_ours_is_refused(content: Any) -> None:
    content = content["encrypted_content"] if isinstance(content, dict) else content
    with pytest.raises(BadInput) as refused:
        place_of(InputItem(type="compaction", encrypted_content=content), 3)
    assert refused.value.param == "input[3].encrypted_content"


@pytest.mark.parametrize(
    ("texts", "leaf", "rest"),
    [((), "b", 0), (("three", "four", "five"), "d", 1), (("three", "another"), "c", 1), (("else",), "b", 1)],
)
def test_what_stands_already_is_not_sent_again(texts: tuple[str, ...], leaf: str, rest: int) -> None:
    resolved = behind_compaction(given(*texts), 0, SESSION, NAME, STATE)
    assert (resolved.session, resolved.leaf) == (SESSION, leaf)
    assert resolved.items is not None and len(resolved.items) == rest


def test_a_reference_is_known_by_its_type_or_by_having_nothing_but_an_id() -> None:
    assert is_reference(InputItem(type="item_reference", id="msg_1")) and is_reference(InputItem(id="msg_1"))
    assert not is_reference(InputItem(role="user", content="x", id="msg_1"))
    assert not has_references("x") and not has_references(None) and has_references([InputItem(id="msg_1")])


async def find(response_id: ResponseId) -> SessionKey:
    return SessionKey(TenantId("t"), SessionId(response_id.removeprefix("resp_")))


async def load(key: SessionKey) -> State:
    item = message(f"msg_{key.session}_0", None, f"of {key.session}", "assistant")
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
        call = function_call(f"fc_{key.session}_1", parent=first.id)
        return {"items": [first, call], "head": call.id}

    monkeypatch.delattr(item_references, "compared_arguments")
    resolved = await resolve_references([InputItem(id="fc_s0_1")], find=find, load=load_calls)
    assert resolved.session is None and [item.name for item in resolved.items or () if isinstance(item, InputItem)] == [
        "f"
    ]


MANY = 5_000
BRANCHES_MAX = 12  # of a union each may tell of a mistake
SAID: Any = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (ChatRequest, {"model": "m", "messages": [1] * 4_000}),
        (ChatRequest, {"model": "m", "messages": [{"role": "user", "content": [1] * 200}] * 20}),
        (ChatRequest, {"model": "m", "messages": [SAID], "stop": [1] * 16}),
        (ChatRequest, {"model": "m", "messages": [SAID], "tools": [1] * 128}),
        (ResponsesRequest, {"input": [{"role": "user", "content": [1] * 200}] * 20}),
        (ResponsesRequest, {"input": "x", "include": [1] * MANY}),
        (CompletionRequest, {"model": "m", "prompt": ["x"] * MANY}),
        (CompletionRequest, {"model": "m", "prompt": [-1] * MANY}),
        (ModerationRequest, {"input": [1] * 32}),
        (EmbeddingsRequest, {"input": [1.5] * MANY}),
        (NewFileBatch, {"files": [{"text": 1}] * 500}),
        (MessagesRequest, {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [1] * 200}] * 20}),
    ],
)
def test_a_list_is_read_up_to_its_first_mistake(model: type[BaseModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    assert caught.value.error_count() <= BRANCHES_MAX


def test_an_error_lists_at_most_64_unknown_names() -> None:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({"model": "m", "messages": [SAID], **{f"k{n}": 1 for n in range(MANY)}})
    assert caught.value.error_count() == UNKNOWN_MAX
    assert caught.value.errors()[0]["loc"] == ("k0",)


def test_parts_that_are_nothing_but_text_are_read_as_their_text() -> None:
    texts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert ChatMessageParam.model_validate({"role": "user", "content": texts}).content == "ab"
    assert InputItem.model_validate({"role": "user", "content": texts}).content == "ab"
    anthropics = MessagesRequest.model_validate(
        {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [texts[0], texts[0]]}]}
    )
    assert anthropics.messages[0].content == "aa"
    for kept in ([*texts, {"type": "text", "text": "c", "new": 1}], [*texts, {"type": "refusal", "refusal": "No."}]):
        content = ChatMessageParam.model_validate({"role": "assistant", "content": kept}).content
        assert isinstance(content, list) and len(content) == 3
    for wrong in ([{"type": "text", "text": 1}], [{"type": "text", "text": "a"}] * (PARTS_MAX + 1)):
        with pytest.raises(ValidationError):
            ChatMessageParam.model_validate({"role": "user", "content": wrong})


def extra(*path: str | int) -> dict[str, Any]:
    return {"type": "extra_forbidden", "loc": ("body", *path)}


def test_fields_that_nobody_knows_are_taken_out_wherever_they_are() -> None:
    body = {"a": 1, "in": {"b": 2, "c": 3}, "list": [{"d": 4}]}
    problems = [extra("a"), extra("in", "b"), extra("list", 0, "d"), extra("list", 7, "d"), extra("no", "e")]
    assert take_out(body, [*problems, {"type": "int_type", "loc": ("body", "in")}]) == ["a", "in.b", "list.0.d"]
    assert body == {"in": {"c": 3}, "list": [{}]}


def test_the_warning_is_a_header_whatever_the_names_are() -> None:
    request = Request({"type": "http", "headers": []})
    assert warning(request) == {}
    leave_out(request, ['x"\r\ny', "ü", *(f"n{number}" for number in range(NAMES_MAX))])
    (header,) = warning(request).values()
    assert header.startswith('299 - "Parameters were ignored: x???y, ?, n0') and header.endswith(', ..."')
    assert header.isascii() and header.isprintable()


YES = InputItem(type="mcp_approval_response", approval_request_id="mcpr_1_0", approve=True)


@pytest.mark.parametrize(
    ("given", "previous"),
    [
        ([YES], None),
        ([YES, InputItem(role="user", content="hi")], "resp_1"),
        ([InputItem(type="mcp_approval_response", approve=True)], "resp_1"),
        ([InputItem(type="mcp_approval_response", approval_request_id="mcpr_1")], "resp_1"),
    ],
)
def test_mixtures_and_halves_are_refused(given: list[InputItem], previous: str | None) -> None:
    with pytest.raises(BadInput):
        decisions_of(given, previous)


def source(**about: Any) -> McpSource:
    made = mcp_tool(McpToolParam(type="mcp", server_label="town", **about), "tools[0]")
    assert isinstance(made.mcp, McpSource) and made.server is True and made.name == "town"
    return made.mcp


def test_which_tools_and_who_is_asked() -> None:
    assert source() == McpSource(server_label="town")
    assert source(allowed_tools=["a"]).allowed == ("a",)
    filtered = source(allowed_tools={"tool_names": ["a"], "read_only": True})
    assert filtered.allowed == ("a",) and filtered.read_only
    assert source(require_approval="always").approval is True
    assert source(require_approval="never").approval is False
    assert source(require_approval={"always": {"tool_names": ["pay"]}}).approval == ("pay",)
    some = source(require_approval={"never": {"tool_names": ["look"]}})
    assert some.approval is True and some.unasked == ("look",)


@pytest.mark.parametrize(
    "given",
    [
        {"server_url": "https://evil.example/"},
        {"connector_id": "connector_dropbox"},
        {"authorization": "secret"},
        {"headers": {"a": "b"}},
    ],
)
def test_what_no_client_may_bring(given: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="not taken from clients") as raised:
        source(**given)
    assert "secret" not in raised.value.public_message and "evil" not in raised.value.public_message


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
DOCUMENT = {"type": "document", "title": "a.pdf", "source": {"type": "base64", "data": "AAAA"}}
NOTE = {"type": "document", "source": {"type": "text", "data": "A note."}}
TEXT = {"type": "text", "text": "Found:"}
CALLS: list[dict[str, Any]] = [
    {"type": "tool_use", "id": call_id, "name": "read", "input": {}} for call_id in ("c1", "c2")
]


def params(*messages: tuple[str, Any]) -> list[MessageParam]:
    return [MessageParam.model_validate({"role": role, "content": content}) for role, content in messages]


def result(call_id: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": list(parts)}


def test_what_tool_results_show_stands_in_one_message_behind_them() -> None:
    results = [result("c1", TEXT, IMAGE, NOTE), result("c2", DOCUMENT), {"type": "text", "text": "Compare."}]
    messages = params(("user", "Read."), ("assistant", CALLS), ("user", results))
    *_, one, two, shown = (item for unit in units_of(messages, images=True) for item in unit.items)
    assert (one, two) == (
        cm.NewOutput(call_id=CallId("c1"), output="Found:\nA note."),
        cm.NewOutput(call_id=CallId("c2"), output=""),
    )
    assert isinstance(shown, cm.NewMessage) and isinstance(shown.content, tuple)
    image, document, text = shown.content
    assert isinstance(image, InputImage) and isinstance(document, InputFile) and text == InputText(text="Compare.")


@pytest.mark.parametrize(
    ("role", "content", "param"),
    [
        ("system", [TEXT, IMAGE], "messages[1].content[1].type"),
        ("assistant", [IMAGE], "messages[1].content[0].type"),
        ("assistant", [TEXT, DOCUMENT], "messages[1].content[1].type"),
    ],
)
def test_images_and_documents_are_refused_outside_a_users_message(role: str, content: Any, param: str) -> None:
    with pytest.raises(BadInput) as caught:
        units_of(params(("user", "Read."), (role, content)), images=True)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("code", "param", "named"),
    [
        ("invalid_schema", "text.format", "response_format"),
        ("unsupported_parameter", "thinking_tokens", "thinking_token_budget"),
        ("context_length_exceeded", "instructions", "messages"),
        ("context_length_exceeded", "tools", "tools"),
    ],
)
def test_a_refusal_behind_the_door_names_the_doors_own_parameter(code: str, param: str, named: str) -> None:
    with pytest.raises(BadInput) as refused, naming_input("messages", format="response_format"):
        raise BadInput(code, "No.", param=param)
    assert refused.value.param == named
