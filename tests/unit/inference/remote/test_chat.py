"""Chat completions of a provider: what is sent, what its deltas become, and a conversation read from its ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.remote import chat_tokenizer
from inference.remote.chat_dialect import ChatDialect, _AnswerWriter, _ContentReader, _Delta
from inference.remote.chat_tokenizer import ChatTokenizer, read_prompt
from inference.remote.dialects import RemoteRunEnded, refusal
from inference.remote.engine import RemoteEngine
from inference.remote.options import RemoteOptions
from inference.remote.pool import RemoteServer
from inference.request_checks import trial_request
from sessions.model.errors import BadInput, Overloaded, Unavailable
from sessions.model.generation import Chunk, Finish, GenerationRequest, drawn_seed
from sessions.model.types import Sampling, TextOptions, Tool, UnixMs
from sessions.ports import ChatMessage
from tests.support.engines.llama_server import answering, serving

# -- chat dialect
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


def test_marks_of_calls_are_kept_out_of_words_thoughts_and_arguments() -> None:
    called = {"index": 0, "id": "a", "function": {"name": "\ufdd0", "arguments": '{"at": "\ufdd1"}'}}
    text = written({"reasoning": "\ufdd3"}, {"content": "\ufdd1"}, {"tool_calls": [called]})
    assert text == '\ufdd2\ufffd\ufdd3\ufffd\ufdd0"\\ufdd0"\n{"at": "\\ufdd1"}\ufdd1'


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("<think>\nHm.\n</think>\n\nFour.", "\ufdd2\nHm.\n\ufdd3Four."),
        ("\n <think>Hm. <think> a < b </think", "\ufdd2Hm. <think> a < b </think\ufdd3"),
        ("<think></think>Write <think>, then </think>.", "Write <think>, then </think>."),
        ("Write <think>, then </think>.", "Write <think>, then </think>."),
        ("Hm.</think>Four.", "Hm.</think>Four."),
        ("<thin ice", "<thin ice"),
        (" <th", " <th"),
        ("", ""),
    ],
)
def test_only_a_thought_at_the_beginning_of_a_content_is_one(content: str, expected: str) -> None:
    """So do providers send it whose server does not know the model's thoughts. However it is cut, and never behind a
    thought that came in a field."""
    for at in range(len(content) + 1):
        assert written({"content": content[:at]}, {"content": content[at:]}) == expected
    assert written(*({"content": each} for each in content)) == expected
    behind = written({"reasoning": "Hm, </think>"}, *({"content": each} for each in content))
    assert behind == f"\ufdd2Hm, </think>\ufdd3{content.lstrip()}" or not content


def test_white_space_at_the_beginning_of_a_content_is_looked_at_once() -> None:
    """A delta of one blank costs the same, however many came before it."""
    reader = _ContentReader()
    for _ in range(1_000):
        assert not [*reader.read(" ")] and reader._held == ""
    assert [*reader.read("<th")] == [] and reader._held == "<th"
    assert "".join(span.text for span in (*reader.read("e end"), *reader.rest())) == " " * 1_000 + "<the end"


def test_white_space_around_a_thought_is_kept_where_text_came_before_it() -> None:
    deltas = ({"reasoning": "Hm."}, {"content": "\n\n"}, {"content": "Let me check.\n\n"}, {"reasoning": "And."})
    answer_text = written(*deltas, {"content": "\nThe answer"})
    assert answer_text == "\ufdd2Hm.\ufdd3Let me check.\n\n\ufdd2And.\ufdd3\nThe answer"


def test_what_is_held_back_of_an_answer_that_was_cut_off_is_shown() -> None:
    writer = _AnswerWriter()
    assert [*writer.take(_Delta(content="<think>Hm.</th")), *writer.close(whole=False)] == ["\ufdd2", "Hm.", "</th"]


@pytest.mark.parametrize(
    ("sampling", "param"),
    [(Sampling(thinking=False), "thinking"), (Sampling(thinking_tokens=9), "thinking_tokens")],
)
def test_what_the_provider_cannot_be_told_is_refused(sampling: Sampling, param: str) -> None:
    with pytest.raises(BadInput) as error:
        dialect().check(trial_request(sampling))
    assert error.value.param == param


def test_calls_that_all_have_one_number_are_kept_apart_by_their_ids() -> None:
    """Gemini's and older Ollamas number every call 0; others send no number, or the name with each piece."""
    calls = [{"id": each, "function": {"name": each, "arguments": "{}"}} for each in ("a", "b")]
    two = '\ufdd0"a"\n{}\ufdd1\ufdd0"b"\n{}\ufdd1'
    assert written({"tool_calls": calls}) == two
    assert written({"tool_calls": [{**call, "index": 0} for call in calls]}) == two
    assert written(*({"tool_calls": [{**call, "index": None}]} for call in calls)) == two
    named = {"index": 3, "id": "a", "function": {"name": "a", "arguments": "{"}}
    again = {"index": 3, "id": "", "function": {"name": "a", "arguments": "}"}}
    assert written({"tool_calls": [named]}, {"tool_calls": [again]}) == two[: len(two) // 2]
    assert written({"tool_calls": [{"index": 0, "function": None}]}) == ""


@pytest.mark.parametrize(
    "between",
    [{"content": "Hm."}, {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "b", "arguments": "{}"}}]}],
)
def test_arguments_of_a_call_that_is_closed_do_not_get_into_another_or_into_the_text(between: dict[str, Any]) -> None:
    begun = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "a", "arguments": '{"at"'}}]}
    rest = {"tool_calls": [{"index": 0, "function": {"arguments": ": 5}"}}]}
    with pytest.raises(Unavailable, match="mixed"):
        written(begun, between, rest)


