"""Faults of a memory directory that a test switches on and off (`actors.directory.memory.Faults`)."""

from __future__ import annotations

import asyncio


class Weather:
    """`calls` remembers when which operation was asked for. Waiting is on the loop's clock, which a test moves."""

    def __init__(self) -> None:
        self.request_error: Exception | None = None
        self.reply_error: Exception | None = None
        self.request_s = 0.0
        self.reply_s = 0.0
        self.calls: list[tuple[float, str]] = []

    async def request(self, operation: str) -> None:
        self.calls.append((asyncio.get_running_loop().time(), operation))
        await _later(self.request_s)
        if self.request_error is not None:
            raise self.request_error

    async def reply(self, operation: str) -> None:
        await _later(self.reply_s)
        if self.reply_error is not None:
            raise self.reply_error


async def _later(seconds: float) -> None:
    if seconds:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, waiter.set_result, None)
        try:
            await waiter
        finally:
            timer.cancel()
