"""A tiny server that answers as an OpenAI-compatible one might, or as none would: bytes from a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

OK = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\n"


def plain(body: str, *, status: str = "200 OK", media_type: str = "application/json", fields: str = "") -> list[bytes]:
    """A whole answer."""
    data = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\n{fields}Content-Length: {len(data)}\r\n\r\n"
    return [head.encode() + data]


def stream(*events: Any, cut: bool = False, done: bool = True) -> list[bytes]:
    """A chunked answer, an event in a write; `cut`: the connection ends without the last chunk."""
    parts = [(OK.format("text/event-stream; charset=utf-8") + "Transfer-Encoding: chunked\r\n\r\n").encode()]
    written = [each if isinstance(each, bytes) else b"data: " + msgspec.json.encode(each) for each in events]
    for each in [*written, *([b"data: [DONE]"] if done and not cut else [])]:
        parts.append(b"%x\r\n%s\n\n\r\n" % (len(each) + 2, each))
    return parts if cut else [*parts, b"0\r\n\r\n"]


def piece(text: str | None = None, *, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """A chunk of a chat completion."""
    return {"choices": [{"index": 0, "delta": {**delta, "content": text}, "finish_reason": finish}]}


def usage(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}}


MODELS = plain('{"object": "list", "data": [{"id": "stand-in"}]}')
HELLO = stream(piece("", role="assistant"), piece("Hel"), piece("lo"), piece(finish="stop"), usage(3))


class StandIn:
    """The running server: `requests` are (path, body) of all that came; `answers` are used up, then `usual`."""

    def __init__(self, answers: Sequence[list[bytes] | None], usual: list[bytes] | None, models: list[bytes]) -> None:
        self.answers = list(answers)
        self.usual = usual
        self.models = models
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.heads: list[str] = []
        self.connections = 0
        self.port = 0
        self.on_request: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(line[15:]) for line in head.splitlines() if line.lower().startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        path = head.split()[1]
        self.heads.append(head)
        self.requests.append((path, msgspec.json.decode(body) if body else {}))
        self.on_request()
        if path.endswith("/models"):
            answer: list[bytes] | None = self.models
        else:
            answer = self.answers.pop(0) if self.answers else self.usual
        if answer is None:  # silence, until the client goes
            await reader.read()
            return False
        for part in answer:
            writer.write(part)
            await writer.drain()
        whole = answer[-1].endswith(b"0\r\n\r\n") or b"Content-Length" in answer[0]
        return whole and b"Connection: close" not in answer[0]


@asynccontextmanager
async def stand_in(
    *answers: list[bytes] | None, usual: list[bytes] | None = HELLO, models: list[bytes] = MODELS
) -> AsyncIterator[StandIn]:
    """Listens on loopback for as long as the block runs. An answer of None is silence, of no bytes a close."""
    server = StandIn(answers, usual, models)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
