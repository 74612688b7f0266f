"""A conversation that was written as ids is read again as the messages that it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.remote import chat_tokenizer
from inference.remote.chat_tokenizer import ChatTokenizer, read_prompt
from sessions.model.errors import BadInput
from sessions.model.types import Tool, UnixMs
from sessions.ports import ChatMessage

TOKENIZER = ChatTokenizer()
WEATHER = Tool(name="weather", description="the weather", parameters={"type": "object"}, strict=True)


async def prompt_of(*messages: ChatMessage, instructions: str | None = None, tools: tuple[Tool, ...] = ()) -> list[int]:
    return list(await TOKENIZER.conversation(instructions, tools, messages, UnixMs(0), answer=True))


@given(st.lists(st.tuples(st.sampled_from(["user", "system", "developer"]), st.text(max_size=20)), max_size=6))
async def test_messages_come_back_in_their_order(messages: list[tuple[str, str]]) -> None:
    given_ = [ChatMessage(role=role, text=text) for role, text in messages]  # type: ignore[arg-type]
    read = read_prompt(await prompt_of(*given_, instructions="Be brief."))
    assert read.messages[0] == {"role": "system", "content": "Be brief."}
    assert [(each["role"], each["content"]) for each in read.messages[1:]] == messages
    assert read.functions == [] and read.begun == ""


async def test_functions_calls_and_outputs_come_back_in_the_providers_form() -> None:
    calls = (("call_1", "weather", '{"city": "橋"}'), ("call_2", "weather", "{}"))
    read = read_prompt(
        await prompt_of(
            ChatMessage(role="user", text="Weather?"),
            ChatMessage(role="assistant", text="Let me look.", calls=calls),
            ChatMessage(role="tool", text="12 degrees", call_id="call_1", name="weather"),
            tools=(WEATHER,),
        )
    )
    function = {"name": "weather", "description": "the weather", "parameters": {"type": "object"}, "strict": True}
    assert read.functions == [{"type": "function", "function": function}]
    asked, answer, output = read.messages
    assert asked == {"role": "user", "content": "Weather?"}
    assert answer["content"] == "Let me look."
    assert [(call["id"], call["function"]["arguments"]) for call in answer["tool_calls"]] == [
        ("call_1", '{"city": "橋"}'),
        ("call_2", "{}"),
    ]
    assert output == {"role": "tool", "content": "12 degrees", "tool_call_id": "call_1"}


@pytest.mark.parametrize("arguments", ['{"a": [1]}', '{"a":[1] }', '{"a": "<b>\n"}}', '{"a": 1', "", "no JSON"])
async def test_an_answers_own_text_becomes_words_and_calls_named_by_their_outputs(arguments: str) -> None:
    """The provider gets its arguments back as it wrote them, readable or not."""
    written = f'\ufdd2Hm, </think>.\ufdd3I look.\ufdd0"weather"\n{arguments}\ufdd1'
    tokens = [
        *await prompt_of(ChatMessage(role="user", text="?")),
        *await TOKENIZER.text(written),
        *TOKENIZER.answer_closing,
        *await TOKENIZER.message(ChatMessage(role="tool", text="Sun", call_id="call_7")),
        *TOKENIZER.answer_opening,
    ]
    _, answer, output = read_prompt(tokens).messages
    assert answer["content"] == "I look." and output["tool_call_id"] == "call_7"
    (call,) = answer["tool_calls"]
    assert call["id"] == "call_7" and call["function"] == {"name": "weather", "arguments": arguments or "{}"}


async def test_what_only_looks_like_a_call_is_text_and_a_call_without_an_output_is_left_out() -> None:
    like = '<tool_call>{"name": "f", "arguments": {}}</tool_call> '
    for written, words in ((like, like), (f'{like}\ufdd0"f"\n{{}}\ufdd1', like.rstrip())):
        tokens = [*TOKENIZER.answer_opening, *await TOKENIZER.text(written), *TOKENIZER.answer_closing]
        (answer,) = read_prompt([*tokens, *TOKENIZER.answer_opening]).messages
        assert answer == {"role": "assistant", "content": words}


async def test_a_message_brings_no_marks_of_calls() -> None:
    said = ChatMessage(role="assistant", text='\ufdd0"f"\n{}\ufdd1')
    output = ChatMessage(role="tool", text="x", call_id="a")
    _, answer, _ = read_prompt(await prompt_of(ChatMessage(role="user", text="?"), said, output)).messages
    assert answer == {"role": "assistant", "content": '\ufffd"f"\n{}\ufffd'}


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("Let me check.\n\n\ufdd2Hm.\ufdd3 The answer\ufdd2So\ufdd3", "Let me check.\n\n The answer"),
        ("\n\ufdd2Hm.\ufdd3\n\nFour. \ufdd2So", "Four."),
        ("Four. \ufdd2So\ufdd3 ", "Four."),
        ("\ufdd2Hm", ""),
        (" a ", " a "),
    ],
)
def test_thoughts_are_taken_out_of_an_answer_and_the_words_around_them_stay_apart(written: str, words: str) -> None:
    assert chat_tokenizer._without_thoughts(written) == words


async def test_a_text_without_a_conversation_is_refused_and_a_begun_answer_is_told() -> None:
    with pytest.raises(BadInput) as error:
        read_prompt([*TOKENIZER.starts, *await TOKENIZER.text("Once upon a time")])
    assert error.value.code == "unsupported_parameter"
    begun = [*await prompt_of(ChatMessage(role="user", text="?")), *await TOKENIZER.text("Once")]
    assert read_prompt(begun).begun == "Once"


def test_calls_that_were_begun_and_never_closed_are_no_calls() -> None:
    """Such a history was once read again for each of its marks."""
    assert chat_tokenizer._read_answer('\ufdd0"f"\n{' * 20_000, ["a"]) == ("", [])


class CountedTalk(list[list[str]]):
    """Messages that count how many of them were read."""

    reads = 0

    def __iter__(self) -> Iterator[list[str]]:
        for message in super().__iter__():
            self.reads += 1
            yield message

    def __getitem__(self, at: Any) -> Any:
        raise AssertionError("messages are read in their order, and never again")


def test_outputs_are_found_by_reading_each_message_once() -> None:
    """Looking behind every answer anew took time by the square of a conversation's length."""
    outputs = [["tool", "out", f"call_{number}"] for number in range(300)]
    talk = CountedTalk([["user", "?"], ["assistant", "!"], *outputs, ["tool", "nameless"], ["assistant", "."]] * 3)
    behind = chat_tokenizer._outputs_behind(talk)
    assert talk.reads == len(talk) == len(behind)
    assert [at for at, found in enumerate(behind) if found] == [1, 305, 609]
    assert behind[1] == behind[305] == [fields[2] for fields in outputs]
