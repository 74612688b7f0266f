"""The remote engine in front of real llama-servers: they say what the engine of our own says, token by token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from inference.llama import LlamaEngine
from inference.remote.engine import RemoteEngine
from inference.remote.options import RemoteOptions
from sessions.model.errors import BadInput, EngineLost, Overloaded, Unavailable
from sessions.model.generation import Chunk
from sessions.model.types import Sampling, TextOptions
from testbed.engine_client import ask, follow_up, key, open_stream, prompt_of, request, until
from tests.support.engines.chat_templates import FAMILIES, SPECIALS
from tests.support.engines.engines import LlamaWorld
from tests.support.engines.llama_server import serving
from tests.support.engines.relay import Relay
from tests.support.engines.tiny_models import write_tiny_model

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]


class Servers(NamedTuple):
    own: LlamaEngine  # whose llama-server stands behind all of them
    relays: tuple[Relay, Relay]
    engine: RemoteEngine

    def owner(self, session: str) -> tuple[Relay, Relay]:
        """The relay that a session goes to, and the other one."""
        who = key(session)
        first = self.engine._pool.in_order(f"{who.tenant}\0{who.session}".encode())[0].name
        one, other = self.relays
        return (one, other) if one.url.endswith(first) else (other, one)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def own(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> AsyncIterator[LlamaEngine]:
    world = LlamaWorld(tmp_path_factory.mktemp("llama"), model_path)
    engine = await world.engine()
    assert isinstance(engine, LlamaEngine)
    yield engine
    await world.close()


@pytest_asyncio.fixture(loop_scope="module")
async def servers(own: LlamaEngine, model_path: Path) -> AsyncIterator[Servers]:
    async with Relay(own.socket_path) as one, Relay(own.socket_path) as other:
        urls = (one.url, other.url)
        engine = RemoteEngine(RemoteOptions(urls=urls, tokenizer=model_path, slots=2, waiting_max=1, silence_s=60))
        await engine.start()
        yield Servers(own, (one, other), engine)
        await engine.close()


async def test_it_says_what_the_engine_of_our_own_says(servers: Servers) -> None:
    engine, own = servers.engine, servers.own
    assert engine.info.context_window == own.info.context_window
    assert engine.tokenizer.fingerprint == own.tokenizer.fingerprint
    prompt = await prompt_of(engine, "Name three rivers, and say 🌉 in between.")
    mine, theirs = await ask(own, key("a"), prompt, max_tokens=40), await ask(engine, key("a"), prompt, max_tokens=40)
    assert (theirs.tokens, theirs.text, theirs.finish.reason) == (mine.tokens, mine.text, mine.finish.reason)
    second = await follow_up(engine, prompt, theirs, "And three lakes?")
    more = await ask(engine, key("a"), second, max_tokens=8)
    assert more.finish.cached_tokens >= len(prompt)


async def test_a_session_goes_to_one_server(servers: Servers) -> None:
    prompt = await prompt_of(servers.engine, "Hello.")
    for session in "abcdef":
        its, other = servers.owner(session)
        before = (its.requests, other.requests)
        await ask(servers.engine, key(session), prompt, max_tokens=2)
        assert (its.requests, other.requests) == (before[0] + 1, before[1])


async def test_a_dead_server_is_passed_over_and_comes_back(servers: Servers) -> None:
    prompt = await prompt_of(servers.engine, "Hello.")
    its, other = servers.owner("a")
    await its.cut()
    before = other.requests
    await ask(servers.engine, key("a"), prompt, max_tokens=2)
    await ask(servers.engine, key("a"), prompt, max_tokens=2)
    assert other.requests == before + 2 and servers.engine.stats().gauges["servers_away"] == 1
    assert servers.engine.stats().counters["failures"] == 1, "it is left alone for a while"
    await other.cut()
    with pytest.raises(Unavailable, match="None of the model"):
        await ask(servers.engine, key("a"), prompt, max_tokens=2)
    assert servers.engine.stats().away
    await its.back()
    await ask(servers.engine, key("a"), prompt, max_tokens=2)
    assert servers.engine.stats().away is None


async def test_a_request_that_servers_fail_at_takes_them_away_from_nobody(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = servers.engine
    prompt = await prompt_of(engine, "Hello.")
    with monkeypatch.context() as patched:
        patched.setattr(engine._dialect, "run", lambda *_: fails())
        with pytest.raises(Unavailable):
            await ask(engine, key("a"), prompt, max_tokens=2)
    assert engine.stats().counters["failures"] == 2 and engine.stats().away is None
    assert (await ask(engine, key("b"), prompt, max_tokens=2)).tokens


async def fails() -> AsyncGenerator[Chunk, None]:
    """Stands for a server that answers one request with 500."""
    raise Unavailable("engine_unavailable", "The model's server answers with 500.")
    yield Chunk((), "")


async def test_an_answer_that_is_broken_off_goes_on_at_the_other_server(servers: Servers) -> None:
    """As an actor has it gone on with: the prompt, and what was decoded."""
    engine = servers.engine
    prompt = await prompt_of(engine, "Tell me a long story about the sea.")
    whole = await ask(engine, key("whole"), prompt, max_tokens=40)
    its, _ = servers.owner("a")
    seen: list[int] = []
    with pytest.raises(EngineLost):
        async for item in engine.generate(request(key("a"), prompt, max_tokens=40)):
            assert isinstance(item, Chunk)
            seen += item.tokens
            if len(seen) >= 8:
                await its.cut()
    rest = await ask(engine, key("a"), (*prompt, *seen), max_tokens=40 - len(seen), emitted=tuple(seen))
    assert (*seen, *rest.tokens) == whole.tokens


async def test_leaving_frees_the_place_and_too_many_are_shed(servers: Servers) -> None:
    engine = servers.engine
    prompt = await prompt_of(engine, "Tell me a long story.")
    held = [await open_stream(engine, key(name), prompt) for name in "ab"]
    waiting = asyncio.ensure_future(ask(engine, key("c"), prompt, max_tokens=2))
    await until(lambda: engine.stats().waiting == 1)
    with pytest.raises(Overloaded):
        await ask(engine, key("d"), prompt, max_tokens=2)
    await held[0].abort()
    assert (await waiting).tokens
    await held[1].abort()
    assert engine.stats().running == 0


async def test_formats_and_limits(servers: Servers) -> None:
    engine = servers.engine
    prompt = await prompt_of(engine, "Where?")
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
    text = TextOptions(format={"type": "json_schema", "name": "x", "schema": schema})
    answer = await ask(engine, key("a"), prompt, max_tokens=40, sampling=Sampling(temperature=0, text=text))
    assert '"Rome"' in answer.text
    with pytest.raises(BadInput, match="cannot be continued"):
        await ask(engine, key("a"), prompt, sampling=Sampling(text=text), emitted=prompt[-1:])
    with pytest.raises(BadInput, match="takes"):
        await ask(engine, key("a"), (1,) * 2000)
    assert (await ask(engine, key("a"), prompt, max_tokens=3)).finish.reason == "length"


async def test_a_server_that_falls_silent_is_probed(servers: Servers, model_path: Path) -> None:
    urls = tuple(relay.url for relay in servers.relays)
    engine = RemoteEngine(RemoteOptions(urls=urls, tokenizer=model_path, silence_s=0.01, answer_s=60, away_s=0))
    await engine.start()
    silent: list[asyncio.StreamWriter] = []
    servers.relays[1].silent = silent
    prompt = await prompt_of(engine, "Hello.")
    for session in "abcdefgh":
        assert (await ask(engine, key(session), prompt, max_tokens=2)).tokens
    assert silent and engine.stats().counters["failures"] == len(silent)
    for writer in silent:
        writer.transport.abort()


async def test_a_server_that_answers_nothing_at_all_is_given_up(model_path: Path) -> None:
    async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Unavailable, match="No server of the model answers"):
            await RemoteEngine(RemoteOptions(urls=(url,), tokenizer=model_path, answer_s=0.01)).start()


async def test_nobody_there_and_a_wrong_key_are_said(model_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 "):
        await RemoteEngine(RemoteOptions(urls=("http://127.0.0.1:1",), tokenizer=model_path)).start()
    with pytest.raises(Unavailable, match=r"answers at a\.\.b:80 "):
        await RemoteEngine(RemoteOptions(urls=("http://a..b:80",), tokenizer=model_path)).start()


@pytest.mark.parametrize("kind", ["qwen2", "SentencePiece"])
async def test_a_file_of_another_tokenizer_is_refused(servers: Servers, kind: str, tmp_path: Path) -> None:
    file = tmp_path / "other.gguf"
    write_tiny_model(file, kind, FAMILIES["chatml"], SPECIALS)
    with pytest.raises(BadInput, match="tokenises otherwise"):
        await RemoteEngine(RemoteOptions(urls=(servers.relays[0].url,), tokenizer=file)).start()


async def test_the_servers_name_of_the_model_is_no_path_of_its_machine(servers: Servers, model_path: Path) -> None:
    assert servers.engine.info.model == model_path.stem


async def test_a_folder_is_no_tokenizer_of_llama_server(servers: Servers, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="llama-server: name its GGUF file"):
        await RemoteEngine(RemoteOptions(urls=(servers.relays[0].url,), tokenizer=tmp_path)).start()


@pytest.mark.parametrize("page", [b"<html>", b"[]", b"{}", b'{"data": []}', b"\xff", b"[" * 9999])
@pytest.mark.parametrize("own", [Path("model.gguf"), Path("folder")])
async def test_an_address_of_something_else_is_named_in_the_error(page: bytes, own: Path) -> None:
    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(page), page))

    async with serving(answer) as (client, _):
        engine = RemoteEngine(RemoteOptions(urls=(f"http://{client._authority}",), tokenizer=own))
        with pytest.raises(Unavailable, match=r"What answers at 127\.0\.0\.1:\d+ is no (llama-server|server of vLLM)"):
            await engine.start()
