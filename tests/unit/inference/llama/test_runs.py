"""Runs on llama-server: their requests, their streams, and the rest of a constrained answer."""

from __future__ import annotations

import array
import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.http_client import HttpClient
from inference.llama.completion import LlamaCompletion
from inference.llama.grammar_guide import FreeGuide, GrammarGuide, make_guide, make_vocabulary
from inference.llama.guided_completion import GuidedCompletion, make_completion
from inference.llama.sampling import STOP_TOKENS, check_stop_tokens, completion_parameters, tokens_until_end
from inference.llama.shown_prompts import ShownPrompt, Speller
from inference.llama.vocabulary import ByteFragments, read_vocabulary, token_pieces
from inference.tokens import as_tokens
from sessions.model.errors import BadInput, Internal, SessileError, Unavailable
from sessions.model.generation import Chunk, Finish
from sessions.model.types import Json, Sampling, TextOptions, Tokens
from testbed.engine_client import key, request
from tests.support.engines.byte_vocabulary import END, encoded
from tests.support.engines.byte_vocabulary import METADATA as guided_completion_METADATA
from tests.support.engines.gguf_files import METADATA
from tests.support.engines.llama_server import answering, chunked, event, serving


# -- completion
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
    with pytest.raises(error, match=rf"^{code}: "):
        await run(data)


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


# -- guided completion
VOCABULARY = make_vocabulary(guided_completion_METADATA)
PROMPT = as_tokens((1, 2, 3))
YES_OR_ONES: Json = {"enum": ["yes", 11]}


class FakeServer(HttpClient):
    """Emits what its bias favours: the smallest of the tokens that are lifted, or that are not banned."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 1)
        self.bodies: list[dict[str, Any]] = []
        self.status = 200
        self.failure: dict[str, Any] = {}
        self.pick: Callable[[Iterable[int]], int] = min

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        assert (method, path) == ("POST", "/completion")
        sent = msgspec.json.decode(body)
        self.bodies.append(sent)
        if self.status != 200:
            return self.status, msgspec.json.encode(self.failure)
        lifted = [token for token, bias in sent["logit_bias"] if bias is not False and bias > 100]
        banned = {token for token, bias in sent["logit_bias"] if bias is False}
        token = self.pick(lifted or set(range(257)) - banned)
        answer = {
            "content": "",
            "tokens": [token],
            "stop_type": "eos" if token == END else "limit",
            "timings": {"cache_n": len(sent["prompt"]) - 1, "prompt_n": 1, "prompt_ms": 4.0},
        }
        return 200, msgspec.json.encode(answer)


async def opened(
    server: FakeServer, text: str, schema: Json = YES_OR_ONES, *, resident: int = 2, **parameters: Json
) -> GuidedCompletion:
    async def encode(text: str) -> tuple[int, ...]:
        return ()

    guide = make_guide(VOCABULARY, {"json_schema": schema}, encoded(text))
    completion = make_completion(server, ByteFragments(iter(())), encode, guide, 4, PROMPT, resident, 9)
    assert isinstance(completion, GuidedCompletion)
    await completion.open({"json_schema": schema, "n_predict": 20, "seed": 7, "temperature": 0.5, **parameters})
    return completion


async def all_of(completion: GuidedCompletion) -> tuple[str, Finish]:
    text = ""
    while True:
        part = await completion.next()
        if isinstance(part, Finish):
            return text, part
        text += part.text


async def test_nothing_of_another_session_is_reused() -> None:
    server = FakeServer()
    await all_of(await opened(server, '"y', resident=0))
    assert [body["cache_prompt"] for body in server.bodies] == [False, True, True]


class TightLipped(FakeServer):
    """Writes a character of two tokens and says nothing of the probabilities of the first, as llama-server."""

    shown_max = 257

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        sent = msgspec.json.decode(body)
        self.bodies.append(sent)
        forced = sent["logit_bias"] == [[LETTER, 1000.0]]
        token = LETTER if forced else 0xC3 if len(sent["prompt"]) == 3 else 0xA4
        top = [{"id": each, "token": "", "bytes": [each], "logprob": -each / 100} for each in range(256)]
        found = [{**top[token], "top_logprobs": top[: min(sent["n_probs"], self.shown_max)]}]
        answer = {"content": "", "tokens": [token], "stop_type": "limit"}
        return 200, msgspec.json.encode({**answer, **({} if token == 0xC3 else {"completion_probabilities": found})})


LETTER = ord("a")


@pytest.mark.parametrize("likely", [256, 9], ids=["likely", "not likely"])
async def test_probabilities_that_the_server_keeps_back_are_looked_up(
    likely: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.llama.guided_completion._LIKELY", likely)

    async def encode(text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    server, guide = TightLipped(), FreeGuide(VOCABULARY)
    completion = make_completion(server, ByteFragments(iter(())), encode, guide, 4, PROMPT, 2, 9)
    await completion.open({"n_predict": 2, "n_probs": 2, "seed": 7})
    first, second, end = [await completion.next() for _ in range(3)]
    assert isinstance(first, Chunk) and isinstance(second, Chunk) and end == Finish("length", 3, 2)
    assert (first.text, second.text) == ("", "ä")
    entries: list[Any] = [*first.logprobs, *second.logprobs]
    assert [(each["bytes"], each["logprob"]) for each in entries] == [([0xC3], -1.95), ([0xA4], -1.64)]
    assert all([top["bytes"] for top in each["top_logprobs"]] == [[0], [1]] for each in entries)
    looked_up = [body["n_probs"] for body in server.bodies if body["logit_bias"]]
    assert looked_up == ([256] if likely == 256 else [9, 257])
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 2


STOPS: dict[str, Any] = {STOP_TOKENS: [ord("s")]}


async def test_the_end_token_the_limit_and_stop_tokens_end_it() -> None:
    server = FakeServer()
    assert await all_of(await opened(server, '"y', n_predict=0)) == ("", Finish("length", 3, 2))
    assert await all_of(await opened(server, '"y', n_predict=1)) == ("e", Finish("length", 3, 2))
    assert await all_of(await opened(server, '"y', **STOPS)) == ("e", Finish("stop", 3, 2))
    server.pick = max  # the token of the end
    server.bodies.clear()
    assert await all_of(await opened(server, "12", {"type": "integer"})) == ("", Finish("stop", 3, 2))
    assert len(server.bodies) == 1


async def test_what_fits_is_computed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a large vocabulary may fit: to list it for every token would hold up whatever else is answered."""
    threads: set[int] = set()
    biases = GrammarGuide.biases

    def observed(guide: GrammarGuide) -> list[list[Json]]:
        threads.add(threading.get_ident())
        return biases(guide)

    monkeypatch.setattr(GrammarGuide, "biases", observed)
    await all_of(await opened(FakeServer(), '"y'))
    assert threads and threading.get_ident() not in threads


