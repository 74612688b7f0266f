"""The remote engine in front of vLLM's own server: ids both ways, reuse, formats, an answer that goes on."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from inference.http_client import HttpClient
from inference.remote.engine import RemoteEngine
from inference.remote.options import RemoteOptions
from sessions.model.errors import BadInput, SessileError
from sessions.model.generation import Chunk, Finish
from sessions.model.types import Sampling, TextOptions, Tokens
from testbed.engine_client import Answer, follow_up, key, open_stream, prompt_of, request
from tests.support.engines.vllm_world import BLOCK_TOKENS, MODEL
from tests.support.listening_sockets import free_ports

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

CPU = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
KEY = "key-of-the-server"


@pytest_asyncio.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    (port,) = free_ports(1)
    # Without what an engine in this process has set for processes of its own.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")} | CPU
    command = ("-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL), "--host", "127.0.0.1")
    flags = (
        "--port",
        str(port),
        "--served-model-name",
        "small",
        "--max-model-len",
        "1024",
        "--enforce-eager",
        "--dtype",
        "float32",
    )
    more = ("--enable-prompt-tokens-details", "--block-size", str(BLOCK_TOKENS), "--api-key", KEY)
    alone = ("--distributed-executor-backend", "uni", "--kv-cache-memory-bytes", "500000000")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, *flags, *more, *alone, env=environment, stdout=PIPE, stderr=STDOUT
    )
    assert process.stdout is not None
    lines: list[bytes] = []

    async def read() -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            lines.append(line)

    reading = asyncio.create_task(read())
    http = HttpClient("127.0.0.1", port)
    try:
        while True:
            assert process.returncode is None, b"".join(lines[-40:]).decode()
            try:
                status, _ = await http.call("GET", "/health")
            except SessileError:
                await asyncio.wait((reading,), timeout=0.2)
                continue
            if status == 200:
                break
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await reading


@pytest_asyncio.fixture
async def engine(url: str) -> AsyncIterator[RemoteEngine]:
    made = RemoteEngine(RemoteOptions(urls=(f"{url}/v1",), tokenizer=MODEL, key=KEY))
    await made.start()
    yield made
    await made.close()


async def ask_any(engine: RemoteEngine, session: str, prompt: Tokens, most: int, **given: Any) -> Answer:
    """As `ask`; what was reused is known at the end alone."""
    who = key(session, given.pop("tenant", "t"))
    *chunks, finish = [item async for item in engine.generate(request(who, prompt, max_tokens=most, **given))]
    assert isinstance(finish, Finish)
    return Answer(tuple(chunk for chunk in chunks if isinstance(chunk, Chunk)), finish)


async def test_turns_reuse_what_the_server_has(engine: RemoteEngine) -> None:
    assert (engine.info.model, engine.info.context_window) == ("small", 1024)
    prompt = await prompt_of(engine, "Name three rivers, and say 🌉 in between. " * 8)
    first = await ask_any(engine, "a", prompt, 20)
    second = await follow_up(engine, prompt, first, "And three lakes?")
    more = await ask_any(engine, "a", second, 8)
    covered = len(prompt) + len(first.tokens)
    assert more.finish.cached_tokens >= covered - covered % BLOCK_TOKENS - BLOCK_TOKENS
    other = await ask_any(engine, "a", second, 8, tenant="other")
    assert other.finish.cached_tokens == 0, "tenants share nothing"


async def test_an_answer_goes_on_from_its_tokens(engine: RemoteEngine) -> None:
    prompt = await prompt_of(engine, "Tell me a long story about the sea.")
    whole = await ask_any(engine, "a", prompt, 40)
    head = whole.tokens[:11]
    rest = await ask_any(engine, "b", (*prompt, *head), 40 - len(head), emitted=head)
    assert (*head, *rest.tokens) == whole.tokens
    decoded = b"".join(engine.tokenizer.pieces(whole.tokens)).decode()
    assert decoded.strip() == whole.text.strip()


async def test_formats_ends_and_refusals(engine: RemoteEngine) -> None:
    prompt = await prompt_of(engine, "Where?")
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
    text = TextOptions(format={"type": "json_schema", "name": "x", "schema": schema})
    answer = await ask_any(engine, "a", prompt, 60, sampling=Sampling(temperature=0, text=text))
    assert '"Rome"' in answer.text and answer.finish.reason == "stop"
    assert (await ask_any(engine, "a", prompt, 3)).finish.reason == "length"
    with pytest.raises(BadInput):
        await ask_any(engine, "a", (1,) * 2000, 3)
    opened = await open_stream(engine, key("c"), prompt, max_tokens=400)
    await opened.abort()
    assert engine.stats().running == 0


async def test_a_wrong_key_is_said(url: str) -> None:
    with pytest.raises(SessileError, match="refuses the key"):
        await RemoteEngine(RemoteOptions(urls=(url,), tokenizer=MODEL, key="other")).start()
