"""Streams with their times, and every way in which a server fails to answer as one sentence."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable

import pytest

from tests.support.doors.openai_stand_in import HELLO, OK, piece, plain, stand_in, stream, usage
from transport.load.stream_client import StreamClient, StreamedAnswer, message_of, parse_address, parse_retry_after


def ticking() -> Callable[[], float]:
    """A clock that goes on by a second at each look, so that times are an order of events."""
    return map(float, itertools.count(1)).__next__


async def answer_of(
    *answers: list[bytes] | None, clock: Callable[[], float] | None = None, timeout_s: float = 10
) -> StreamedAnswer:
    async with stand_in(*answers) as server:
        client = StreamClient(parse_address(server.url), "sk-x", clock=clock or ticking(), timeout_s=timeout_s)
        answer = await client.complete({"model": "stand-in", "messages": []})
        client.close()
    return answer


async def test_a_stream_has_its_first_text_its_last_and_its_tokens() -> None:
    answer = await answer_of(HELLO)
    assert answer.error == "" and answer.finish == "stop" and "".join(answer.texts) == "Hello"
    assert answer.sent < answer.first <= answer.last <= answer.ended
    assert (answer.pieces, answer.usage_tokens, answer.tokens) == (2, 3, 3)


async def test_a_role_alone_is_no_first_token_and_a_call_or_a_thought_is_one() -> None:
    role = await answer_of(stream(piece("", role="assistant"), piece(finish="length")))
    assert role.first == 0 and role.error == "" and role.tokens == 0
    call = await answer_of(stream(piece(tool_calls=[{"index": 0}]), piece(finish="tool_calls")))
    assert call.first and call.tokens == 1
    thought = await answer_of(stream(piece(reasoning_content="Hm"), piece("x"), usage(9)))
    assert thought.pieces == 2 and thought.tokens == 9


async def test_events_may_come_in_any_pieces() -> None:
    bytewise = [bytes([each]) for each in b"".join(HELLO)]
    assert "".join((await answer_of(bytewise)).texts) == "Hello"
    carriage = (OK.format("text/event-stream") + "\r\n").encode() + b'data:{"choices":[]}\r\n\r\ndata: [DONE]\r\n\r\n'
    assert (await answer_of([carriage])).error == "the stream ended without an answer"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (stream(piece("Hel"), cut=True), "the stream was cut after 1 pieces"),
        (stream(piece("Hel"), done=False), "the stream was cut after 1 pieces"),
        (stream({"error": {"message": "out of memory"}}), "the stream ended with an error: out of memory"),
        (stream(b"data: <p>"), "an event of the stream is not OpenAI's: <p>"),
        (stream({"choices": 7}), "an event of the stream is not OpenAI's"),
        (plain('{"choices": []}'), "JSON instead of a stream"),
        (plain("<html>", media_type="text/html"), "not one of OpenAI's API (text/html); is the address right?"),
        (plain('{"error": {"message": "No."}}', status="500 Oops"), "HTTP 500: No."),
        (plain('{"detail": "Not Found"}', status="404 Not Found"), "HTTP 404: Not Found"),
        (plain("busy", status="503 Busy", media_type="text/plain"), "HTTP 503: busy"),
        (plain('{"error": "who?"}', status="401 No"), "HTTP 401: who?; the key is what SESSILE_API_KEY"),
        ([b"SSH-2.0-OpenSSH_9.2\r\n"], "the answer is not HTTP; is the address right?"),
        ([], "the server closed the connection without an answer"),
    ],
)
async def test_what_is_no_answer_is_one_sentence(answer: list[bytes], sentence: str) -> None:
    came = await answer_of(answer or [b""], clock=lambda: 1.0)
    assert sentence in came.error and came.ended


async def test_a_server_that_turns_away_says_for_how_long() -> None:
    body = '{"error": {"message": "Too many."}}'
    answer = await answer_of(plain(body, status="429 Too Many", fields="Retry-After: 7\r\n"))
    assert answer.status == 429 and answer.retry_after_s == 7.0
    assert answer.error == "HTTP 429: Too many. (Retry-After: 7 s)"
    assert parse_retry_after(b" 999 ") == 60.0
    assert parse_retry_after(b"Fri, 31 Dec 1999 23:59:59 GMT") is None


async def test_silence_ends_a_request() -> None:
    answer = await answer_of(None, clock=itertools.count(0, 5).__next__, timeout_s=0.5)
    assert answer.error == "nothing came for 0.5 s, after 0 pieces"


async def test_nobody_who_listens_is_a_sentence_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    client = StreamClient(parse_address(f"http://127.0.0.1:{port}"), "", clock=lambda: 1.0, timeout_s=10)
    assert (await client.complete({})).error.startswith("no connection: ")


async def test_a_connection_is_used_again_and_one_that_was_closed_meanwhile_is_not() -> None:
    async with stand_in() as server:
        client = StreamClient(parse_address(server.url), "sk-x", clock=lambda: 1.0, timeout_s=10)
        assert [(await client.complete({})).error for _ in range(3)] == ["", "", ""]
        assert server.connections == 1
        assert all("Authorization: Bearer sk-x\r\n" in head for head in server.heads)
        server.answers = [[b""]]  # it closes the kept one without a word
        assert (await client.complete({})).error == ""
        assert server.connections == 2
        client.close()


async def test_models_are_names_or_a_sentence() -> None:
    async def models(answer: list[bytes]) -> tuple[list[str], str]:
        async with stand_in(models=answer) as server:
            client = StreamClient(parse_address(server.url), "", clock=lambda: 1.0, timeout_s=10)
            read = await client.models()
            client.close()
            return read

    assert await models(plain('{"data": [{"id": "a"}, {"id": "b"}]}')) == (["a", "b"], "")
    assert (await models(plain('{"data": []}')))[1] == "the server has no model"
    assert "not answered as OpenAI's API does" in (await models(plain('{"models": 1}')))[1]
    assert "text/html" in (await models(plain("<html>", media_type="text/html")))[1]


def test_addresses_with_and_without_their_version() -> None:
    for base in ("http://127.0.0.1:9000", "http://127.0.0.1:9000/v1", "http://127.0.0.1:9000/v1/"):
        assert parse_address(base)[:2] == ("127.0.0.1", 9000) and parse_address(base).prefix == ""
    secure = parse_address("https://chat.example/models/v1")
    assert (secure.host, secure.port, secure.prefix) == ("chat.example", 443, "/models") and secure.tls is not None


def test_messages_of_errors_in_every_shape() -> None:
    assert message_of({"error": {"message": "a\n b"}}) == "a b"
    assert message_of({"detail": [{"msg": "x"}]}) == '[{"msg":"x"}]'
    assert len(message_of("x" * 1000)) == 160
