"""One run on llama-server: tokens with their text, however its stream is cut, and what its slot holds."""

from __future__ import annotations

import array
import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.llama.completion import LlamaCompletion
from inference.llama.shown_prompts import ShownPrompt, Speller
from inference.llama.vocabulary import ByteFragments, read_vocabulary
from inference.tokens import as_tokens
from sessions.model.errors import BadInput, Internal, SessileError, Unavailable
from sessions.model.generation import Chunk, Finish
from sessions.model.types import Tokens
from tests.support.engines.gguf_files import METADATA
from tests.support.engines.llama_server import answering, chunked, event, serving


async def no_encode(text: str) -> Tokens:
    raise AssertionError(f"{text!r} should not have been tokenised again")


async def run(
    data: bytes,
    *,
    sizes: tuple[int, ...] = (1 << 20,),
    fragments: dict[int, bytes] | None = None,
    encode: Callable[[str], Awaitable[Tokens]] = no_encode,
    parameters: dict[str, object] | None = None,
) -> tuple[list[Chunk | Finish], LlamaCompletion]:
    async with serving(answering(data, sizes)) as (http, _):
        completion = LlamaCompletion(
            http, ByteFragments(iter((fragments or {}).items())), encode, 1, as_tokens([7, 8, 9]), 2
        )
        items: list[Chunk | Finish] = []
        try:
            await completion.open(parameters or {})
            while not items or isinstance(items[-1], Chunk):
                items.append(await completion.next())
        finally:
            completion.close()
        return items, completion


def token(text: str, ident: int, number: int, **more: object) -> bytes:
    return event(content=text, tokens=[ident], stop=False, tokens_predicted=number, **more)


def end(kind: str, number: int, cached: int = 2) -> bytes:
    return event(stop=True, stop_type=kind, tokens_predicted=number, timings={"cache_n": cached, "prompt_n": 1})


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_a_stream_reads_the_same_however_it_is_cut(sizes: list[int]) -> None:
    data = chunked(
        event(prompt_progress={"total": 3, "cache": 2, "processed": 3, "time_ms": 1}, content="", tokens=[0]),
        token("Hé", 5, 1) + b": a comment\n\n",
        token("llo", 6, 2),
        token("", 2, 3) + end("eos", 3),
    )
    items, completion = asyncio.run(run(data, sizes=tuple(sizes)))
    said = [Chunk((5,), "Hé", cached_tokens=2), Chunk((6,), "llo", cached_tokens=2)]
    assert items == [*said, Finish("stop", 3, 2)]
    assert completion.held == as_tokens([7, 8, 9, 5])
    assert (completion.cached_tokens, completion.evaluated_tokens) == (2, 1)


@pytest.mark.parametrize(("total", "held"), [(3, [7, 8, 9, 5]), (4, [])])
async def test_where_the_server_has_other_tokens_for_images_nothing_is_certain(total: int, held: list[int]) -> None:
    prompt = as_tokens([7, 8, 9])
    shown = ShownPrompt(prompt, 1, "text", ("QUJD",), Speller(read_vocabulary(METADATA)))
    progress = {"total": total, "cache": 1, "processed": total, "time_ms": 1}
    first = event(prompt_progress=progress, content="", tokens=[0])
    data = chunked(first, token("a", 5, 1), token("b", 6, 2), end("limit", 2))
    async with serving(answering(data)) as (http, _):
        completion = LlamaCompletion(http, ByteFragments(iter(())), no_encode, 1, prompt, 1, shown=shown)
        await completion.open({})
        while isinstance(await completion.next(), Chunk):
            continue
        completion.close()
    assert completion.held == as_tokens(held) and not completion.prefill_s


async def test_tokens_without_text_travel_with_the_next_text_or_at_the_end() -> None:
    items, completion = await run(chunked(token("a", 5, 1), token("", 70, 2), token("b", 6, 3), end("limit", 3)))
    assert items == [Chunk((5,), "a"), Chunk((70, 6), "b"), Finish("length", 3, 2)]
    items, completion = await run(chunked(token("a", 5, 1), token("", 70, 2), end("limit", 2)))
    assert items == [Chunk((5,), "a"), Chunk((70,), "", cached_tokens=2), Finish("length", 3, 2)]
    assert completion.held == as_tokens([7, 8, 9, 5])