def event(**delta: Any) -> bytes:
    return b"data: " + msgspec.json.encode({"choices": [{"delta": delta}]}) + b"\n\n"


def ended(reason: str = "stop") -> bytes:
    return b'data: {"choices":[{"delta":{},"finish_reason":"%s"}]}\n\n' % reason.encode()


async def answer(*parts: bytes, tools: tuple[Tool, ...] = (), **sampling: Any) -> tuple[str, Any]:
    """Returns the text and the end of an answer that a provider sends so, whose body ends with its connection."""
    asked = [ChatMessage(role="user", text="Hello")]
    prompt = await ChatTokenizer().conversation(None, tools, asked, UnixMs(0), answer=True)
    request = msgspec.structs.replace(trial_request(Sampling(**sampling)), prompt=prompt, max_tokens=1000)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    async with serving(answering(head + b"".join(parts))) as (http, _):
        server = RemoteServer("http://127.0.0.1:1/v1", "")
        server.http = http
        items = [item async for item in dialect().run(server, "m", request)]
    return "".join(item.text for item in items if isinstance(item, Chunk)), items[-1]


@pytest.mark.parametrize(
    "parts",
    [
        (event(content="a"), event(content="b"), ended(), b"data: [DONE]\n\n"),
        (event(content="a"), event(content="b"), ended()),
        (event(content="a").replace(b"\n", b"\r\n"), event(content="b").replace(b"\n", b"\r\n"), ended()),
        (
            b": data: wait\n\n",
            event(content="a"),
            b": wait\nid: 7\n" + event(content="b")[:-1] + b"retry: 5\n\n",
            ended(),
        ),
        (b'data: {"choices":\ndata: [{"delta":{"content":"ab"}}]}\n\n', ended()),
        (event(content="ab", tool_calls=None), b'data: {"choices":null,"usage":null}\n\n', ended()),
        (event(content="ab"), b'data: {"choices":[{"delta":null,"finish_reason":"stop"}]}\n\n'),
    ],
    ids=["usual", "no DONE", "CRLF", "comments and fields", "two lines", "no choices", "no delta"],
)
async def test_an_answer_is_read_however_its_events_are_framed(parts: tuple[bytes, ...]) -> None:
    assert await answer(*parts) == ("ab", RemoteRunEnded("stop", 0))


@pytest.mark.parametrize("junk", [b"<html>", b'{"error":' + b"[" * 9999, b'{"error":"\xff"}', b'{"choices":7}'])
async def test_what_is_no_chunk_is_the_providers_fault(junk: bytes) -> None:
    with pytest.raises(Unavailable):
        await answer(event(content="a"), b"data: " + junk + b"\n\n", ended())


