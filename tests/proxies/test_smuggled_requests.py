"""Between clients and the server stands a proxy that gives one connection to all of them: nobody gets the answer to
somebody else's request, however requests are framed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from inference.simulated import SimulatedOptions
from tests.support.doors.openai_server import serving
from tests.support.doors.proxies import KINDS, proxied
from tests.support.doors.raw_http import read_answer
from tests.support.doors.smuggling import SMUGGLED, variants

ASK = b"GET /v1/models/%s HTTP/1.1\r\nhost: localhost\r\n\r\n"
ENDED = (asyncio.IncompleteReadError, OSError)


class Canary:
    """An honest client of the same proxy, on a connection that it keeps."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._asked = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self) -> str:
        """Sends one request. Returns what is wrong with its answer: it has not its request's marker, or has another."""
        self._asked += 1
        marker = b"canary-%d." % self._asked
        for _ in range(10):  # a proxy may close a connection that it keeps, at any time
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            try:
                writer.write(ASK % marker)
                answer = await read_answer(reader)
            except ENDED:
                await self.close()
                continue
            is_own = marker in answer and SMUGGLED not in answer
            return "" if is_own or re.match(rb"HTTP/1.1 50[234] ", answer) else answer.decode(errors="replace")
        return "no answer"

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def attack(port: int, canary: Canary, pieces: tuple[bytes, ...]) -> tuple[list[bytes], str]:
    """Sends one variant, with the canary's requests between its pieces, behind its first answer and behind its end.
    Returns its answers, and what was wrong with the canary's. A proxy that waits for more ends the connection."""
    wrong = ""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers: list[bytes] = []
    with suppress(*ENDED):
        for number, piece in enumerate(pieces):
            if number:
                wrong = wrong or await canary.ask()
            writer.write(piece)
            await writer.drain()
        answers.append(await read_answer(reader))
        wrong = wrong or await canary.ask()
        writer.write_eof()
        while True:
            answers.append(await read_answer(reader))
    writer.close()
    return answers, wrong or await canary.ask() or await canary.ask()


@asynccontextmanager
async def deaf_server() -> AsyncIterator[int]:
    """A server with the fault of old: it takes the body of an upgrade that it does not take for another request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(*ENDED):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
                if length and b"upgrade: foo" not in head.lower():
                    await reader.readexactly(int(length[1]))
                body = head.split(b" ")[1]
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("kind", KINDS)
async def test_no_answer_reaches_another_request(kind: str, tmp_path: Path) -> None:
    faults: list[str] = []
    async with (
        serving(SimulatedOptions(step_base_s=0.001)) as server,
        proxied(kind, server.server.port, tmp_path) as port,
    ):
        canary = Canary(port)
        assert await canary.ask() == ""
        for number, (name, pieces) in enumerate(variants(b"outer.")):
            async with asyncio.timeout(60):
                mine = tuple(piece.replace(b"outer.", b"outer-%d." % number) for piece in pieces)
                answers, wrong = await attack(port, canary, mine)
            if wrong:
                faults.append(f"{name}: the canary got {wrong!r}")
            if answers and not re.match(rb"HTTP/1.1 [1245]", answers[0]):
                faults.append(f"{name}: no HTTP: {answers[0]!r}")
            if any(b"canary-" in each for each in answers):
                faults.append(f"{name}: got the canary's answer")
            if any(b"outer-" in each and b"outer-%d." % number not in each for each in answers):
                faults.append(f"{name}: got an answer to another request")
        await canary.close()
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("nginx")])
async def test_a_planted_fault_is_found(kind: str, tmp_path: Path) -> None:
    async with deaf_server() as server, proxied(kind, server, tmp_path) as port:
        canary, found = Canary(port), list[str]()
        assert await canary.ask() == ""
        for name, pieces in variants(b"outer."):
            if name.startswith("upgrade foo, length"):
                async with asyncio.timeout(60):
                    found.append((await attack(port, canary, pieces))[1])
        await canary.close()
    assert any(SMUGGLED.decode() in wrong for wrong in found)
