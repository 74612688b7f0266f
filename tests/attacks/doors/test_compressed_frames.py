"""Attacks through compression that a client asks for: little that inflates to much, before and behind the key, and
frames that are not what their flags say."""

from __future__ import annotations

import asyncio
import os
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import connect
from websockets.protocol import State

from sessions.model.types import Principal, TenantId
from testbed.wire_client import SUBPROTOCOL
from tests.support.doors.assembly import Assembly, assembled
from transport.auth.authenticator import key_digest

KEYS = {key_digest("s3cret-of-ana"): Principal(tenant=TenantId("acme"), key_id="ana", user="ana")}
HELLO = b'{"type":"hello","auth":"s3cret-of-ana"}'
WHOLE_BYTES = 4 * 1024 * 1024


@pytest.fixture
async def server() -> AsyncIterator[Assembly]:
    async with assembled(keys=KEYS) as made:
        yield made


def packed(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


def masked(payload: bytes, *, first: int = 0xC1) -> bytes:
    """A frame of a client; its first byte says whole, compressed, text."""
    mask = os.urandom(4)
    body = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    length = len(payload)
    size = bytes([0x80 | length]) if length < 126 else b"\xfe" + struct.pack("!H", length)
    return bytes([first]) + size + mask + body


class Raw:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def close_code(self) -> int:
        """Reads until the server closes; 0: it closed without a word."""
        seen = b""
        async with asyncio.timeout(60):
            while data := await self.reader.read(65_536):
                seen += data
        at = seen.rfind(b"\x88")
        return int(struct.unpack("!H", seen[at + 2 : at + 4])[0]) if at >= 0 else 0


@asynccontextmanager
async def raw(server: Assembly) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.server.port)
    lines = (
        "GET /v1/ws?compress=deflate HTTP/1.1",
        f"Host: 127.0.0.1:{server.server.port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        f"Sec-WebSocket-Protocol: {SUBPROTOCOL}",
        "Sec-WebSocket-Extensions: permessage-deflate",
    )
    writer.write("\r\n".join((*lines, "", "")).encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"101" in head and b"permessage-deflate" in head, head
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()


async def test_a_first_message_that_inflates_beyond_its_bound_is_no_first_message(server: Assembly) -> None:
    async with raw(server) as made:
        made.writer.write(masked(packed(HELLO + b" " * 1_000_000)))
        assert await made.close_code() in (1009, 4401)


async def test_a_first_message_without_a_key_is_refused_compressed_or_not(server: Assembly) -> None:
    for frame in (masked(packed(b'{"type":"hello","auth":"wrong"}')), masked(b'{"type":"hello"}', first=0x81)):
        async with raw(server) as made:
            made.writer.write(frame)
            assert await made.close_code() == 4401


@pytest.mark.parametrize(
    "frame",
    [
        masked(b"\xff\xff\xff", first=0xC1),  # nothing that inflates
        masked(packed(HELLO)[:-3], first=0xC1),  # cut
        masked(packed(HELLO), first=0xA1),  # another reserved bit
        masked(packed(b"x"), first=0xC9),  # a compressed ping
    ],
    ids=["no deflate", "cut", "reserved bit", "compressed ping"],  # the masks differ from process to process
)
async def test_what_is_not_what_its_flags_say_ends_that_connection_alone(server: Assembly, frame: bytes) -> None:
    async with raw(server) as made:
        made.writer.write(frame)
        assert await made.close_code() in (1002, 1007, 4400, 4401)
    async with connect(server.ws, subprotocols=[SUBPROTOCOL]) as socket:
        await socket.send(HELLO.decode())
        assert "ready" in str(await socket.recv())


@pytest.mark.parametrize("whole", [True, False])
async def test_who_sends_next_to_nothing_has_little_inflated(server: Assembly, whole: bool) -> None:
    """Each of these took 4 KB on the wire, and 4 MiB of inflating and parsing, without end."""
    pieces = [packed(b'{"type":"pong"}' + b" " * (WHOLE_BYTES - 64))] if whole else []
    if not whole:
        packer = zlib.compressobj(wbits=-15)
        start = packer.compress(b'{"type":"pong"}' + b" " * (WHOLE_BYTES // 2)) + packer.flush(zlib.Z_SYNC_FLUSH)
        pieces = [start, (packer.compress(b" " * (WHOLE_BYTES // 3)) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]]
    async with raw(server) as made:
        made.writer.write(masked(packed(HELLO)))
        for _ in range(6):
            for index, piece in enumerate(pieces):
                first = 0xC1 if whole else (0x41, 0x80)[index]
                made.writer.write(masked(piece, first=first))
        assert await made.close_code() == 1009


async def test_an_ordinary_client_sends_as_much_as_it_likes(server: Assembly) -> None:
    async with connect(f"{server.ws}?compress=deflate", subprotocols=[SUBPROTOCOL]) as socket:
        assert socket.protocol.extensions
        await socket.send(HELLO.decode())
        assert "ready" in str(await socket.recv())
        words = " ".join(f"word{n * n}" for n in range(40_000))
        for n in range(40):
            await socket.send(f'{{"type":"session.update","id":"{n}","session":"none","title":"{words}"}}')
            assert '"error"' in str(await socket.recv())
        await socket.ping()
        assert socket.state is State.OPEN
