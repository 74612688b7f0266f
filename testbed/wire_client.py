"""A plain client over WebSocket for tests and benches: commands with their answers, events in order of arrival.

It is deliberately not the SDK: it speaks frames, so that what is measured or judged is the server and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

SUBPROTOCOL: Final = Subprotocol("sessile.v1+json")
ACK_BYTES: Final = 128 * 1024  # half a window
TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


def new_ulid() -> str:
    """An id for a command: unique is all that a bench needs."""
    return f"{int(time.time() * 1000):012X}{secrets.token_hex(7).upper()}"


class Frames:
    """Queues frames, and tells who waits for one that the connection has ended."""

    def __init__(self) -> None:
        self._frames: deque[dict[str, Any]] = deque()
        self._changed = asyncio.Event()
        self._ended = False

    def put_nowait(self, frame: dict[str, Any]) -> None:
        self._frames.append(frame)
        self._changed.set()

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._changed.set()

    async def get(self) -> dict[str, Any]:
        """Raises ConnectionError once the connection has ended and all that had come before was taken."""
        while not self._frames:
            if self._ended:
                raise ConnectionError("the connection ended")
            self._changed.clear()
            await self._changed.wait()
        return self._frames.popleft()

    def get_nowait(self) -> dict[str, Any]:
        """Raises IndexError when there is none."""
        return self._frames.popleft()

    def empty(self) -> bool:
        return not self._frames

    def qsize(self) -> int:
        return len(self._frames)


class WireClient:
    """One connection. `others` has every frame that is neither an answer nor an event nor a ping."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.events = Frames()
        self.others = Frames()
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._last: dict[str, int] = {}
        self._unacked = self._unacked_bytes = 0
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(Exception):
            async for data in self.socket:
                arrived = time.monotonic()
                self._unacked_bytes += len(data)
                frame = msgspec.json.decode(data)
                for each in frame if isinstance(frame, list) else (frame,):
                    await self._take(each, arrived)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(ConnectionError("the connection ended"))
        self.events.end()
        self.others.end()

    async def _take(self, frame: dict[str, Any], arrived: float) -> None:
        kind = frame["type"]
        if kind == "event":
            frame["arrived"] = arrived
            self._last[frame["session"]] = frame["offset"]
            self._unacked += 1
            if self._unacked >= 256 or self._unacked_bytes >= ACK_BYTES:
                self._unacked = self._unacked_bytes = 0
                for session, offset in self._last.items():
                    await self.send({"type": "ack", "session": session, "offset": offset})
            self.events.put_nowait(frame)
        elif kind in ("ok", "error") and frame.get("id") in self._answers:
            future = self._answers.pop(frame["id"])
            if not future.done():
                future.set_result(frame)
        elif kind == "ping":
            await self.send({"type": "pong"})
        else:
            self.others.put_nowait(frame)

    async def send(self, frame: dict[str, Any]) -> None:
        await self.socket.send(msgspec.json.encode(frame).decode())

    async def command(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Sends a command and returns its answer; raises RuntimeError when that is an error."""
        id = fields.pop("id", None) or new_ulid()
        self._answers[id] = asyncio.get_running_loop().create_future()
        future = self._answers[id]
        await self.send({"type": kind, "id": id, **fields})
        answer = await future
        if answer["type"] == "error":
            raise RuntimeError(str(answer["error"]))
        return answer

    async def create(self, **fields: Any) -> str:
        """A new session, subscribed to from its start."""
        session = str((await self.command("session.create", **fields))["session"])
        await self.command("subscribe", session=session, offset=0)
        return session

    async def until_end(self, response_id: str) -> list[dict[str, Any]]:
        """The events up to and with the response's terminal one."""
        seen = []
        while True:
            frame = await self.events.get()
            seen.append(frame)
            event = frame["event"]
            if event.get("response_id") == response_id and event["type"] in TERMINAL:
                return seen

    async def close(self) -> None:
        await self.socket.close()
        await self._reading


@contextlib.asynccontextmanager
async def connected(url: str, **hello: Any) -> AsyncIterator[WireClient]:
    async with connect(url, subprotocols=[SUBPROTOCOL], compression=None, max_size=None) as socket:
        wire = WireClient(socket)
        await wire.send({"type": "hello", **hello})
        ready = await wire.others.get()
        if ready["type"] != "ready":
            raise RuntimeError(f"not ready: {ready}")
        try:
            yield wire
        finally:
            await wire.close()


def text_of(frames: Sequence[dict[str, Any]]) -> str:
    return "".join(f["event"]["delta"] for f in frames if f["event"]["type"] == "response.output_text.delta")
