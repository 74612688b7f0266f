"""The rest of a constrained answer, a request a token, over a server that takes the first token that it may."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from inference.http_client import HttpClient
from inference.llama.grammar_guide import FreeGuide, GrammarGuide, make_guide, make_vocabulary
from inference.llama.guided_completion import GuidedCompletion, make_completion
from inference.llama.sampling import STOP_TOKENS
from inference.llama.vocabulary import ByteFragments
from inference.tokens import as_tokens
from sessions.model.errors import BadInput, Internal, Unavailable
from sessions.model.generation import Chunk, Finish
from sessions.model.types import Json
from tests.support.engines.byte_vocabulary import END, METADATA, encoded

VOCABULARY = make_vocabulary(METADATA)
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
