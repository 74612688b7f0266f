"""The HTTP transport under an MCP session: every request of the official client goes where it is permitted to go.

The client follows redirects within an origin and reads JSON answers whole; so here, below it, each request's name is
resolved once and every address looked at, an answer that redirects loses its place, and no more of a body is read than
a message may have. Secrets are put in here, on the way out, and stand in no object of the client's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

import httpx2

from inference.tools.mcp.stdio import Note
from inference.tools.outbound import Resolve, ToolUnreached, permitted_request
from sessions.public_addresses import AddressRules

BODY_BYTES_MAX: Final = 1 << 20
STREAM_BYTES_MAX: Final = 16 << 20  # of events in one answer; the client then sends another request
CONNECT_S: Final = 10.0
_REDIRECTS: Final = range(300, 400)

Credentials = Callable[[], Awaitable[Mapping[str, str]]]
"""Returns headers with secrets; called anew for each request."""


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends HTTP requests of MCP to permitted addresses only; usable inside an `httpx2.AsyncClient`, which closes
    it."""

    def __init__(
        self, rules: Callable[[], AddressRules], credentials: Credentials, note: Note, *, resolve: Resolve
    ) -> None:
        """`note` gets why a request failed, in words without its address; "" if it did not."""
        self._rules = rules
        self._credentials = credentials
        self._note = note
        self._resolve = resolve
        self._inner = httpx2.AsyncHTTPTransport(trust_env=False, limits=httpx2.Limits(max_connections=32))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            answer = await self._sent(request)
        except httpx2.TransportError as error:
            self._note(_reason(error))
            raise
        self._note(f"HTTP {answer.status_code}" if answer.status_code >= 400 else "")
        return answer

    async def _sent(self, request: httpx2.Request) -> httpx2.Response:
        try:
            headers = httpx2.Headers(request.headers)
            headers.update(await self._credentials())
        except (OSError, ValueError) as error:
            raise _NotSent("it is not set up", request=request) from error
        try:
            async with asyncio.timeout(CONNECT_S):
                sent = await permitted_request(request, headers, self._rules(), self._resolve)
        except (ToolUnreached, TimeoutError) as error:
            raise _NotSent(str(error) or "its name was not resolved in time", request=request) from error
        answer = await self._inner.handle_async_request(sent)
        kept = httpx2.Headers(answer.headers)
        if answer.status_code in _REDIRECTS and "location" in kept:
            del kept["location"]
        streamed = kept.get("content-type", "").lower().startswith("text/event-stream")
        assert isinstance(answer.stream, httpx2.AsyncByteStream)
        body = _Bounded(answer.stream, STREAM_BYTES_MAX if streamed else BODY_BYTES_MAX)
        return httpx2.Response(answer.status_code, headers=kept, stream=body, extensions=answer.extensions)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _NotSent(httpx2.ConnectError):
    """Raised if a request may not be sent; the message says why without its address."""


def _reason(error: httpx2.TransportError) -> str:
    if isinstance(error, _NotSent):
        return str(error)
    if isinstance(error, httpx2.ConnectError):
        return "no connection to it can be made"
    return "it took too long" if isinstance(error, httpx2.TimeoutException) else "the connection to it broke"


class _Bounded(httpx2.AsyncByteStream):
    """A response body that raises where it is longer than a message may be."""

    def __init__(self, stream: httpx2.AsyncByteStream, bytes_max: int) -> None:
        self._stream = stream
        self._bytes_max = bytes_max

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for chunk in self._stream:
            read += len(chunk)
            if read > self._bytes_max:
                raise httpx2.ReadError(f"it answered more than {self._bytes_max} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
