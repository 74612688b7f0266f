"""The remote engine in front of stand-ins for vLLM's and SGLang's servers: the same scenarios for each dialect."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import structlog

from inference.remote.dialects import refusal
from inference.remote.engine import RemoteEngine
from inference.remote.options import RemoteOptions
from sessions.model.errors import BadInput, EngineLost, Overloaded, SessileError, Unavailable
from sessions.model.generation import Chunk, Finish
from sessions.model.types import Sampling, TextOptions, Tokens
from testbed.engine_client import Answer, follow_up, key, prompt_of, request
from tests.support.engines.token_servers import (
    OTHER_END,
    STORY,
    WINDOW,
    SglangServer,
    TokenServer,
    VllmServer,
    engine_before,
    write_folder,
)

KINDS: dict[str, Callable[[Path], TokenServer]] = {
    "vllm": VllmServer,
    "sglang": SglangServer,
    "sglang-incremental": lambda folder: SglangServer(folder, incremental=True),
    "sglang-prompt-ids": lambda folder: SglangServer(folder, prompt_ids=5),
    "sglang-incremental-prompt-ids": lambda folder: SglangServer(folder, incremental=True, prompt_ids=5),
}
SGLANG = [name for name in KINDS if name != "vllm"]


class Bed(NamedTuple):
    """Two servers of one kind, and an engine in front of them."""

    engine: RemoteEngine
    servers: tuple[TokenServer, TokenServer]
    folder: Path

    def owner(self, session: str = "a") -> tuple[TokenServer, TokenServer]:
        """Returns the server that a session goes to, and the other one."""
        who = key(session)
        first = self.engine._pool.in_order(f"{who.tenant}\0{who.session}".encode())[0].name
        one, other = self.servers
        return (one, other) if one.url.endswith(first) else (other, one)

    def bodies(self) -> list[dict[str, Any]]:
        return [*self.servers[0].bodies, *self.servers[1].bodies]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(params=list(KINDS))
async def bed(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Bed]:
    make = KINDS[request.param]
    async with make(folder) as one, make(folder) as other, engine_before(folder, one, other, away_s=0) as engine:
        yield Bed(engine, (one, other), folder)


async def answer_of(engine: RemoteEngine, prompt: Tokens, most: int = 200, tenant: str = "t", **given: Any) -> Answer:
    *chunks, finish = [
        item async for item in engine.generate(request(key("a", tenant), prompt, max_tokens=most, **given))
    ]
    assert isinstance(finish, Finish)
    return Answer(tuple(chunk for chunk in chunks if isinstance(chunk, Chunk)), finish)


@pytest.mark.parametrize("event_tokens", [1, 3, 7, 500])
async def test_pieces_joined_are_the_whole_and_no_id_is_lost_or_doubled(bed: Bed, event_tokens: int) -> None:
    for server in bed.servers:
        server.event_tokens = event_tokens
    answer = await answer_of(bed.engine, await prompt_of(bed.engine, "Where?"))
    assert (answer.text, answer.finish.reason) == (STORY, "stop")
    assert answer.tokens == bed.servers[0].story, "without the end"
    assert all("\ufffd" not in chunk.text for chunk in answer.chunks)


async def test_an_end_that_only_the_server_knows_is_no_part_of_the_answer(bed: Bed) -> None:
    for server in bed.servers:
        end = server.tokenizer.token_id(OTHER_END)
        assert end is not None and end not in bed.engine._dialect._ends  # type: ignore[attr-defined]
        server.end = end
    answer = await answer_of(bed.engine, await prompt_of(bed.engine, "Where?"))
    assert (answer.tokens, answer.finish.reason) == (bed.servers[0].story, "stop")


async def test_the_end_can_be_ignored_and_other_tokens_can_end_an_answer(bed: Bed) -> None:
    prompt = await prompt_of(bed.engine, "Where?")
    story, end = bed.servers[0].story, bed.servers[0].end
    going_on = await answer_of(bed.engine, prompt, len(story) + 9, sampling=Sampling(temperature=0, ignore_eos=True))
    assert going_on.finish.reason == "length" and going_on.tokens == (*story, end, *story[:8])
    stop = story[20]
    for ignore_eos in (False, True):
        sampling = Sampling(temperature=0, ignore_eos=ignore_eos, stop_token_ids=(stop,))
        stopped = await answer_of(bed.engine, prompt, sampling=sampling)
        assert (stopped.finish.reason, stopped.tokens) == ("stop", story[: story.index(stop)])


async def test_a_length_is_kept(bed: Bed) -> None:
    answer = await answer_of(bed.engine, await prompt_of(bed.engine, "Where?"), 7)
    assert (answer.finish.reason, answer.tokens) == ("length", bed.servers[0].story[:7])


async def broken(engine: RemoteEngine, prompt: Tokens) -> list[int]:
    """Returns the ids of an answer up to where its server is lost."""
    seen: list[int] = []
    with pytest.raises(EngineLost):
        async for item in engine.generate(request(key("a"), prompt, max_tokens=200)):
            assert isinstance(item, Chunk)
            seen += item.tokens
    return seen


async def test_an_answer_goes_on_at_another_server_from_any_token(bed: Bed) -> None:
    """It does so from the middle of a character too, whose text comes whole."""
    engine, prompt = bed.engine, await prompt_of(bed.engine, "Where?")
    story = bed.servers[0].story
    for count in range(1, len(story)):
        head = story[:count]
        rest = await answer_of(engine, (*prompt, *head), 200 - count, emitted=head)
        shown = b"".join(engine.tokenizer.pieces(head)).decode(errors="ignore")
        assert (*head, *rest.tokens) == story and shown + rest.text == STORY


@pytest.mark.parametrize("fault", ["cut_after", "junk_after"])
async def test_a_server_that_breaks_an_answer_off_is_lost_and_the_other_one_goes_on(bed: Bed, fault: str) -> None:
    prompt, (its, other) = await prompt_of(bed.engine, "Where?"), bed.owner()
    setattr(its, fault, 11)
    seen = await broken(bed.engine, prompt)
    assert tuple(seen) == its.story[:11]
    setattr(its, fault, 0)
    rest = await answer_of(bed.engine, (*prompt, *seen), 200 - len(seen), emitted=tuple(seen))
    assert (*seen, *rest.tokens) == its.story and len(other.bodies) == 1


async def test_a_busy_server_is_passed_over_and_when_all_are_busy_the_answer_is_an_overload(bed: Bed) -> None:
    prompt, (its, other) = await prompt_of(bed.engine, "Where?"), bed.owner()
    its.busy = True
    assert (await answer_of(bed.engine, prompt)).text == STORY
    other.busy = True
    with pytest.raises((Overloaded, Unavailable)) as error:
        await answer_of(bed.engine, prompt)
    assert error.value.retryable and bed.engine.stats().away is None


async def test_a_prompt_that_is_too_long_and_other_refusals_are_the_requests_fault(bed: Bed) -> None:
    with pytest.raises(BadInput) as refused:
        await answer_of(bed.engine, (5,) * 380, 390)  # the servers' window is smaller than was said
    assert refused.value.code == "context_length_exceeded"
    for server in bed.servers:
        server.refusal = "Input length (9 tokens) exceeds the maximum allowed length (8 tokens)."
    with pytest.raises(BadInput) as refused:
        await answer_of(bed.engine, await prompt_of(bed.engine, "Where?"))
    assert refused.value.code == "context_length_exceeded"
    for server in bed.servers:
        server.refusal = "The grammar has no such word."
    with pytest.raises(BadInput, match="no such word") as refused:
        await answer_of(bed.engine, await prompt_of(bed.engine, "Where?"))
    assert refused.value.code == "engine_refused"


async def test_reused_tokens_are_counted_and_no_tenant_sees_anothers(bed: Bed) -> None:
    (server, _) = bed.servers
    async with engine_before(bed.folder, server) as engine:
        prompt = await prompt_of(engine, "Where?")
        first = await answer_of(engine, prompt)
        assert first.finish.cached_tokens == 0
        second = await follow_up(engine, prompt, first, "And then?")
        assert (await answer_of(engine, second, 9)).finish.cached_tokens >= len(prompt) - 1
        other = await answer_of(engine, second, 9, tenant="other")
        assert other.finish.cached_tokens == 0
    salts = {body.get("cache_salt") or body["extra_key"] for body in server.bodies}
    assert len(salts) == 2 and not any(salt == "t" or "other" in salt for salt in salts)


async def test_who_leaves_ends_the_servers_work(bed: Bed) -> None:
    prompt = await prompt_of(bed.engine, "Where?")
    stream = bed.engine.generate(request(key("a"), prompt, max_tokens=300, sampling=Sampling(ignore_eos=True)))
    assert isinstance(await anext(stream), Chunk)
    await stream.aclose()  # type: ignore[attr-defined]
    await bed.owner()[0].hung_up.wait()
    assert bed.engine.stats().running == 0


async def test_a_format_is_the_servers_to_keep_and_no_answer_in_one_goes_on(bed: Bed) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}}
    text = TextOptions(format={"type": "json_schema", "name": "x", "schema": schema})
    prompt = await prompt_of(bed.engine, "Where?")
    await answer_of(bed.engine, prompt, sampling=Sampling(text=text))
    (body,) = bed.bodies()
    sent = body.get("sampling_params", {}).get("json_schema")
    assert (json.loads(sent) if sent else body["response_format"]["json_schema"]["schema"]) == schema
    with pytest.raises(BadInput, match="cannot be continued"):
        await answer_of(bed.engine, prompt, sampling=Sampling(text=text), emitted=prompt[-1:])


async def test_what_the_engine_says_of_itself(bed: Bed) -> None:
    info = bed.engine.info
    assert info.model == "small" and not info.images
    assert WINDOW - 6 <= info.context_window <= WINDOW
    assert "seed" in info.sampling and not info.sampling & {"logprobs", "top_logprobs"}


async def test_a_key_is_sent_and_a_wrong_one_is_refused_without_naming_it(bed: Bed, folder: Path) -> None:
    for server in bed.servers:
        server.key = "sk-secret"
    async with engine_before(folder, *bed.servers, key="sk-secret") as engine:
        assert (await answer_of(engine, await prompt_of(engine, "Where?"))).text == STORY
    with pytest.raises(SessileError, match="refuses the key") as refused:
        async with engine_before(folder, *bed.servers, key="another"):
            raise AssertionError
    assert "another" not in refused.value.public_message
    for server in bed.servers:
        server.tokenize_status = 400
    with pytest.raises(BadInput, match=r"No more of \[key\]\."):
        async with engine_before(folder, *bed.servers, key="sk-secret"):
            raise AssertionError


async def test_a_folder_that_tokenises_otherwise_is_refused(bed: Bed, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="tokenises otherwise"):
        async with engine_before(write_folder(tmp_path / "other", "SentencePiece"), *bed.servers):
            raise AssertionError


@pytest.mark.parametrize("kind", KINDS)
async def test_each_servers_tokenizer_is_compared(kind: str, folder: Path, tmp_path: Path) -> None:
    """Servers of several models often have one name, such as `default`."""
    other_folder = write_folder(tmp_path / "other", "SentencePiece")
    async with KINDS[kind](folder) as one, KINDS[kind](other_folder) as other:
        with pytest.raises(BadInput, match=f"{other.url.removeprefix('http://')} tokenises otherwise"):
            async with engine_before(folder, one, other):
                raise AssertionError


async def test_a_server_that_comes_back_with_another_model_gets_no_prompt(bed: Bed) -> None:
    """SGLang takes the token ids of any model."""
    prompt, (its, other) = await prompt_of(bed.engine, "Where?"), bed.owner()
    its.cut_after = 11
    await broken(bed.engine, prompt)
    its.cut_after, its.model, before = None, "large", len(its.bodies)
    assert (await answer_of(bed.engine, prompt)).tokens == its.story
    assert len(its.bodies) == before and len(other.bodies) == 1
    its.model = "small"
    assert (await answer_of(bed.engine, prompt)).tokens == its.story
    assert len(its.bodies) == before + 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_was_away_at_the_start_is_checked_before_it_gets_a_prompt(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    other_folder = write_folder(tmp_path / "other", "SentencePiece")
    async with KINDS[kind](folder) as one, KINDS[kind](other_folder) as other:
        other.key = "not yet"
        async with engine_before(folder, one, other, away_s=0) as engine:
            other.key, prompt = "", await prompt_of(engine, "Where?")
            for session in "abcdefgh":
                (*_, finish) = [item async for item in engine.generate(request(key(session), prompt, max_tokens=9))]
                assert isinstance(finish, Finish)
    assert len(one.bodies) == 8 and not other.bodies


async def test_servers_of_several_models_are_refused(bed: Bed, folder: Path) -> None:
    bed.servers[1].model = "large"
    with pytest.raises(BadInput, match="large and small: name those of one model"):
        async with engine_before(folder, *bed.servers):
            raise AssertionError


async def test_a_window_beyond_the_servers_is_refused_and_a_smaller_one_is_taken(bed: Bed, folder: Path) -> None:
    beyond = f"--context {WINDOW + 1} is beyond the window of the servers: at most {bed.engine.info.context_window}"
    with pytest.raises(BadInput, match=beyond):
        async with engine_before(folder, *bed.servers, context_window=WINDOW + 1):
            raise AssertionError
    async with engine_before(folder, *bed.servers, context_window=WINDOW // 2) as engine:
        assert engine.info.context_window == WINDOW // 2


async def test_a_folder_without_its_files_says_which(bed: Bed, tmp_path: Path) -> None:
    for folder, message in ((tmp_path / "none", r"config\.json and tokenizer\.json"), (tmp_path, "Copy it from")):
        with pytest.raises(BadInput, match=message):
            async with engine_before(folder, *bed.servers):
                raise AssertionError


@pytest.mark.parametrize("kind", SGLANG)
async def test_servers_of_several_kinds_are_refused(kind: str, folder: Path) -> None:
    async with KINDS[kind](folder) as one, VllmServer(folder) as other:
        with pytest.raises(BadInput, match="several kinds, SGLang and vLLM") as refused:
            async with engine_before(folder, one, other):
                raise AssertionError
    assert refused.value.param == "engine_url"


async def test_a_server_of_another_name_counts_as_vllms(folder: Path) -> None:
    async with VllmServer(folder) as server:
        server.owned_by = "team"
        async with engine_before(folder, server) as engine:
            assert engine.info.build == "remote-vllm/1"


# -- of SGLang alone
async def test_without_tokenize_nothing_is_compared_and_the_log_says_so(folder: Path) -> None:
    async with SglangServer(folder) as server:
        server.tokenize_status = 404
        with structlog.testing.capture_logs() as logs:
            async with engine_before(folder, server) as engine:
                assert engine.info.build == "remote-sglang/1"
    assert [line["model"] for line in logs if line["event"] == "tokenizer_check_skipped"] == ["small"]


ABORTS: dict[str, dict[str, Any]] = {
    "no memory": {"message": "Out of memory", "status_code": 500},
    "a bad request": {"message": "Grammar error", "status_code": 400},
    "ended by its operator": {"message": "Aborted by AbortReq."},
    "queue": {"message": "The request queue is full.", "status_code": 503},
    "no numbers": {"type": "stop", "matched": "NaN happened"},
}


@pytest.mark.parametrize("reason", ABORTS.values(), ids=list(ABORTS))
async def test_an_answer_that_sglang_aborts_goes_on_elsewhere(folder: Path, reason: dict[str, Any]) -> None:
    async with SglangServer(folder) as one, SglangServer(folder) as other, engine_before(folder, one, other) as engine:
        prompt, (its, _) = await prompt_of(engine, "Where?"), Bed(engine, (one, other), folder).owner()
        assert isinstance(its, SglangServer)
        its.abort = (11, reason)
        seen = await broken(engine, prompt)
        assert tuple(seen) == its.story[:11]
        rest = await answer_of(engine, (*prompt, *seen), 200 - len(seen), emitted=tuple(seen))
        assert (*seen, *rest.tokens) == its.story


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("no memory", "engine_unavailable"),
        ("a bad request", "engine_refused"),
        ("queue", "overloaded"),
        ("no numbers", "engine_unavailable"),
    ],
)
async def test_an_abort_before_the_first_token_says_whose_fault_it_is(folder: Path, reason: str, code: str) -> None:
    async with SglangServer(folder) as server, engine_before(folder, server) as engine:
        server.abort = (0, ABORTS[reason])
        with pytest.raises(SessileError) as error:
            await answer_of(engine, await prompt_of(engine, "Where?"))
    assert error.value.code == code


@pytest.mark.parametrize(
    ("status", "code"), [(503, "overloaded"), (500, "engine_unavailable"), (400, "engine_refused")]
)
async def test_a_refusal_in_the_stream_says_whose_fault_it_is(folder: Path, status: int, code: str) -> None:
    async with SglangServer(folder) as server, engine_before(folder, server) as engine:
        server.refusal, server.refusal_status = "No.", status
        with pytest.raises(SessileError) as error:
            await answer_of(engine, await prompt_of(engine, "Where?"))
    assert error.value.code == code


async def test_ids_that_a_server_loses_are_noticed(folder: Path) -> None:
    """Some releases lose them when they are busy."""
    async with SglangServer(folder, incremental=True) as server, engine_before(folder, server) as engine:
        server.lost_event = 11
        prompt = await prompt_of(engine, "Where?")
        assert tuple(await broken(engine, prompt)) == server.story[:10]


async def test_a_server_that_names_no_ids_is_of_no_use(folder: Path) -> None:
    async with SglangServer(folder) as server, engine_before(folder, server) as engine:
        server.names_ids = False
        with pytest.raises(BadInput, match="names no token ids"):
            await answer_of(engine, await prompt_of(engine, "Where?"))


async def test_a_special_token_in_an_answer_is_kept_and_is_no_text(folder: Path) -> None:
    async with SglangServer(folder) as server, engine_before(folder, server) as engine:
        special = engine.tokenizer.token_id("[INST]")  # type: ignore[attr-defined]
        server.story = (*server.story[:9], special, *server.story[9:])
        answer = await answer_of(engine, await prompt_of(engine, "Where?"))
    assert (answer.tokens, answer.text) == (server.story, STORY)


async def test_a_parameter_that_a_request_leaves_out_is_the_models_own(folder: Path, tmp_path: Path) -> None:
    own = write_folder(tmp_path / "own")
    (own / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 0, "eos_token_id": [1, 2]}')
    sent = []
    for model in (folder, own):
        async with SglangServer(model) as server, engine_before(model, server) as engine:
            prompt = await prompt_of(engine, "Where?")
            await answer_of(engine, prompt, 3, sampling=Sampling())
            await answer_of(engine, prompt, 3, sampling=Sampling(temperature=0, top_k=5, min_tokens=9))
            sent += [body["sampling_params"] for body in server.bodies]
    names = ("temperature", "top_p", "top_k", "min_p")
    assert [[each[name] for name in names] for each in sent] == [
        [1, 1, -1, 0],
        [0, 1, 5, 0],
        [0.6, 1, -1, 0],
        [0, 1, 5, 0],
    ]
    assert [each.get("min_new_tokens") for each in sent] == [None, 3, None, 3]


async def test_recommended_parameters_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    own = write_folder(tmp_path / "own")
    (own / "generation_config.json").write_text('{"temperature": "hot"}')
    async with SglangServer(own) as server:
        with pytest.raises(BadInput, match=r"generation_config\.json"):
            async with engine_before(own, server):
                raise AssertionError


async def test_a_penalty_beyond_sglangs_is_refused_before_anything_runs(folder: Path) -> None:
    async with SglangServer(folder) as server, engine_before(folder, server) as engine:
        with pytest.raises(BadInput) as refused:
            engine.check_sampling(Sampling(repeat_penalty=2.5))
        engine.check_sampling(Sampling(repeat_penalty=2))
    assert refused.value.param == "repeat_penalty"


async def test_a_gguf_file_is_no_tokenizer_of_such_servers(bed: Bed, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no llama-server: name the Hugging Face folder"):
        async with engine_before(tmp_path / "model.gguf", *bed.servers):
            raise AssertionError


@pytest.mark.parametrize(
    "body", [{"detail": [{"loc": ["body"], "msg": "No such field."}]}, {"detail": "No such field."}]
)
async def test_a_refusal_of_the_servers_framework_is_passed_on(body: dict[str, Any]) -> None:
    error = refusal(422, json.dumps(body).encode())
    assert error.code == "engine_refused" and "No such field." in error.public_message


async def test_servers_that_do_not_answer_at_the_start_are_of_no_kind(folder: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(SglangServer(folder))
        engine = RemoteEngine(RemoteOptions(urls=("http://127.0.0.1:1", server.url), tokenizer=folder))
        await engine.start()
        assert (await answer_of(engine, await prompt_of(engine, "Where?"))).text == STORY
        await engine.close()
