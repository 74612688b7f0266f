"""Requests in an engine's words: formats, the fields that each reads, tokens, the rest of an answer."""

from __future__ import annotations

import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.continuation import continuation_of
from inference.llama.sampling import completion_parameters
from inference.remote.llama_dialect import LlamaDialect
from inference.remote.options import RemoteOptions
from inference.remote.sglang_dialect import SglangDialect
from inference.remote.vllm_dialect import VllmDialect
from inference.request_checks import check_prompt
from inference.sampling import HONOURED, output_schema
from inference.simulated import SimulatedEngine, SimulatedOptions
from inference.tokens import LONG, Utf8Stream, as_tokens, common_prefix
from sessions.model.errors import BadInput
from sessions.model.generation import GenerationRequest
from sessions.model.types import Json, Sampling, TextOptions
from testbed.engine_client import ask, key, request
from tests.support.engines.sampling_fields import each_field, fields_read

# -- sampling
SCHEMA = {"type": "array"}


def schema_of(format_: Json, **more: Any) -> Json | None:
    return output_schema(request(key("a"), (1, 2), sampling=Sampling(text=TextOptions(format=format_)), **more))


def test_a_format_is_text_any_object_or_a_schema_in_either_spelling() -> None:
    assert output_schema(request(key("a"), (1,))) is None
    assert schema_of({"type": "text"}) is None and schema_of({"type": "text"}, emitted=(2,)) is None
    assert schema_of({"type": "json_object"}) == {"type": "object"} == schema_of({"type": "json_object"}, emitted=(2,))
    assert schema_of({"type": "json_schema", "schema": SCHEMA}) == SCHEMA
    assert schema_of({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}) == SCHEMA


def test_an_unknown_format_is_refused() -> None:
    for format_ in ({"type": "yaml"}, {"type": "json_schema"}):
        with pytest.raises(BadInput, match=r"^invalid_format: "):
            schema_of(format_)


# -- request checks
def test_a_prompt_must_leave_room_for_an_answer_where_one_is_requested() -> None:
    check_prompt(99, 5, 100)
    check_prompt(100, 0, 100)
    for num_tokens, max_tokens, code in ((0, 5, "empty_prompt"), (100, 1, "context_length_exceeded")):
        with pytest.raises(BadInput, match=rf"^{code}: "):
            check_prompt(num_tokens, max_tokens, 100)


# -- honoured fields
URL = "http://127.0.0.1:1/v1"


def test_llama_reads_what_it_lists_here_and_on_a_server() -> None:
    read = fields_read(lambda request: completion_parameters(request, 100))
    assert read == HONOURED == LlamaDialect.sampling


class FolderTokenizerFacts:
    """Has what dialects look up in a folder's tokenizer to write a request."""

    vocabulary_size = 100
    shows_specials = False


@pytest.mark.parametrize("kind", [VllmDialect, SglangDialect])
def test_a_server_gets_the_fields_that_are_listed(kind: type[VllmDialect | SglangDialect]) -> None:
    dialect = kind(RemoteOptions(urls=(URL,), tokenizer=Path("folder")))
    dialect._tokenizer = FolderTokenizerFacts()  # type: ignore[assignment]

    def body(request: GenerationRequest) -> dict[str, Json]:
        return dialect._body("m", request) if isinstance(dialect, VllmDialect) else dialect._body(request)

    assert fields_read(body) == kind.sampling


async def test_the_simulated_engine_answers_otherwise_by_what_it_lists_and_by_nothing_else() -> None:
    engine = SimulatedEngine(SimulatedOptions(answer_tokens_mean=4, step_base_s=0.0001, temperature=1))
    await engine.start()
    try:

        async def answer(sampling: Sampling, seed: int) -> str:
            return (await ask(engine, key("a"), (9, 10, 11), sampling=sampling, seed=seed, max_tokens=40)).text

        plain, read = await answer(Sampling(), 7), set()
        for name, sampling in each_field().items():
            changed = await answer(sampling, 7 if sampling.seed is None else sampling.seed)
            read |= {name} if changed != plain else set()
        assert read == engine.info.sampling
    finally:
        await engine.close()


# -- tokens
tokens = st.lists(st.integers(0, 3) | st.integers(0, 2**32 - 1), max_size=300)


@given(tokens, tokens, tokens)
def test_common_prefix_is_the_naive_one(shared: list[int], left: list[int], right: list[int]) -> None:
    a, b = as_tokens([*shared, *left]), as_tokens([*shared, *right])
    naive = 0
    while naive < min(len(a), len(b)) and a[naive] == b[naive]:
        naive += 1
    assert common_prefix(a, b) == common_prefix(b, a) == naive


@given(st.text(), st.lists(st.integers(1, 5), min_size=1))
def test_text_comes_whole_however_its_bytes_are_cut(text: str, sizes: list[int]) -> None:
    data = text.encode()
    stream, out, at = Utf8Stream(), "", 0
    for index in range(len(data) + 1):
        size = sizes[index % len(sizes)]
        out += stream.feed(data[at : at + size])
        at += size
        assert text.startswith(out)
        if at >= len(data):
            break
    assert out == text and stream.pending == b""


@given(st.text(min_size=1), st.data())
def test_a_stream_that_continues_another_finishes_its_character(text: str, data: st.DataObject) -> None:
    whole = text.encode()
    cut = data.draw(st.integers(0, len(whole)))
    first = Utf8Stream()
    begun = first.feed(whole[:cut])
    assert begun + Utf8Stream([whole[:cut]]).feed(whole[cut:]) == text


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    stream = Utf8Stream()
    assert stream.feed(b"a\xff") == "a�"
    assert stream.feed(b"\xf0\x9f") == ""
    assert stream.feed(b"b") == "�b"


@pytest.mark.parametrize("length", [LONG - 1, LONG, LONG + 1, 50_000])
def test_a_long_common_prefix_ends_where_the_two_differ(length: int) -> None:
    left = array.array("I", range(length))
    assert common_prefix(left, left[:]) == length
    assert common_prefix(left, left + left) == common_prefix(left + left, left) == length
    for at in (0, 1, LONG - 2, length // 2, length - 1):
        right = left + left
        right[at] += 1
        assert common_prefix(left, right) == common_prefix(right, left) == at
    left.append(1)  # nothing holds on to it


# -- continuation
def test_what_was_emitted_is_prompt_and_counts() -> None:
    whole = request(key("s"), (1, 2, 3), max_tokens=10, seed=7)
    rest = continuation_of(whole, (4, 5))
    assert (tuple(rest.prompt), rest.emitted, rest.max_tokens) == ((1, 2, 3, 4, 5), (4, 5), 8)
    again = continuation_of(rest, (6,))
    assert (tuple(again.prompt), again.emitted, again.max_tokens) == ((1, 2, 3, 4, 5, 6), (4, 5, 6), 7)
    assert len({whole.seed, rest.seed, again.seed}) == 3
    assert continuation_of(whole, (4, 5)).seed == rest.seed
