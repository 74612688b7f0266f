"""Streams as answers: silence is filled, and a client that leaves is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

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
