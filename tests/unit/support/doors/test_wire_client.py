"""The tests' own WebSocket client: who waits for a frame learns that the connection ended."""

from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.server import ServerConnection, serve

from tests.support.doors.wire_client import Frames, connected


async def test_frames_come_in_order_and_then_the_end() -> None:
    frames = Frames()
    waiting = asyncio.create_task(frames.get())
    for number in range(3):
        frames.put_nowait({"n": number})
    frames.end()
    assert await waiting == {"n": 0} and frames.qsize() == 2
    assert [await frames.get(), frames.get_nowait()] == [{"n": 1}, {"n": 2}]
    with pytest.raises(ConnectionError):
        await frames.get()


async def test_a_server_that_goes_away_under_an_answer_or_before_ready_leaves_nobody_waiting() -> None:
    frames = ['{"type":"ready"}', ""]

    async def gone(socket: ServerConnection) -> None:
        await socket.recv()
        if frame := frames.pop(0):
            await socket.send(frame)
            await socket.recv()
        socket.transport.abort()

    async with serve(gone, "127.0.0.1", 0, subprotocols=["sessile.v1+json"]) as server:  # type: ignore[list-item]
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with connected(url) as wire:
            await wire.send({"type": "x"})
            with pytest.raises(ConnectionError):
                await wire.until_end("resp_1")
        with pytest.raises(ConnectionError):
            async with connected(url):
                raise AssertionError("there was no ready")
