"""The remote engine at a provider that has only chat, and that refuses or goes on for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from inference.remote.chat_tokenizer import ChatTokenizer
from inference.remote.engine import RemoteEngine
from inference.remote.options import RemoteOptions
from inference.request_checks import trial_request
from sessions.model.errors import BadInput, Unavailable
from sessions.model.generation import Chunk, Finish, GenerationRequest
from sessions.model.types import Sampling, UnixMs
from sessions.ports import ChatMessage

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
        with pytest.raises(Unavailable, match="refuses the key of engine_key"):
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
