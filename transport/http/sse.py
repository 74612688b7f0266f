"""Writes server-sent events as they come, and notices at once when the client has left.

Starlette's own streaming leaves it to the server whether a client that goes away is noticed; here it is noticed at
once, because closing a plain stream cancels its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
HasLeft = Callable[[], Awaitable[bool]]  # whether the client of a request has left

ROUNDS_TO_NOTICE = 2  # of the event loop, until a connection that was reset is known to be lost
KEEPALIVE_S = 15.0  # proxies may close a connection that was silent for a minute
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
LINE_ENDS = tuple((end.encode(), rb"\u%04x" % ord(end)) for end in "\u0085\u2028\u2029")
DONE = b"data: [DONE]\n\n"


def data(payload: bytes, *, event: str | None = None, id: str | None = None) -> bytes:
    """Returns one event in bytes. `payload` is JSON on one line; Unicode's line ends are escaped for safety."""
    for raw, escaped in LINE_ENDS:
        payload = payload.replace(raw, escaped)
    head = (f"id: {id}\n" if id is not None else "") + (f"event: {event}\n" if event is not None else "")
    return head.encode() + b"data: " + payload + b"\n\n"


class EventStreamResponse(Response):
    """Sends what `chunks` yields, and a comment whenever it was silent for long. `left` (a plain function) is called if
    the client leaves before the end."""

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        left: Callable[[], None] | None = None,
        headers: Mapping[str, str] | None = None,
        keepalive_s: float = KEEPALIVE_S,
    ) -> None:
        super().__init__(None, headers={**HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._chunks = with_keepalive(chunks, keepalive_s)
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await _until_disconnect(receive, self._write(send), self._left)

    async def _write(self, send: Send) -> None:
        async with aclosing(self._chunks) as chunks:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def resumed(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yields a stream again whose first piece was already taken."""
    async with aclosing(rest):
        if first:
            yield first
        async for chunk in rest:
            yield chunk


async def with_keepalive(chunks: AsyncGenerator[bytes, None], every_s: float) -> AsyncGenerator[bytes, None]:
    """Yields a stream with a comment whenever it was silent for `every_s`, so that proxies and readers see that it
    lives."""
    async with aclosing(chunks):
        while True:
            coming = asyncio.ensure_future(anext(chunks, None))
            try:
                while not (await asyncio.wait((coming,), timeout=every_s))[0]:
                    yield b": still here\n\n"
            except BaseException:
                coming.cancel()
                await asyncio.wait((coming,))
                raise
            chunk = coming.result()
            if chunk is None:
                return
            yield chunk


async def demand_client(has_left: HasLeft | None) -> None:
    """Raises ClientDisconnect if the client has left. None: it does not matter whether it has.

    A reset that stands behind the request in its socket counts: the loop reads it in one round, and tells the
    connection in the next."""
    if has_left is None:
        return
    for _ in range(ROUNDS_TO_NOTICE):
        await asyncio.sleep(0)
    if await has_left():
        raise ClientDisconnect


async def cancel_on_disconnect(request: Request, work: Awaitable[T], left: Callable[[], None] | None = None) -> T:
    """Runs `work` and returns its result. If the client leaves before, cancels it, calls `left` and raises
    ClientDisconnect."""
    return await _until_disconnect(request.receive, work, left)


async def _until_disconnect(receive: Receive, work: Awaitable[T], left: Callable[[], None] | None) -> T:
    working = asyncio.ensure_future(work)
    listening = asyncio.create_task(_wait_disconnect(receive))
    try:
        await asyncio.wait((working, listening), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            if left is not None:
                left()
            raise ClientDisconnect
        return await working
    finally:
        working.cancel()
        listening.cancel()
        await asyncio.wait((working, listening))


async def _wait_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
