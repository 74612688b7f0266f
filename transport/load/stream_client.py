"""Sends chat completions and reads their streams, with the time of each answer's first and last text.

An event costs a few microseconds here (one parser of C for HTTP, one of C for JSON, no task in between), because a
client that is busy measures itself. Connections are kept and used again. Every way in which a server can fail to answer
is one sentence in `StreamedAnswer.error`; nothing is raised for it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import httptools
import msgspec

BODY_BYTES_MAX: Final = 64 * 1024  # of an answer that is no stream
LINE_BYTES_MAX: Final = 1024 * 1024
RETRY_AFTER_MAX_S: Final = 60.0


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _StreamChunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class StreamedAnswer(msgspec.Struct):
    """What came of one request. Times are the clock's, 0 where it did not come to that."""

    sent: float = 0.0
    first: float = 0.0
    last: float = 0.0
    ended: float = 0.0
    status: int = 0
    pieces: int = 0
    usage_tokens: int | None = None
    finish: str = ""
    retry_after_s: float | None = None
    error: str = ""
    texts: list[str] = []

    @property
    def tokens(self) -> int:
        """As the server counts them, else as many as there were pieces."""
        return self.pieces if self.usage_tokens is None else self.usage_tokens


class ServerAddress(NamedTuple):
    host: str
    port: int
    tls: ssl.SSLContext | None
    prefix: str
    """Of every path, without the last slash."""


def parse_address(base: str) -> ServerAddress:
    """Of `http://host:port`, with or without `/v1` behind it."""
    url = urlsplit(base.rstrip("/").removesuffix("/v1"))
    tls = ssl.create_default_context() if url.scheme == "https" else None
    return ServerAddress(url.hostname or "", url.port or (443 if tls else 80), tls, url.path)


