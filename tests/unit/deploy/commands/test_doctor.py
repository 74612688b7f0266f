"""What `./sessile doctor` observes of gateways: their own words, and no more of them than a reason takes."""

from __future__ import annotations

import asyncio
import json

import msgspec

from deploy.commands.doctor import ANSWER_BYTES_MAX, observe_gateway
from transport.ops.diagnosis import GatewayObserved

UNREADY = "HTTP/1.1 503 Service Unavailable"


async def observed(status: str, body: bytes, *, length: int | None = None) -> GatewayObserved:
    """Of a gateway that answers so; without its address."""
    head = f"{status}\r\ncontent-length: {len(body) if length is None else length}\r\nconnection: close\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head.encode() + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        seen = await asyncio.to_thread(observe_gateway, f"http://127.0.0.1:{port}/")
    return msgspec.structs.replace(seen, url="")


async def test_a_gateway_is_ready_or_says_why_not() -> None:
    assert await observed("HTTP/1.1 200 OK", b"{}") == GatewayObserved(url="")
    reason = json.dumps({"reason": "draining"}).encode()
    assert await observed(UNREADY, reason) == GatewayObserved(url="", unready="draining")
    assert await observed("HTTP/1.1 200 OK", b"OK") == GatewayObserved(url=""), "behind a proxy of its own mind"
    lag = b'{"status": "ok", "replication_lag_s": 1.5}'
    assert await observed("HTTP/1.1 200 OK", lag) == GatewayObserved(url="", replication_lag_s=1.5)


async def test_what_is_no_gateway_is_a_failure() -> None:
    endless = json.dumps({"reason": "x" * ANSWER_BYTES_MAX}).encode()
    for body in (b"", b"[]", b"<html>", b"\xff", endless):
        seen = await observed(UNREADY, body)
        assert seen == GatewayObserved(url="", failure="it answers 503 and no reason"), body[:10]
    cut = await observed(UNREADY, b'{"reason":', length=100)
    assert cut.failure == "it answers 503 and no reason"
    assert "does not speak HTTP" in (await observed("\x15\x03\x03", b"of another door")).failure
    assert "no http:// or https:// address" in observe_gateway("file:///etc/passwd").failure
