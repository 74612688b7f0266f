"""A device that records every frame it is sent, and behaves as PROTOCOL.md §1 and §3 ask of a client.

It reconnects by itself, to the next gateway, with a jittered pause; it resumes every session that it reads from its own
position; it repeats a command by its id until it is answered. What it was sent is never looked at here beyond
what resuming needs: `frames` keeps all of it with the time of arrival, and `verdict` judges.

It is not one of the SDKs: two implementations of the client's rules check each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from testbed.wire_client import SUBPROTOCOL, TERMINAL

PAUSE_MIN_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
OPEN_S: Final = 5.0
ACK_EVENTS: Final = 64


class Frame(NamedTuple):
    at: float  # time.monotonic() of its arrival
    connection: int
    body: dict[str, Any]


class Delta(NamedTuple):
    at: float
    offset: int
    response: str


class Sent(msgspec.Struct):
    """A command and what became of it."""

    kind: str
    session: str | None
    frame: dict[str, Any]
    sent_at: float
    answer: dict[str, Any] | None = None
    answered_at: float = 0.0
    tries: int = 0


class Refused(Exception):
    """A command was answered with an error that repeating does not mend."""


class Cursor:
    """Where this device stands in one session."""

    def __init__(self) -> None:
        self.epoch = ""
        self.position: int | None = None
        self.attached = False
        self.ended: dict[str, float] = {}  # responses, and when their end was told
        self.resets = 0
        self.deltas: list[Delta] = []
        self.moves: list[tuple[float, str]] = []  # arrival and cause of every `session.migrated`


class Device:
    """Use `device(...)`, which runs it."""

    def __init__(self, urls: Sequence[str], *, seed: int = 0, key: str = "") -> None:
        self.frames: list[Frame] = []
        self.commands: dict[str, Sent] = {}
        self.cursors: dict[str, Cursor] = {}
        self.connections = 0
        self.urls = list(urls)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._rng = random.Random(seed)
        self._socket: ClientConnection | None = None
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._conditions: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._untaken = 0
        self._later: set[asyncio.TimerHandle] = set()

    # -- what a test asks ---------------------------------------------------------------------------------------------

    async def command(self, kind: str, *, limit_s: float = 60.0, **fields: Any) -> dict[str, Any]:
        """Sends a command, and again by its id whenever it may not have been heard, until it is answered."""
        id = new_id()
        frame = {"type": kind, "id": id, **fields}
        sent = self.commands[id] = Sent(kind, fields.get("session"), frame, time.monotonic())
        self._waiting[id] = asyncio.get_running_loop().create_future()
        await self._send(id)
        async with asyncio.timeout(limit_s):
            answer = await self._waiting[id]
        del self._waiting[id]
        if answer["type"] == "error":
            raise Refused(f"{kind}: {answer['error']}")
        sent.answer, sent.answered_at = answer, time.monotonic()
        return answer

    async def create(self, **fields: Any) -> str:
        """A new session, read from its start."""
        session = str((await self.command("session.create", **fields))["session"])
        await self.read(session)
        return session

    async def read(self, session: str) -> None:
        """Reads a session from now on, from its start."""
        cursor = self.cursors[session] = Cursor()
        cursor.position = 0
        await self._subscribe(session)
        await self.until(lambda: cursor.attached)

    async def say(self, session: str, text: str, *, tokens: int, **fields: Any) -> str:
        """A message; returns the id of the response to it."""
        answer = await self.command(
            "message.create", session=session, content=text, max_output_tokens=tokens, queue=True, **fields
        )
        return str(answer["response_id"])

    async def until(self, condition: Callable[[], bool], limit_s: float = 60.0) -> None:
        """Waits for something that becomes true when a frame comes."""
        if not condition():
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._conditions.append((condition, place))
            async with asyncio.timeout(limit_s):
                await place

    async def ends(self, session: str, response_id: str, limit_s: float = 120.0) -> None:
        await self.until(lambda: response_id in self.cursors[session].ended, limit_s)

    async def grows(self, session: str, by: int = 3, limit_s: float = 60.0) -> None:
        """Waits for more pieces of text."""
        cursor = self.cursors[session]
        wanted = len(cursor.deltas) + by
        await self.until(lambda: len(cursor.deltas) >= wanted, limit_s)

    def cut(self) -> None:
        """Breaks the connection off, if there is one; the next resumes every session."""
        if self._socket is not None:
            self._socket.transport.abort()

    # -- the connection -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connects again and again until it is cancelled."""
        pause_s, number = PAUSE_MIN_S, 0
        while True:
            url = self.urls[number % len(self.urls)]
            number += 1
            heard = len(self.frames)
            with contextlib.suppress(OSError, WebSocketException, TimeoutError):
                async with connect(
                    url,
                    subprotocols=[SUBPROTOCOL],
                    additional_headers=self._headers,
                    compression=None,
                    max_size=None,
                    open_timeout=OPEN_S,
                    close_timeout=0.2,
                    ping_interval=None,
                ) as socket:
                    await self._converse(socket)
            self._socket = None
            for cursor in self.cursors.values():
                cursor.attached = False
            pause_s = PAUSE_MIN_S if len(self.frames) > heard else min(pause_s * 2, PAUSE_MAX_S)
            await asyncio.sleep(pause_s * self._rng.random())

    async def _converse(self, socket: ClientConnection) -> None:
        self.connections += 1
        resume = [self._point(session) for session in self.cursors]
        await socket.send(msgspec.json.encode({"type": "hello", "resume": resume}).decode())
        self._socket = socket
        for id in list(self._waiting):
            await self._send(id)
        async for data in socket:
            at = time.monotonic()
            body = msgspec.json.decode(data)
            for each in body if isinstance(body, list) else (body,):
                self.frames.append(Frame(at, self.connections, each))
                await self._take(at, each)
            for condition, place in list(self._conditions):
                if condition():
                    self._conditions.remove((condition, place))
                    if not place.done():
                        place.set_result(None)

    def _point(self, session: str) -> dict[str, Any]:
        cursor = self.cursors[session]
        epoch = {"epoch": cursor.epoch} if cursor.epoch else {}
        return {"session": session, "offset": cursor.position, **epoch}

    async def _subscribe(self, session: str) -> None:
        await self._write({"type": "subscribe", "id": new_id(), **self._point(session)})

    async def _subscribe_again(self, session: str, connection: int) -> None:
        if connection == self.connections and not self.cursors[session].attached:  # the next one resumes it by itself
            await self._subscribe(session)

    async def _send(self, id: str) -> None:
        sent = self.commands[id]
        sent.tries += 1
        await self._write(sent.frame)

    async def _write(self, frame: dict[str, Any]) -> None:
        """What does not go out now goes out when the next connection begins."""
        if self._socket is not None:
            with contextlib.suppress(WebSocketException):
                await self._socket.send(msgspec.json.encode(frame).decode())

    def _in(self, seconds: float, call: Callable[[], Any]) -> None:
        def due() -> None:
            self._later.discard(handle)
            task = asyncio.ensure_future(call())
            task.add_done_callback(lambda done: done.cancelled() or done.result())

        handle = asyncio.get_running_loop().call_later(seconds, due)
        self._later.add(handle)

    def close(self) -> None:
        for handle in self._later:
            handle.cancel()

    # -- what comes ---------------------------------------------------------------------------------------------------

    async def _take(self, at: float, body: dict[str, Any]) -> None:
        match body["type"]:
            case "event":
                await self._event(at, body)
            case "resumed":
                self._resumed(at, body)
            case "ok" | "error":
                self._answered(body)
            case "ping":
                await self._write({"type": "pong"})

    async def _event(self, at: float, body: dict[str, Any]) -> None:
        session, event = body["session"], body["event"]
        cursor = self.cursors[session]
        first, last = body.get("first_offset", body["offset"]), body["offset"]
        if first == (cursor.position or 0) + 1 and body["epoch"] == cursor.epoch:
            cursor.position = last
        if event["type"] == "response.output_text.delta":
            cursor.deltas.append(Delta(at, last, event["response_id"]))
        elif event["type"] == "session.migrated":
            cursor.moves.append((at, event["cause"]))
        elif event["type"] in TERMINAL:
            cursor.ended[event["response_id"]] = at
        self._untaken += 1
        if self._untaken >= ACK_EVENTS:
            self._untaken = 0
            for name, each in self.cursors.items():
                if each.position:
                    await self._write({"type": "ack", "session": name, "offset": each.position})

    def _resumed(self, at: float, body: dict[str, Any]) -> None:
        session = body["session"]
        cursor = self.cursors[session]
        match body["mode"]:
            case "replay":
                cursor.epoch, cursor.attached = body["epoch"], True
            case "snapshot" | "reset":
                cursor.epoch, cursor.position, cursor.attached = body["epoch"], body["at"], True
                cursor.resets += body["mode"] == "reset"
                for item in body["state"]["items"]:
                    if item.get("role") == "assistant" and item["status"] != "in_progress":
                        cursor.ended.setdefault(response_of(item["id"]), at)
            case "gone":
                cursor.attached = False
                if body["error"]["retryable"]:
                    after_s, connection = body["error"].get("retry_after_ms", 100) / 1000, self.connections
                    self._in(after_s, lambda: self._subscribe_again(session, connection))

    def _answered(self, body: dict[str, Any]) -> None:
        id = body.get("id")
        place = self._waiting.get(id or "")
        if place is None or place.done() or id is None:
            return
        if body["type"] == "error" and body["error"]["retryable"]:
            self._in(body["error"].get("retry_after_ms", 50) / 1000, lambda: self._send(id))
        else:
            place.set_result(body)


def new_id() -> str:
    """For a command: unique, and of a ULID's shape."""
    return f"{int(time.time() * 1000):012X}{secrets.token_hex(7).upper()}"


def response_of(item_id: str) -> str:
    """The response that an assistant's item belongs to."""
    return "resp_" + item_id.removeprefix("msg_").rpartition("_")[0]


@asynccontextmanager
async def device(*urls: str, seed: int = 0, key: str = "") -> AsyncIterator[Device]:
    """A device that is connected, or tries to be, until the end of the context. `key`: its API key."""
    made = Device(urls, seed=seed, key=key)
    running = asyncio.create_task(made.run())
    try:
        await made.until(lambda: bool(made.frames))
        yield made
    finally:
        made.close()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