class StreamClient:
    """Requests to one server, as many at once as there are calls."""

    def __init__(self, address: ServerAddress, key: str, *, clock: Callable[[], float], timeout_s: float) -> None:
        self._address = address
        self._clock = clock
        self._timeout_s = timeout_s
        self._idle: list[_Connection] = []
        self._encoder = msgspec.json.Encoder()
        host = f"[{address.host}]" if ":" in address.host else address.host
        self._fields = f"Host: {host}:{address.port}\r\n" + (f"Authorization: Bearer {key}\r\n" if key else "")

    async def complete(self, body: dict[str, Any]) -> StreamedAnswer:
        """One chat completion, streamed."""
        content = self._encoder.encode(body)
        head = (
            f"POST {self._address.prefix}/v1/chat/completions HTTP/1.1\r\n{self._fields}"
            f"Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return await self._send(head.encode() + content, expects_stream=True)

    async def models(self) -> tuple[list[str], str]:
        """The names of `GET /v1/models`, and a sentence where there are none."""
        answer = await self._send(
            f"GET {self._address.prefix}/v1/models HTTP/1.1\r\n{self._fields}\r\n".encode(), expects_stream=False
        )
        if answer.error:
            return [], answer.error
        try:
            names = [str(each["id"]) for each in msgspec.json.decode(answer.texts[0])["data"]]
        except (msgspec.DecodeError, LookupError, TypeError):
            return [], "GET /v1/models is not answered as OpenAI's API does; is the address right?"
        return names, "" if names else "the server has no model"

    def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    async def _send(self, request: bytes, *, expects_stream: bool) -> StreamedAnswer:
        sent = self._clock()
        while True:
            connection = self._kept()
            kept = connection is not None
            if connection is None:
                try:
                    connection = await self._connect()
                except (OSError, TimeoutError) as error:
                    why = "no connection within the timeout" if isinstance(error, TimeoutError) else f"{error}"
                    return StreamedAnswer(sent=sent, ended=self._clock(), error=f"no connection: {why}")
            answer = StreamedAnswer(sent=sent)
            try:
                await connection.exchange(request, answer, expects_stream=expects_stream)
            finally:
                if connection.reusable:
                    self._idle.append(connection)
                else:
                    connection.abort()
            if not (kept and connection.closed_unanswered):  # else it was closed while it lay idle
                return answer

    def _kept(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._timeout_s):
            _, connection = await loop.create_connection(
                lambda: _Connection(loop, self._clock, self._timeout_s),
                self._address.host,
                self._address.port,
                ssl=self._address.tls,
            )
        return connection


class _Connection(asyncio.Protocol):
    """One connection, one request at a time. The parser calls the `on_` methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], timeout_s: float) -> None:
        self._loop = loop
        self._clock = clock
        self._timeout_s = timeout_s
        self._parser = httptools.HttpResponseParser(self)
        self._decoder = msgspec.json.Decoder(_StreamChunk)
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answer = StreamedAnswer()
        self._expects_stream = True
        self._is_stream = False
        self._complete = False
        self._media_type = b""
        self._rest = b""
        self._now = 0.0
        self._answered = False
        self._has_length = False
        self.closed_unanswered = False

    @property
    def reusable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._done is None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def exchange(self, request: bytes, answer: StreamedAnswer, *, expects_stream: bool) -> None:
        """Sends and fills `answer`. A caller that is cancelled finds the connection unusable."""
        assert self._transport is not None
        self._answer, self._expects_stream, self._is_stream, self._complete = answer, expects_stream, False, False
        self._media_type, self._rest, self._now = b"", b"", self._clock()
        self._answered = self._has_length = self.closed_unanswered = False
        self._done = self._loop.create_future()
        self._timer = self._loop.call_later(self._timeout_s, self._check_silence)
        self._transport.write(request)
        try:
            await self._done
            if answer.error:
                self.abort()
        finally:
            self._timer.cancel()
            if not self._done.done() or self._done.cancelled():
                self.abort()
            self._done = None

    # -- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's derives from none of asyncio's

    def data_received(self, data: bytes) -> None:
        self._now, self._answered = self._clock(), True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._finish("the answer is not HTTP; is the address right?")

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is None:
            return
        self._now = self._clock()
        if self._is_stream:
            self._end_stream()
        elif self._answer.status and not self._has_length:
            self._end_body()  # the end of the connection is that of the body
        elif self._answered:
            self._finish("the answer was cut")
        else:
            self.closed_unanswered = not self._done.done()
            self._finish("the server closed the connection without an answer")

    def _check_silence(self) -> None:
        silent = self._clock() - self._now
        if silent < self._timeout_s:
            self._timer = self._loop.call_later(self._timeout_s - silent + 0.001, self._check_silence)
        else:
            self._now = self._clock()
            self._finish(f"nothing came for {self._timeout_s:g} s, after {self._answer.pieces} pieces")

    # -- the parser's calls

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered == b"content-type":
            self._media_type = value.partition(b";")[0].strip().lower()
        elif lowered == b"retry-after":
            self._answer.retry_after_s = parse_retry_after(value)
        elif lowered in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()
        self._is_stream = (
            self._expects_stream and self._answer.status == 200 and self._media_type == b"text/event-stream"
        )

    def on_body(self, body: bytes) -> None:
        data = self._rest + body if self._rest else body
        if not self._is_stream:
            self._rest = data[:BODY_BYTES_MAX]
            return
        *lines, self._rest = data.split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            self._finish("an event of the stream has more than a megabyte")
        for line in lines:
            if line.startswith(b"data:"):
                self._read_event(line[5:])

    def on_message_complete(self) -> None:
        if self._answer.status < 200:
            return
        if not self._parser.should_keep_alive() and self._transport is not None:
            self._transport.close()
        if self._is_stream:
            self._end_stream()
        else:
            self._end_body()

    def _end_body(self) -> None:
        problem = problem_of(self._answer, self._media_type, self._rest, expects_stream=self._expects_stream)
        self._answer.texts = [self._rest.decode(errors="replace")]
        self._finish(problem)

    def _read_event(self, data: bytes) -> None:
        answer = self._answer
        try:
            chunk = self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeError):
            if data.strip() == b"[DONE]":
                self._complete = True
            elif data.strip():
                self._finish(f"an event of the stream is not OpenAI's: {shortened(data)}")
            return
        if chunk.error is not None:
            self._finish(f"the stream ended with an error: {message_of({'error': chunk.error})}")
            return
        if chunk.usage is not None:
            answer.usage_tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            delta = choice.delta
            if delta is not None and (delta.content or delta.tool_calls or delta.reasoning_content or delta.reasoning):
                answer.last = self._now
                answer.first = answer.first or self._now
                answer.pieces += 1
                if delta.content:
                    answer.texts.append(delta.content)
            if choice.finish_reason:
                answer.finish = choice.finish_reason

    def _end_stream(self) -> None:
        if self._complete or self._answer.finish:
            self._finish("" if self._answer.finish or self._answer.pieces else "the stream ended without an answer")
        else:
            self._finish(f"the stream was cut after {self._answer.pieces} pieces")

    def _finish(self, error: str) -> None:
        if self._done is not None and not self._done.done():
            self._answer.error, self._answer.ended = error, self._now
            self._done.set_result(None)


def parse_retry_after(value: bytes) -> float | None:
    """Seconds, at most a minute; None for a date, which needs a clock that agrees with the server's."""
    text = value.strip()
    return min(float(text), RETRY_AFTER_MAX_S) if text.isdigit() and len(text) < 10 else None


def problem_of(answer: StreamedAnswer, media_type: bytes, body: bytes, *, expects_stream: bool) -> str:
    """A sentence for an answer that is no stream; nothing where none was expected and all is well."""
    if answer.status == 200 and media_type == b"application/json":
        return "the server answers with JSON instead of a stream; does it know `stream`?" if expects_stream else ""
    if answer.status == 200:
        what = media_type.decode("latin-1") or "no media type"
        return f"the answer is not one of OpenAI's API ({what}); is the address right?"
    try:
        said = message_of(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeError):
        said = shortened(body) if media_type.startswith(b"text/plain") else ""
    wait = f" (Retry-After: {answer.retry_after_s:g} s)" if answer.retry_after_s is not None else ""
    hint = "; the key is what SESSILE_API_KEY or --api-key-file holds" if answer.status in (401, 403) else ""
    return f"HTTP {answer.status}" + (f": {said}" if said else "") + wait + hint


def message_of(body: Any) -> str:
    """The message of an error, in the shapes that OpenAI's API, FastAPI and others give it."""
    for name in ("error", "detail", "message"):
        if isinstance(body, dict) and name in body:
            return message_of(body[name])
    return shortened(body if isinstance(body, str) else msgspec.json.encode(body)) if body else ""


def shortened(text: str | bytes, length: int = 160) -> str:
    """One line of printable text."""
    whole = text.decode(errors="replace") if isinstance(text, bytes) else text
    line = "".join(each for each in " ".join(whole.split()) if each.isprintable())
    return line if len(line) <= length else line[: length - 1] + "…"
