"""What a provider of chat completions is sent, and what its deltas become."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inference.remote.chat_dialect import ChatDialect, _AnswerWriter, _Delta
from inference.remote.chat_tokenizer import ChatTokenizer
from inference.remote.options import RemoteOptions
from inference.request_checks import trial_request
from sessions.model.errors import BadInput
from sessions.model.generation import drawn_seed
from sessions.model.types import Sampling, TextOptions, Tool, UnixMs
from sessions.ports import ChatMessage

TOOL = Tool(name="look")


def dialect() -> ChatDialect:
    return ChatDialect(RemoteOptions(urls=("http://127.0.0.1:1/v1",), chat_model="m"))


async def body(tools: tuple[Tool, ...] = (), **sampling: Any) -> dict[str, Any]:
    asked = [ChatMessage(role="user", text="Hello")]
    prompt = await ChatTokenizer().conversation(None, tools, asked, UnixMs(0), answer=True)
    return dialect()._body("m", msgspec.structs.replace(trial_request(Sampling(**sampling)), prompt=prompt))


def written(*deltas: dict[str, Any]) -> str:
    writer = _AnswerWriter()
    texts = [text for delta in deltas for text in writer.take(msgspec.convert(delta, _Delta))]
    return "".join([*texts, *writer.close()])


async def test_only_what_the_request_sets_is_sent() -> None:
    plain = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    assert await body() == {**plain, "stream_options": {"include_usage": True}}
    sent = await body(temperature=0.5, seed=7, max_output_tokens=9, effort="low")
    assert (sent["temperature"], sent["seed"], sent["max_tokens"], sent["reasoning_effort"]) == (0.5, 7, 9, "low")


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, None),
        ("required", "required"),
        ({"type": "function", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
    ],
)
async def test_functions_and_their_choice_are_sent_in_chats_form(choice: Any, sent: Any) -> None:
    made = await body((TOOL,), tool_choice=choice, parallel_tool_calls=False)
    assert made["tools"] == [{"type": "function", "function": {"name": "look"}}]
    assert made.get("tool_choice") == sent and made["parallel_tool_calls"] is False


async def test_a_format_is_the_providers_to_keep() -> None:
    shape = {"type": "json_schema", "name": "p", "schema": {"type": "object"}, "strict": True}
    made = await body(text=TextOptions(format=shape))
    inner = {"name": "p", "schema": {"type": "object"}, "strict": True}
    assert made["response_format"] == {"type": "json_schema", "json_schema": inner}
    assert (await body(text=TextOptions(format={"type": "json_object"})))["response_format"] == {"type": "json_object"}


def test_thoughts_words_and_calls_become_text_with_marks() -> None:
    look = {"index": 0, "id": "a", "function": {"name": "look", "arguments": ""}}
    deltas: list[dict[str, Any]] = [
        {"reasoning_content": "Hm"},
        {"reasoning": ", yes."},
        {"content": "I look."},
        {"tool_calls": [look]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"at"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 5}"}}]},
        {"tool_calls": [{**look, "index": 1}]},
    ]
    assert written(*deltas) == (
        "<think>\nHm, yes.\n</think>\n\nI look."
        '<tool_call>\n{"name": "look", "arguments": {"at": 5}}\n</tool_call>'
        '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    )
    assert written({"content": "a"}, {"content": "b"}) == "ab"


@pytest.mark.parametrize(
    ("sampling", "param"),
    [(Sampling(thinking=False), "chat_template_kwargs"), (Sampling(thinking_tokens=9), "thinking_token_budget")],
)
def test_what_the_provider_cannot_be_told_is_refused(sampling: Sampling, param: str) -> None:
    with pytest.raises(BadInput) as error:
        dialect().check(trial_request(sampling))
    assert error.value.param == param


def test_an_effort_which_asks_for_thoughts_is_passed_on() -> None:
    dialect().check(trial_request(Sampling(thinking=True, effort="low")))


def test_an_answer_that_has_begun_is_not_gone_on_with() -> None:
    with pytest.raises(BadInput) as error:
        dialect().check(msgspec.structs.replace(trial_request(Sampling()), emitted=(1,)))
    assert error.value.code == "recovery_incompatible"


async def test_a_seed_that_the_server_drew_is_not_the_providers_business() -> None:
    assert "seed" not in await body(seed=drawn_seed(trial_request(Sampling()).response_id))