async def test_ids_that_cannot_be_known_are_guessed_and_counted() -> None:
    asked: list[str] = []

    async def encode(text: str) -> Tokens:
        asked.append(text)
        return (40, 41)

    items, completion = await run(chunked(token("😀", 12, 3), end("limit", 3)), encode=encode)
    assert items[0] == Chunk((40, 41), "😀") and asked == ["😀"]
    assert completion.ids_guessed == 3


@pytest.mark.parametrize(
    ("usual", "taken"), [((13, 14, 12), (13, 14, 12)), ((10, 11, 12), (10, 11, 12)), ((99,), (10, 11, 12))]
)
async def test_of_several_possible_splits_the_usual_one_is_taken(
    usual: tuple[int, ...], taken: tuple[int, ...]
) -> None:
    pieces = {10: b"\xf0\x9f", 11: b"\x98", 12: b"\x80", 13: b"\xf0", 14: b"\x9f\x98"}

    async def encode(_: str) -> Tokens:
        return usual

    items, completion = await run(chunked(token("😀", 12, 3), end("limit", 3)), fragments=pieces, encode=encode)
    assert items[0] == Chunk(taken, "😀") and completion.ids_guessed == 3


def refused(status: int, kind: str) -> bytes:
    body = msgspec.json.encode({"error": {"code": status, "message": "m", "type": kind}})
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@pytest.mark.parametrize(
    ("data", "error", "code"),
    [
        (refused(400, "exceed_context_size_error"), BadInput, "context_length_exceeded"),
        (refused(400, "invalid_request_error"), BadInput, "engine_refused"),
        (refused(503, "unavailable_error"), Unavailable, "engine_unavailable"),
        (refused(500, "server_error"), Internal, "engine_failed"),
        (b"HTTP/1.1 500 X\r\nContent-Length: 3\r\n\r\n???", Internal, "engine_failed"),
        (chunked(event(error={"message": "m", "type": "server_error"})), Internal, "engine_failed"),
        (chunked(b'error: {"error":{"type":"server_error","message":"m"}}\n\n'), Internal, "engine_failed"),
        (chunked(token("a", 5, 1)), Unavailable, "engine_unavailable"),
        (chunked(token("a", 5, 1))[:-9], Unavailable, "engine_unavailable"),
    ],
)
async def test_trouble_is_one_of_our_errors(data: bytes, error: type[SessileError], code: str) -> None:
    with pytest.raises(error) as raised:
        await run(data)
    assert raised.value.code == code


async def test_what_a_slot_holds_is_never_more_than_was_seen() -> None:
    held: list[array.array[int]] = []
    for progress in (0, 1, 3):
        data = chunked(
            event(prompt_progress={"total": 3, "cache": 0, "processed": progress, "time_ms": 1}, content="", tokens=[0])
        )
        async with serving(answering(data)) as (http, _):
            completion = LlamaCompletion(http, ByteFragments(iter(())), no_encode, 1, as_tokens([7, 8, 9]), 2)
            await completion.open({})
            with pytest.raises(Unavailable):
                await completion.next()
            completion.close()
            held.append(completion.held)
    assert held == [as_tokens([]), as_tokens([7]), as_tokens([7, 8, 9])]


async def test_a_stop_token_ends_the_run_and_is_not_shown() -> None:
    stops: dict[str, object] = {"stop_token_ids": [6, 71]}
    progress = event(prompt_progress={"total": 3, "cache": 2, "processed": 3, "time_ms": 1}, content="", tokens=[0])
    begun = progress, token("a", 5, 1)
    first = Chunk((5,), "a", cached_tokens=2)
    items, completion = await run(chunked(*begun, token("b", 6, 2), token("c", 7, 3)), parameters=stops)
    assert items == [first, Finish("stop", 3, 2)] and completion.finished
    assert completion.held == as_tokens([7, 8, 9]) and completion.emitted_tokens == 1
    items, _ = await run(chunked(*begun, token("", 70, 2), token("", 71, 3), token("c", 7, 4)), parameters=stops)
    assert items == [first, Chunk((70,), "", cached_tokens=2), Finish("stop", 3, 2)]
    items, _ = await run(chunked(*begun, token("", 71, 2), end("eos", 2)), parameters=stops)
    assert items == [first, Finish("stop", 3, 2)]
    items, _ = await run(chunked(*begun, token("b", 8, 2), end("limit", 2)), parameters=stops)
    assert items[1:] == [Chunk((8,), "b", cached_tokens=2), Finish("length", 3, 2)]