@pytest.mark.parametrize(
    "usage",
    [
        b'{"prompt_tokens":null}',
        b'{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":-5}}',
        b'{"prompt_tokens":-9,"prompt_tokens_details":{"cached_tokens":5}}',
        b'{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":"many"}}',
        b'{"prompt_tokens":9,"prompt_tokens_details":[]}',
        b'"none"',
    ],
)
async def test_a_usage_that_makes_no_sense_counts_as_nothing_cached(usage: bytes) -> None:
    told = b'data: {"choices":[],"usage":%s}\n\n' % usage
    assert await answer(event(content="a"), ended(), told) == ("a", RemoteRunEnded("stop", 0))


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_a_call_that_was_cut_off_is_not_made_whole(reason: str) -> None:
    call = event(tool_calls=[{"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"at": 12'}}])
    cut = ('\ufdd0"look"\n{"at": 12', RemoteRunEnded(reason, 0))  # type: ignore[arg-type]
    assert await answer(call, ended(reason), tools=(TOOL,)) == cut


async def test_a_seed_that_the_server_drew_is_not_the_providers_business() -> None:
    assert "seed" not in await body(seed=drawn_seed(trial_request(Sampling()).response_id))


@pytest.mark.parametrize(
    ("header", "wait_ms"), [("", 1000), ("7", 7000), ("0", 1000), ("soon", 1000), ("9" * 99, 1000)]
)
def test_a_busy_provider_says_when_to_try_again(header: str, wait_ms: int) -> None:
    error = refusal(429, b"\xff", header)
    assert isinstance(error, Overloaded) and error.retry_after_ms == wait_ms


# -- chat tokenizer
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
    with pytest.raises(BadInput, match=r"^unsupported_parameter: "):
        read_prompt([*TOKENIZER.starts, *await TOKENIZER.text("Once upon a time")])
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


# -- engine of a provider
WINDOW = 200
WORD = b'data: {"choices":[{"delta":{"content":"abc"}}]}\n\n'


@asynccontextmanager
async def engine_at(head: bytes, body: Callable[[], bytes]) -> AsyncIterator[RemoteEngine]:
    """An engine at a provider that answers every chat with `head`, and with `body` until the reader goes."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET"):
            writer.write(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n")
        else:
            writer.write(head)
            while (part := body()) and not writer.is_closing():
                writer.write(part)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    engine = RemoteEngine(
        RemoteOptions(urls=(f"http://{host}:{port}/v1",), chat_model="m", context_window=WINDOW, key="sk-secret")
    )
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()
        server.close()


async def request(**sampling: int) -> GenerationRequest:
    asked = [ChatMessage(role="user", text="Hello")]
    prompt = await ChatTokenizer().conversation(None, (), asked, UnixMs(0), answer=True)
    return msgspec.structs.replace(trial_request(Sampling(**sampling)), prompt=prompt, max_tokens=5)  # type: ignore[arg-type]


async def test_the_reason_why_a_provider_that_lives_refuses_is_shown() -> None:
    async with engine_at(b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n", lambda: b"") as engine:
        with pytest.raises(Unavailable, match="refuses the key of --engine-key-file"):
            [item async for item in engine.generate(await request())]


async def test_a_provider_that_keeps_to_no_limit_is_left_where_the_window_ends() -> None:
    asked = await request(max_output_tokens=5)
    async with engine_at(b"HTTP/1.1 200 OK\r\n\r\n", lambda: WORD) as engine, asyncio.timeout(60):
        *chunks, end = [item async for item in engine.generate(asked)]
    assert end == Finish("length", len(asked.prompt), 0)
    assert sum(len(chunk.tokens) for chunk in chunks if isinstance(chunk, Chunk)) == WINDOW - len(asked.prompt) + 1


async def test_a_key_that_a_refusal_repeats_is_not_shown() -> None:
    answer = b'{"error": {"message": "bad thing sk-secret"}}'
    head = b"HTTP/1.1 400 No\r\ncontent-length: %d\r\n\r\n" % len(answer)
    parts = iter((answer, b""))
    async with engine_at(head, lambda: next(parts, b"")) as engine:
        with pytest.raises(BadInput, match=r"bad thing \[key\]"):
            async for _ in engine.generate(await request()):
                pass