async def test_hanging_up_ends_it_and_errors_are_the_servers() -> None:
    server = FakeServer()
    completion = await opened(server, '"y')
    await completion.next()
    completion.close()
    with pytest.raises(Unavailable):
        await completion.next()
    server.status = 400
    server.failure = {"error": {"type": "exceed_context_size_error"}}
    with pytest.raises(BadInput):
        await (await opened(server, '"y')).next()
    server.failure = {"error": {"type": "server_error"}}
    with pytest.raises(Internal):
        await (await opened(server, '"y')).next()


def test_special_tokens_that_are_marks_are_text_here_too() -> None:
    (mark,) = (spelling for spelling, token in VOCABULARY.specials.items() if token == END)
    assert FreeGuide(VOCABULARY).accept(END) == ""
    guide = FreeGuide(VOCABULARY, shown=(mark, "<|unknown|>"))
    assert [guide.accept(token) for token in (ord("a"), END)] == ["a", mark]


# -- sampling
def test_a_seed_fits_the_server_and_never_means_draw_one() -> None:
    for seed in (0, 5, 0xFFFF_FFFF, 2**53 - 1):
        parameters = completion_parameters(request(key("a"), (1,), sampling=Sampling(), seed=seed), 100)
        assert 0 <= parameters["seed"] <= 0x7FFF_FFFF


def test_a_format_has_one_blank_between_values_whatever_the_client_says_of_it() -> None:
    for layout in ({"type": "object"}, {"x-guidance": {"whitespace_flexible": True, "lenient": True}}):
        text = TextOptions(format={"type": "json_schema", "name": "x", "schema": layout})
        schema = completion_parameters(request(key("a"), (1,), sampling=Sampling(text=text)), 100)["json_schema"]
        assert schema["x-guidance"] == {
            "whitespace_flexible": False,
            "item_separator": ", ",
            "key_separator": ": ",
        }


def test_until_the_least_length_nothing_ends_the_answer() -> None:
    sampling = Sampling(min_tokens=3, stop_token_ids=(4, 6), logit_bias={"4": 2.0, "5": 2.0})
    held = request(key("a"), (1, 2, 3), sampling=sampling, emitted=(2, 3))
    assert tokens_until_end(held) == 1
    parameters = completion_parameters(held, 100)
    assert parameters["ignore_eos"] is True and "stop_token_ids" not in parameters
    assert parameters["logit_bias"] == [[5, 2.0], [4, False], [6, False]]
    free = request(key("a"), (1, 2, 3, 4), sampling=sampling, emitted=(2, 3, 4))
    assert tokens_until_end(free) == 0
    parameters = completion_parameters(free, 100)
    assert "ignore_eos" not in parameters and parameters["stop_token_ids"] == [4, 6]
    assert parameters["logit_bias"] == [[4, 2.0], [5, 2.0]]
    whole = Sampling(min_tokens=3, text=TextOptions(format={"type": "json_object"}))
    with pytest.raises(BadInput, match="min_tokens"):
        completion_parameters(request(key("a"), (1,), sampling=whole), 100)


