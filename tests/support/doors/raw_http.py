"""HTTP/1.1 as bytes on a socket, for what no client would send."""

from __future__ import annotations

import asyncio
import re


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    """Reads one answer, head and body. Raises IncompleteReadError where the connection ends before or within it."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    if length is not None:
        return head + await reader.readexactly(int(length[1]))
    if not re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
        return head if re.match(rb"HTTP/1.1 (1..|204|304) ", head) else head + await reader.read()
    body = b""
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        body += (await reader.readexactly(size + 2))[:-2]
        if not size:
            return head + body
