"""Streams as answers: silence is filled, and a client that leaves is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from transport.http import sse


async def test_a_silent_stream_says_that_it_lives() -> None:
    speak = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"a"
        await speak.wait()
        yield b"b"

    seen = []
    async for chunk in sse.with_keepalive(chunks(), 0.001):
        seen.append(chunk)
        if chunk.startswith(b":"):
            speak.set()
    assert seen[0] == b"a" and seen[-1] == b"b" and set(seen[1:-1]) == {b": still here\n\n"}


async def test_every_stream_sends_its_headers_at_once_and_fills_its_silence() -> None:
    sent: list[Any] = []
    speak = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        await speak.wait()
        yield b"a"

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        sent.append(message)
        if message.get("body", b"").startswith(b":"):
            speak.set()

    await sse.EventStreamResponse(chunks(), keepalive_s=0.001)({"type": "http"}, receive, send)
    assert sent[0]["type"] == "http.response.start" and sent[1]["body"] == b": still here\n\n"
    assert [message["body"] for message in sent[-2:]] == [b"a", b""]