def test_stop_tokens_at_which_nothing_could_be_seen_to_end_are_refused() -> None:
    tokens, kinds = ["<end>", "a", "Ã"], (3, 1, 1)
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    vocabulary = read_vocabulary(metadata)
    check_stop_tokens(Sampling(stop_token_ids=(0, 1)), vocabulary)
    check_stop_tokens(Sampling(stop_token_ids=(1,), ignore_eos=True), vocabulary)
    for sampling, why in (
        (Sampling(stop_token_ids=(1, 3)), "3 is no token id"),
        (Sampling(stop_token_ids=(2,)), "part of a character"),
        (Sampling(stop_token_ids=(0,), ignore_eos=True), "'ignore_eos' rules out"),
    ):
        with pytest.raises(BadInput, match=why) as refused:
            check_stop_tokens(sampling, vocabulary)
        assert refused.value.param == "stop_token_ids"


def test_special_tokens_that_are_marks_of_thoughts_and_calls_are_shown() -> None:
    assert "preserved_tokens" not in completion_parameters(request(key("a"), (1,)), 100)
    parameters = completion_parameters(request(key("a"), (1,)), 100, ("<|channel|>", "<|end|>"))
    assert parameters["preserved_tokens"] == ["<|channel|>", "<|end|>"]


# -- vocabulary
PIECES = {
    10: b"\xf0\x9f",
    11: b"\x98",
    12: b"\x80",
    13: b"\xf0",
    14: b"\x9f\x98",
    15: b" \xe6",
    16: b"\x97\xa5",
    17: b"ab",
}


@given(st.lists(st.sampled_from([10, 11, 12, 13, 14, 15, 16]), min_size=2, max_size=6))
def test_whatever_is_found_has_the_bytes_that_were_asked_for(ids: list[int]) -> None:
    data = b"".join(PIECES[token] for token in ids)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    found = ByteFragments(iter(PIECES.items())).recover(text, len(ids), ids[-1])
    assert tuple(ids) in found
    assert all(b"".join(PIECES[token] for token in other) == data for other in found)


BYTE_LEVEL = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["ðŁ", "ĺ", "Ģ", "Ġb", "<|end|>", "æĹ¥", "<tool call>", "日"],
    "tokenizer.ggml.token_type": [1, 1, 1, 1, 3, 1, 4, 1],
    "tokenizer.ggml.eos_token_id": 4,
}
SENTENCEPIECE = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁a▁", "<0xF0>"],
    "tokenizer.ggml.token_type": [2, 3, 3, 6, 6, 6, 6, 1],
    "tokenizer.ggml.bos_token_id": 1,
}


def test_byte_level_and_sentencepiece_vocabularies_are_read() -> None:
    byte_level = read_vocabulary(BYTE_LEVEL)
    assert byte_level.fragments.recover("😀", 3, 2) == [(0, 1, 2)]
    assert byte_level.specials == ("<|end|>", "<tool call>") and byte_level.eos_text == "<|end|>"
    assert not byte_level.adds_bos and not byte_level.adds_space
    pieces = read_vocabulary(SENTENCEPIECE)
    assert pieces.fragments.recover("😀", 4, 6) == [(3, 4, 5, 6)]
    assert pieces.adds_bos and pieces.adds_space and pieces.bos_text == "<s>"


def test_every_token_has_the_bytes_that_it_adds_and_control_tokens_none() -> None:
    byte_level = token_pieces(BYTE_LEVEL)
    end = [b"\xe6\x97\xa5", b"<tool call>", "日".encode()]
    assert byte_level.text == [b"\xf0\x9f", b"\x98", b"\x80", b" b", b"", *end]
    assert byte_level.spelled == [b"\xf0\x9f", b"\x98", b"\x80", b" b", b"\xff<|end|>", *end]
    pieces = token_pieces(SENTENCEPIECE)
    assert pieces.text == [b"", b"", b"", b"\xf0", b"\x9f", b"\x98", b"\x80", b" a ", b"<0xF0>"]
    assert pieces.spelled[:3] == [b"\xff<unk>", b"\xff<s>", b"\xff</s>"]
